// Division by a number that the launch knows: a multiplication and a shift where a division of integers takes twenty
// instructions, which a launch of few rows runs cold (docs/decisions.md, "What a launch runs once is short").
#pragma once

#include <bit>
#include <cstdint>

namespace tensorfold::ops::cuda {

/// Exact for every number in [0, 2^31): with l = ceil(log2(value)) the rounding of 2^(31 + l) / value adds less than
/// 2^-31 of a quotient's step (Granlund and Montgomery, "Division by invariant integers using multiplication", 1994).
struct Divisor {
  std::uint32_t value = 1;
  std::uint32_t shift = 0;          // l
  std::uint32_t factor = 1u << 31;  // 2^(31 + l) / value, rounded up: less than 2^32

  Divisor() = default;
  /// `divisor` is positive.
  explicit Divisor(int divisor)
      : value(static_cast<std::uint32_t>(divisor)),
        shift(static_cast<std::uint32_t>(std::bit_width(value - 1))),
        factor(static_cast<std::uint32_t>(((std::uint64_t{1} << (31 + shift)) + value - 1) / value)) {}

  /// Whether a count is one that quotient() takes.
  static bool takes(std::int64_t largest) { return largest < (std::int64_t{1} << 31); }

#if defined(__CUDACC__)
  __host__ __device__
#endif
  int quotient(int number) const {
    const std::uint32_t twice = 2u * static_cast<std::uint32_t>(number);
#if defined(__CUDA_ARCH__)
    return static_cast<int>(__umulhi(twice, factor) >> shift);
#else
    return static_cast<int>((std::uint64_t{twice} * factor >> 32) >> shift);
#endif
  }
#if defined(__CUDACC__)
  __host__ __device__
#endif
  int remainder(int number, int quotient) const { return number - quotient * static_cast<int>(value); }
};

}  // namespace tensorfold::ops::cuda
