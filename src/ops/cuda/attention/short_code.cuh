// What keeps a launch's code short. A pass of few rows launches kernels that run most of their code once, and is then bound by
// the fetch of instructions.
#pragma once

#include <cstdint>

namespace tensorfold::ops::cuda {

/// Division by a number that the launch knows: one multiplication where a division of integers takes twenty instructions.
struct Divisor {
  std::uint32_t value = 1;
  std::uint32_t factor = 1u << 31;  // 2^31 / value, rounded up

  Divisor() = default;
  explicit Divisor(int divisor)
      : value(static_cast<std::uint32_t>(divisor)), factor(((1u << 31) + value - 1) / value) {}
  /// Whether quotients of 0 .. `largest` are exact: the rounding of `factor` stays below 1 / value.
  bool divides(std::int64_t largest) const { return largest * value < (std::int64_t{1} << 31); }
  /// `number` is not negative.
  __device__ __forceinline__ int quotient(int number) const {
    return static_cast<int>(__umulhi(2u * static_cast<std::uint32_t>(number), factor));
  }
  __device__ __forceinline__ int remainder(int number, int quotient) const {
    return number - quotient * static_cast<int>(value);
  }
};

/// The same address, but the compiler can't take it apart to build it anew for every load at a fixed distance from it.
template <typename T>
__device__ __forceinline__ T* whole(T* address) {
  asm("" : "+l"(address));
  return address;
}

}  // namespace tensorfold::ops::cuda
