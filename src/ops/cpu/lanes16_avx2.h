// Sixteen virtual fp32 lanes on AVX2 with FMA: two registers. The kernels (kernels_*.inl) are written once against this
// type; its AVX-512 and NEON twins give the same bits. Included only by ops_kernels_avx2.cpp: everything has internal
// linkage and no standard template is used, so that no code compiled with these flags can leak into another unit.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tensorfold::ops::cpu {
namespace {

// Rows that one microkernel call carries: as many as the registers hold (kernels_attention.inl).
constexpr int kMicroRows = 2;

struct F32x16 {
  __m256 a, b;
};
struct I32x16 {
  __m256i a, b;
};
struct Mask16 {
  __m256 a, b;
};

inline F32x16 splat(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
inline I32x16 splat_int(std::int32_t x) {
  const __m256i v = _mm256_set1_epi32(x);
  return {v, v};
}
inline F32x16 load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline void store(float* p, F32x16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline I32x16 lane_indices() {
  return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}
/// The first n lanes from memory, zeros after them; nothing beyond is touched.
inline F32x16 load_first(const float* p, std::int64_t n) {
  if (n >= 16) return load(p);
  const I32x16 index = lane_indices();
  const __m256i count = _mm256_set1_epi32(static_cast<int>(n));
  return {_mm256_maskload_ps(p, _mm256_cmpgt_epi32(count, index.a)),
          _mm256_maskload_ps(p + 8, _mm256_cmpgt_epi32(count, index.b))};
}
inline void store_first(float* p, F32x16 x, std::int64_t n) {
  if (n >= 16) return store(p, x);
  const I32x16 index = lane_indices();
  const __m256i count = _mm256_set1_epi32(static_cast<int>(n));
  _mm256_maskstore_ps(p, _mm256_cmpgt_epi32(count, index.a), x.a);
  _mm256_maskstore_ps(p + 8, _mm256_cmpgt_epi32(count, index.b), x.b);
}

inline F32x16 add(F32x16 x, F32x16 y) {
  return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
inline F32x16 sub(F32x16 x, F32x16 y) {
  return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
inline F32x16 mul(F32x16 x, F32x16 y) {
  return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
inline F32x16 div(F32x16 x, F32x16 y) {
  return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
/// x·y + z in one rounding.
inline F32x16 fma(F32x16 x, F32x16 y, F32x16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
/// x > y ? x : y (so y when either is a NaN).
inline F32x16 max(F32x16 x, F32x16 y) {
  return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
/// x < y ? x : y.
inline F32x16 min(F32x16 x, F32x16 y) {
  return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}
inline Mask16 greater(F32x16 x, F32x16 y) {
  return {_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ)};
}
inline Mask16 greater_int(I32x16 x, I32x16 y) {
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(x.a, y.a)), _mm256_castsi256_ps(_mm256_cmpgt_epi32(x.b, y.b))};
}
inline Mask16 is_nan(F32x16 x) {
  return {_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q), _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q)};
}
inline Mask16 both(Mask16 x, Mask16 y) {
  return {_mm256_and_ps(x.a, y.a), _mm256_and_ps(x.b, y.b)};
}
/// mask ? x : y, lane by lane.
inline F32x16 select(Mask16 mask, F32x16 x, F32x16 y) {
  return {_mm256_blendv_ps(y.a, x.a, mask.a), _mm256_blendv_ps(y.b, x.b, mask.b)};
}
inline I32x16 bits_of(F32x16 x) {
  return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)};
}
inline F32x16 float_of(I32x16 x) {
  return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)};
}
inline F32x16 to_float(I32x16 x) {
  return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}
inline I32x16 add(I32x16 x, I32x16 y) {
  return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
inline I32x16 sub(I32x16 x, I32x16 y) {
  return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}
inline I32x16 bit_and(I32x16 x, I32x16 y) {
  return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
}
inline I32x16 bit_or(I32x16 x, I32x16 y) {
  return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)};
}
template <int kShift>
inline I32x16 shift_left(I32x16 x) {
  return {_mm256_slli_epi32(x.a, kShift), _mm256_slli_epi32(x.b, kShift)};
}
template <int kShift>
inline I32x16 shift_right_logical(I32x16 x) {
  return {_mm256_srli_epi32(x.a, kShift), _mm256_srli_epi32(x.b, kShift)};
}
template <int kShift>
inline I32x16 shift_right_signed(I32x16 x) {
  return {_mm256_srai_epi32(x.a, kShift), _mm256_srai_epi32(x.b, kShift)};
}

/// Lanes added by halves: 8, 4, 2, 1.
inline float fold_add(F32x16 x) {
  const __m256 eight = _mm256_add_ps(x.a, x.b);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
/// The largest lane; any value when a lane is a NaN.
inline float fold_max(F32x16 x) {
  const __m256 eight = _mm256_max_ps(x.a, x.b);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float square_root(float x) {
  return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
}

/// Sixteen 32-bit words from memory, each a pair of bf16 (even element in the low half).
inline I32x16 load_pairs(const std::uint32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
/// Sixteen bf16 widened to fp32.
inline F32x16 load_bf16(const std::uint16_t* p) {
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(raw));
  const __m256i high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(raw, 1));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
}
/// Stores the low 16 bits of every lane.
inline void store_low_halves(std::uint16_t* p, I32x16 x) {
  const __m256i packed = _mm256_packus_epi32(x.a, x.b);  // a0-3 b0-3 a4-7 b4-7
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}

}  // namespace
}  // namespace tensorfold::ops::cpu
