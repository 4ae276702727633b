// IEEE half to fp32, by integers, so that no floating-point mode enters. Every half is a normal float or zero.
#pragma once

#include <bit>
#include <cstdint>

namespace tensorfold::ops::cpu {

inline float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  std::uint32_t exponent = (bits >> 10) & 31u;
  std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    if (mantissa == 0) return std::bit_cast<float>(sign);
    const int shift = std::countl_zero(mantissa) - 21;  // brings the leading one to bit 10
    mantissa = (mantissa << shift) & 0x3ffu;
    exponent = static_cast<std::uint32_t>(1 - shift);
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

}  // namespace tensorfold::ops::cpu
