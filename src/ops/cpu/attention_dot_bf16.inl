// The sums of attention by VDPBF16PS, which takes two steps of a chain at a time when a pair holds elements k and k + 2: the
// same bits as attention_dot_fma.inl in half the instructions (linear_bf16_dot.h has the reasoning). Included by
// ops_kernels.inl before kernels_attention.inl. Pages keep neighbours together on every path, so keys and values are paired
// anew as they are loaded, at the price of widening them; queries and probabilities are once.
#pragma once

namespace tensorfold::ops::cpu {
namespace {

/// Floats of a row's factors (q, P) for a pair of the sum's elements: one, a pair of bf16. A 32-block's are
/// [chain][8 pairs], k in the upper half and k + 2 in the lower.
constexpr std::int64_t kFactorFloats = 1;
constexpr std::int64_t kChainPairs = 8;

/// The upper halves of one and the lower halves of the other.
inline I32x16 halves(I32x16 upper, I32x16 lower) {
  constexpr int kSelect = 0xca;  // a ? b : c
  return {_mm512_ternarylogic_epi32(_mm512_set1_epi32(static_cast<int>(0xffff0000u)), upper.v, lower.v, kSelect)};
}

/// 32 elements in order to [chain][pair].
inline __m512i chain_pairs(__m512i words) {
  const __m512i order = _mm512_setr_epi32(0x000002, 0x040006, 0x08000a, 0x0c000e, 0x100012, 0x140016, 0x18001a, 0x1c001e,
                                          0x010003, 0x050007, 0x09000b, 0x0d000f, 0x110013, 0x150017, 0x19001b, 0x1d001f);
  return _mm512_permutexvar_epi16(order, words);
}

inline void pack_query(const std::uint16_t* q, std::int64_t head_dim, float* out) {
  for (std::int64_t i = 0; i < head_dim; i += 32) {
    const std::int64_t left = head_dim - i;
    const __mmask32 existing = left >= 32 ? 0xffffffffu : (1u << left) - 1;
    _mm512_storeu_si512(out + i / 2, chain_pairs(_mm512_maskz_loadu_epi16(existing, q + i)));
  }
}

inline void store_probabilities(const F32x16 (&p)[4], float* out) {
  for (int block = 0; block < 2; ++block) {
    const __m512bh words = _mm512_cvtne2ps_pbh(p[2 * block + 1].v, p[2 * block].v);
    _mm512_storeu_si512(out + 16 * block, chain_pairs(reinterpret_cast<__m512i>(words)));
  }
}

/// Which keys lie in [first, last], in the order of the pairs.
inline void store_masks(std::int64_t first, std::int64_t last, std::uint32_t* masks) {
  for (std::int64_t i = 0; i < kTilePairs; ++i) {
    const std::int64_t key = i / 16 * 32 + i % 8 * 4 + i / kChainPairs % 2;
    const bool upper = key >= first && key <= last;
    const bool lower = key + 2 >= first && key + 2 <= last;
    masks[i] = (upper ? 0xffff0000u : 0u) | (lower ? 0x0000ffffu : 0u);
  }
}

inline F32x16 add_pair(F32x16 sum, I32x16 pair, float factors) {
  const __m512i spread = _mm512_castps_si512(_mm512_set1_ps(factors));
  return {_mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(pair.v), reinterpret_cast<__m512bh>(spread))};
}

/// Adds one 32-block to acc[row][column group]: word i of column group c holds elements 2i and 2i + 1 of sixteen
/// columns; b[row] holds the row's factors. `pairs` < 16 stands for a block padded with zeros. kMasked: pairs of row r are
/// first cut by its masks, so that what the row may not see can't reach it, NaN or not.
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
  for (std::int64_t i = 0; i < pairs; i += 2) {
    const std::int64_t at = i / 2;
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      const I32x16 first = load_pairs(words + i * word_stride + c * column_stride);
      const I32x16 second =
          i + 1 < pairs ? load_pairs(words + (i + 1) * word_stride + c * column_stride) : splat_int(0);
      const I32x16 even_pair = halves(shift_left<16>(first), second);
      const I32x16 odd_pair = halves(first, shift_right_logical<16>(second));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        I32x16 even_kept = even_pair, odd_kept = odd_pair;
        if constexpr (kMasked) {
          const std::uint32_t* mask = masks + r * kTilePairs + at;
          even_kept = bit_and(even_pair, splat_int(static_cast<std::int32_t>(mask[0])));
          odd_kept = bit_and(odd_pair, splat_int(static_cast<std::int32_t>(mask[kChainPairs])));
        }
        even[r][c] = add_pair(even[r][c], even_kept, b[r * b_stride + at]);
        odd[r][c] = add_pair(odd[r][c], odd_kept, b[r * b_stride + kChainPairs + at]);
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
