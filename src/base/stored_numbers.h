// Numbers as checkpoints store them: IEEE halves, codes of a few bits in packs of eight, the packed scales of K-quants. In `base` because the room that reads
// checkpoints decodes them and the backends, which may not include that room, pack from them. Force-inlined: files that are
// compiled for several instruction sets include this, and none may leave a copy that replaces another's.
#pragma once

#include <bit>
#include <cstdint>

namespace tensorfold {

template <typename Value>
static inline __attribute__((always_inline)) Value load_unaligned(const std::uint8_t* data) {
  Value value;
  __builtin_memcpy(&value, data, sizeof(value));
  return value;
}

/// Integer arithmetic where it matters: a subnormal half must not depend on the thread's denormal mode.
static inline __attribute__((always_inline)) float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(half & 0x7fffu) << 13;
  const std::uint32_t exponent = magnitude & 0x0f800000u;
  // Subnormal: 2^-14 · (1 + m/1024) - 2^-14, exact, and both operands are normal floats.
  const float subnormal = __builtin_bit_cast(float, magnitude + (113u << 23)) - __builtin_bit_cast(float, 113u << 23);
  const std::uint32_t rebias = exponent == 0x0f800000u ? 224u << 23 : 112u << 23;
  const std::uint32_t bits = exponent == 0 ? __builtin_bit_cast(std::uint32_t, subnormal) : magnitude + rebias;
  return __builtin_bit_cast(float, bits | sign);
}

/// Eight codes of `bits` bits, least significant first, from `bits` bytes; by loads of whole registers, as a copy of an odd
/// size through memory stalls.
template <int bits>
static inline __attribute__((always_inline)) std::uint64_t load_eight_codes(const std::uint8_t* data) {
  if constexpr (bits == 2) return load_unaligned<std::uint16_t>(data);
  if constexpr (bits == 3) return load_unaligned<std::uint16_t>(data) | static_cast<std::uint32_t>(data[2]) << 16;
  if constexpr (bits == 4) return load_unaligned<std::uint32_t>(data);
  if constexpr (bits == 5) return load_unaligned<std::uint32_t>(data) | static_cast<std::uint64_t>(data[4]) << 32;
  if constexpr (bits == 6) {
    return load_unaligned<std::uint32_t>(data) | static_cast<std::uint64_t>(load_unaligned<std::uint16_t>(data + 4)) << 32;
  }
  if constexpr (bits == 8) return load_unaligned<std::uint64_t>(data);
}

/// The 6-bit scale and minimum of sub-block j of a Q4_K or Q5_K block (formats.md section 14).
static inline __attribute__((always_inline)) void load_k_scale(const std::uint8_t* packed, int j, std::uint32_t* scale,
                                                                std::uint32_t* minimum) {
  if (j < 4) {
    *scale = packed[j] & 63u;
    *minimum = packed[j + 4] & 63u;
  } else {
    *scale = (packed[j + 4] & 15u) | ((packed[j - 4] >> 6) << 4);
    *minimum = static_cast<std::uint32_t>(packed[j + 4] >> 4) | ((packed[j] >> 6) << 4);
  }
}

}  // namespace tensorfold
