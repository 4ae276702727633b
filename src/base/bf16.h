// bfloat16 as storage, and the one rounding that every backend shares: nearest even, denormals to signed zero, NaN
// quieted (one-arithmetic.md, "The CPU backend"). Each instruction that replaces `to_bf16` is tested against it.
#pragma once

#include <bit>
#include <cstdint>

namespace tensorfold {

struct Bf16 {
  std::uint16_t bits = 0;
};

inline float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

inline Bf16 to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude < 0x00800000u) return Bf16{static_cast<std::uint16_t>((bits >> 16) & 0x8000u)};
  if (magnitude > 0x7f800000u) return Bf16{static_cast<std::uint16_t>((bits >> 16) | 0x0040u)};
  return Bf16{static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

}  // namespace tensorfold
