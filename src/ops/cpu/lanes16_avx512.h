// Sixteen virtual fp32 lanes on AVX-512 (F, BW, DQ, VL): one register. See lanes16_avx2.h for the contract; included
// only by ops_kernels_avx512.cpp and ops_kernels_avx512_bf16.cpp.
#pragma once

// GCC 12's own intrinsics start from "undefined" values and trip these warnings wherever they are inlined.
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tensorfold::ops::cpu {
namespace {

constexpr int kMicroRows = 8;

struct F32x16 {
  __m512 v;
};
struct I32x16 {
  __m512i v;
};
struct Mask16 {
  __mmask16 m;
};

inline __mmask16 first_lanes(std::int64_t n) {
  return n >= 16 ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << n) - 1u);
}

inline F32x16 splat(float x) {
  return {_mm512_set1_ps(x)};
}
inline I32x16 splat_int(std::int32_t x) {
  return {_mm512_set1_epi32(x)};
}
inline F32x16 load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
inline void store(float* p, F32x16 x) {
  _mm512_storeu_ps(p, x.v);
}
inline I32x16 lane_indices() {
  return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}
inline F32x16 load_first(const float* p, std::int64_t n) {
  return {_mm512_maskz_loadu_ps(first_lanes(n), p)};
}
inline void store_first(float* p, F32x16 x, std::int64_t n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), x.v);
}

inline F32x16 add(F32x16 x, F32x16 y) {
  return {_mm512_add_ps(x.v, y.v)};
}
inline F32x16 sub(F32x16 x, F32x16 y) {
  return {_mm512_sub_ps(x.v, y.v)};
}
inline F32x16 mul(F32x16 x, F32x16 y) {
  return {_mm512_mul_ps(x.v, y.v)};
}
inline F32x16 div(F32x16 x, F32x16 y) {
  return {_mm512_div_ps(x.v, y.v)};
}
inline F32x16 fma(F32x16 x, F32x16 y, F32x16 z) {
  return {_mm512_fmadd_ps(x.v, y.v, z.v)};
}
inline F32x16 max(F32x16 x, F32x16 y) {
  return {_mm512_max_ps(x.v, y.v)};
}
inline F32x16 min(F32x16 x, F32x16 y) {
  return {_mm512_min_ps(x.v, y.v)};
}
inline Mask16 greater(F32x16 x, F32x16 y) {
  return {_mm512_cmp_ps_mask(x.v, y.v, _CMP_GT_OQ)};
}
inline Mask16 greater_int(I32x16 x, I32x16 y) {
  return {_mm512_cmpgt_epi32_mask(x.v, y.v)};
}
inline Mask16 is_nan(F32x16 x) {
  return {_mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q)};
}
inline Mask16 both(Mask16 x, Mask16 y) {
  return {static_cast<__mmask16>(x.m & y.m)};
}
inline F32x16 select(Mask16 mask, F32x16 x, F32x16 y) {
  return {_mm512_mask_blend_ps(mask.m, y.v, x.v)};
}
inline I32x16 bits_of(F32x16 x) {
  return {_mm512_castps_si512(x.v)};
}
inline F32x16 float_of(I32x16 x) {
  return {_mm512_castsi512_ps(x.v)};
}
inline F32x16 to_float(I32x16 x) {
  return {_mm512_cvtepi32_ps(x.v)};
}
inline I32x16 add(I32x16 x, I32x16 y) {
  return {_mm512_add_epi32(x.v, y.v)};
}
inline I32x16 sub(I32x16 x, I32x16 y) {
  return {_mm512_sub_epi32(x.v, y.v)};
}
inline I32x16 bit_and(I32x16 x, I32x16 y) {
  return {_mm512_and_si512(x.v, y.v)};
}
inline I32x16 bit_or(I32x16 x, I32x16 y) {
  return {_mm512_or_si512(x.v, y.v)};
}
template <int kShift>
inline I32x16 shift_left(I32x16 x) {
  return {_mm512_slli_epi32(x.v, kShift)};
}
template <int kShift>
inline I32x16 shift_right_logical(I32x16 x) {
  return {_mm512_srli_epi32(x.v, kShift)};
}
template <int kShift>
inline I32x16 shift_right_signed(I32x16 x) {
  return {_mm512_srai_epi32(x.v, kShift)};
}

inline float fold_add(F32x16 x) {
  const __m256 high = _mm512_extractf32x8_ps(x.v, 1);
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x.v), high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float fold_max(F32x16 x) {
  const __m256 high = _mm512_extractf32x8_ps(x.v, 1);
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x.v), high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float square_root(float x) {
  return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
}

inline I32x16 load_pairs(const std::uint32_t* p) {
  return {_mm512_loadu_si512(p)};
}
inline F32x16 load_bf16(const std::uint16_t* p) {
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16))};
}
inline void store_low_halves(std::uint16_t* p, I32x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x.v));
}

}  // namespace
}  // namespace tensorfold::ops::cpu
