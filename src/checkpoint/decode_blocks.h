// The decoders of decode_row, block by block: codes are unpacked to small integers, then one fused multiply-add each.
// Everything here is force-inlined, so that decode_row.cpp can compile it once for the plain machine and once with AVX2
// and FMA; fmaf is exactly rounded either way, so both give the same bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/stored_numbers.h"

#define TF_DECODE static inline __attribute__((always_inline))

namespace tensorfold::decode {

TF_DECODE float from_bf16(std::uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
}

TF_DECODE float load_half(const std::uint8_t* data) {
  return half_to_float(load_unaligned<std::uint16_t>(data));
}

// --- scalar formats --------------------------------------------------------------------------------------------------

TF_DECODE void f32_row(const std::uint8_t* data, std::int64_t count, float* out) {
  __builtin_memcpy(out, data, static_cast<std::size_t>(count) * 4);
}

// Through local arrays: the compiler then knows that input and output don't overlap, and vectorises.
template <float (*convert)(std::uint16_t)>
TF_DECODE void half_row(const std::uint8_t* data, std::int64_t count, float* out) {
  constexpr int kBlock = 32;
  std::int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    std::uint16_t halves[kBlock];
    __builtin_memcpy(halves, data + 2 * i, sizeof(halves));
    float values[kBlock];
    for (int k = 0; k < kBlock; ++k) values[k] = convert(halves[k]);
    __builtin_memcpy(out + i, values, sizeof(values));
  }
  for (; i < count; ++i) out[i] = convert(load_unaligned<std::uint16_t>(data + 2 * i));
}

// --- codes to values -------------------------------------------------------------------------------------------------

template <int count>
TF_DECODE void fused(const std::uint8_t* codes, float scale, float bias, float* out) {
  for (int i = 0; i < count; ++i) out[i] = __builtin_fmaf(static_cast<float>(codes[i]), scale, bias);
}

// --- MLX affine ------------------------------------------------------------------------------------------------------

// A self-contained pack: eight codes in `bits` bytes, least significant bit first. Four codes fit 32 bits at any width,
// so the two halves of the pack become lanes of a 32-bit shift.
template <int bits>
TF_DECODE void affine_pack(const std::uint8_t* data, float scale, float bias, float* out) {
  const std::uint64_t word = load_eight_codes<bits>(data);
  const auto low = static_cast<std::uint32_t>(word), high = static_cast<std::uint32_t>(word >> (4 * bits));
  const std::uint32_t lanes[8] = {low, low, low, low, high, high, high, high};
  constexpr std::uint32_t kShifts[8] = {0, bits, 2 * bits, 3 * bits, 0, bits, 2 * bits, 3 * bits};
  float values[8];
  for (int i = 0; i < 8; ++i) {
    const auto code = static_cast<std::int32_t>((lanes[i] >> kShifts[i]) & ((1u << bits) - 1));
    values[i] = __builtin_fmaf(static_cast<float>(code), scale, bias);
  }
  __builtin_memcpy(out, values, sizeof(values));
}

struct AffineRow {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  const std::uint8_t* biases;
  std::int64_t groups;
  int group_size;
  int scale_kind;  // 0 F32, 1 F16, 2 BF16
};

TF_DECODE float affine_scale(const std::uint8_t* data, int kind, std::int64_t index) {
  if (kind == 0) return load_unaligned<float>(data + 4 * index);
  const auto bits = load_unaligned<std::uint16_t>(data + 2 * index);
  return kind == 1 ? half_to_float(bits) : from_bf16(bits);
}

template <int bits>
TF_DECODE void affine_row(const AffineRow& row, float* out) {
  const std::uint8_t* data = row.codes;
  for (std::int64_t group = 0; group < row.groups; ++group) {
    const float scale = affine_scale(row.scales, row.scale_kind, group);
    const float bias = affine_scale(row.biases, row.scale_kind, group);
    for (int k = 0; k < row.group_size; k += 8, data += bits, out += 8) affine_pack<bits>(data, scale, bias, out);
  }
}

// --- GGUF blocks of 32 -----------------------------------------------------------------------------------------------

// Low nibbles are elements 0..15, high nibbles 16..31.
TF_DECODE void nibbles(const std::uint8_t* data, std::uint8_t* codes) {
  for (int i = 0; i < 16; ++i) codes[i] = data[i] & 15u;
  for (int i = 0; i < 16; ++i) codes[i + 16] = static_cast<std::uint8_t>(data[i] >> 4);
}

// Bit i of `high` is bit 4 of element i.
TF_DECODE void fifth_bits(std::uint32_t high, std::uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] |= static_cast<std::uint8_t>(((high >> i) & 1u) << 4);
}

TF_DECODE void q4_0_block(const std::uint8_t* data, float* out) {
  std::uint8_t codes[32];
  const float d = load_half(data);
  nibbles(data + 2, codes);
  fused<32>(codes, d, -8.0f * d, out);
}

TF_DECODE void q4_1_block(const std::uint8_t* data, float* out) {
  std::uint8_t codes[32];
  nibbles(data + 4, codes);
  fused<32>(codes, load_half(data), load_half(data + 2), out);
}

TF_DECODE void q5_0_block(const std::uint8_t* data, float* out) {
  std::uint8_t codes[32];
  const float d = load_half(data);
  nibbles(data + 6, codes);
  fifth_bits(load_unaligned<std::uint32_t>(data + 2), codes);
  fused<32>(codes, d, -16.0f * d, out);
}

TF_DECODE void q5_1_block(const std::uint8_t* data, float* out) {
  std::uint8_t codes[32];
  nibbles(data + 8, codes);
  fifth_bits(load_unaligned<std::uint32_t>(data + 4), codes);
  fused<32>(codes, load_half(data), load_half(data + 2), out);
}

TF_DECODE void q8_0_block(const std::uint8_t* data, float* out) {
  const float d = load_half(data);
  std::int8_t codes[32];
  __builtin_memcpy(codes, data + 2, sizeof(codes));
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(codes[i]) * d;
}

// --- GGUF superblocks of 256 -----------------------------------------------------------------------------------------

// Q4_K, and Q5_K whose fifth bits lie in front of the nibbles: bit j of high[i] belongs to element i of sub-block j.
template <bool five_bits>
TF_DECODE void q45_k_block(const std::uint8_t* data, float* out) {
  const float d = load_half(data), d_minimum = load_half(data + 2);
  const std::uint8_t* high = data + 16;
  const std::uint8_t* low = five_bits ? data + 48 : data + 16;
  for (int j = 0; j < 8; ++j) {
    std::uint32_t scale = 0, minimum = 0;
    load_k_scale(data + 4, j, &scale, &minimum);
    std::uint8_t codes[32];
    for (int i = 0; i < 32; ++i) {
      codes[i] = static_cast<std::uint8_t>((low[j / 2 * 32 + i] >> (j % 2 * 4)) & 15u);
      if (five_bits) codes[i] = static_cast<std::uint8_t>(codes[i] | (((high[i] >> j) & 1u) << 4));
    }
    fused<32>(codes, d * static_cast<float>(scale), -(d_minimum * static_cast<float>(minimum)), out + 32 * j);
  }
}

TF_DECODE void q6_k_block(const std::uint8_t* data, float* out) {
  const float d = load_half(data + 208);
  for (int half = 0; half < 2; ++half) {
    const std::uint8_t* low = data + 64 * half;
    const std::uint8_t* high = data + 128 + 32 * half;
    const std::uint8_t* scales = data + 192 + 8 * half;
    for (int run = 0; run < 4; ++run) {
      std::uint8_t codes[32];
      for (int i = 0; i < 32; ++i) {
        const std::uint32_t nibble = (low[run % 2 * 32 + i] >> (run / 2 * 4)) & 15u;
        codes[i] = static_cast<std::uint8_t>(nibble | (((high[i] >> (2 * run)) & 3u) << 4));
      }
      for (int part = 0; part < 2; ++part) {
        const float scale = d * static_cast<float>(static_cast<std::int8_t>(scales[2 * run + part]));
        fused<16>(codes + 16 * part, scale, -32.0f * scale, out + 128 * half + 32 * run + 16 * part);
      }
    }
  }
}

}  // namespace tensorfold::decode
