// The sums of attention by fused multiply-add in fp32. Included by ops_kernels.inl before kernels_attention.inl.
#pragma once

namespace tensorfold::ops::cpu {
namespace {

/// Floats of a row's factors (q, P) for a pair of the sum's elements: both, widened.
constexpr std::int64_t kFactorFloats = 2;

void pack_query(const std::uint16_t* x, std::int64_t count, float* out) {
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) store(out + i, load_bf16(x + i));
  for (; i < count; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(x[i]) << 16;
    std::memcpy(out + i, &bits, sizeof(bits));
  }
}

inline void store_probabilities(const F32x16 (&p)[4], float* out) {
  for (int c = 0; c < 4; ++c) store(out + 16 * c, rounded_probability(p[c]));
}

/// Word i: which of keys 2i and 2i + 1 lie in [first, last].
inline void store_masks(std::int64_t first, std::int64_t last, std::uint32_t* masks) {
  for (std::int64_t i = 0; i < kTilePairs; ++i) {
    const bool even = 2 * i >= first && 2 * i <= last;
    const bool odd = 2 * i + 1 >= first && 2 * i + 1 <= last;
    masks[i] = (even ? 0x0000ffffu : 0u) | (odd ? 0xffff0000u : 0u);
  }
}

inline F32x16 even_halves(I32x16 pairs) {
  return float_of(shift_left<16>(pairs));
}
inline F32x16 odd_halves(I32x16 pairs) {
  return float_of(bit_and(pairs, splat_int(static_cast<std::int32_t>(0xffff0000u))));
}

/// Adds one 32-block to acc[row][column group]: word i of column group c holds elements 2i and 2i + 1 of sixteen
/// columns; b[row] holds the row's 32 factors. `pairs` < 16 stands for a block padded with zeros. kMasked: word i of
/// row r is first cut by masks[r][i], so that what the row may not see can't reach it, NaN or not.
template <int kRows, int kColumns, bool kMasked>
inline __attribute__((always_inline)) void dot_block(F32x16 (&acc)[kRows][kColumns], const std::uint32_t* words,
                                                     std::int64_t word_stride, std::int64_t column_stride,
                                                     const float* b, std::int64_t b_stride, std::int64_t pairs,
                                                     const std::uint32_t* masks) {
  F32x16 even[kRows][kColumns], odd[kRows][kColumns];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) even[r][c] = odd[r][c] = splat(0.0f);
  }
#pragma GCC unroll 1
  for (std::int64_t i = 0; i < pairs; ++i) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      const I32x16 pair = load_pairs(words + i * word_stride + c * column_stride);
      F32x16 even_value = even_halves(pair), odd_value = odd_halves(pair);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        if constexpr (kMasked) {
          const I32x16 kept = bit_and(pair, splat_int(static_cast<std::int32_t>(masks[r * kTilePairs + i])));
          even_value = even_halves(kept);
          odd_value = odd_halves(kept);
        }
        even[r][c] = fma(even_value, splat(b[r * b_stride + 2 * i]), even[r][c]);
        odd[r][c] = fma(odd_value, splat(b[r * b_stride + 2 * i + 1]), odd[r][c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      if (pairs < 16) {  // the zero padding turns a negative zero into a positive one
        even[r][c] = add(even[r][c], splat(0.0f));
        odd[r][c] = add(odd[r][c], splat(0.0f));
      }
      acc[r][c] = add(acc[r][c], add(even[r][c], odd[r][c]));
    }
  }
}

}  // namespace
}  // namespace tensorfold::ops::cpu
