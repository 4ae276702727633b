// Sixteen virtual fp32 lanes on AArch64 NEON: four registers. See lanes16_avx2.h for the contract; included only by
// ops_kernels_neon.cpp.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tensorfold::ops::cpu {
namespace {

constexpr int kMicroRows = 2;

struct F32x16 {
  float32x4_t v[4];
};
struct I32x16 {
  int32x4_t v[4];
};
struct Mask16 {
  uint32x4_t v[4];
};

#define TF_EACH_QUARTER(type, expression)          \
  type r;                                          \
  for (int i = 0; i < 4; ++i) r.v[i] = expression; \
  return r

inline F32x16 splat(float x) {
  TF_EACH_QUARTER(F32x16, vdupq_n_f32(x));
}
inline I32x16 splat_int(std::int32_t x) {
  TF_EACH_QUARTER(I32x16, vdupq_n_s32(x));
}
inline F32x16 load(const float* p) {
  TF_EACH_QUARTER(F32x16, vld1q_f32(p + 4 * i));
}
inline void store(float* p, F32x16 x) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.v[i]);
}
inline I32x16 lane_indices() {
  static const std::int32_t kIndices[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  TF_EACH_QUARTER(I32x16, vld1q_s32(kIndices + 4 * i));
}
inline F32x16 load_first(const float* p, std::int64_t n) {
  if (n >= 16) return load(p);
  float lanes[16] = {};
  if (n > 0) std::memcpy(lanes, p, static_cast<std::size_t>(n) * sizeof(float));
  return load(lanes);
}
inline void store_first(float* p, F32x16 x, std::int64_t n) {
  if (n >= 16) return store(p, x);
  float lanes[16];
  store(lanes, x);
  if (n > 0) std::memcpy(p, lanes, static_cast<std::size_t>(n) * sizeof(float));
}

inline F32x16 add(F32x16 x, F32x16 y) {
  TF_EACH_QUARTER(F32x16, vaddq_f32(x.v[i], y.v[i]));
}
inline F32x16 sub(F32x16 x, F32x16 y) {
  TF_EACH_QUARTER(F32x16, vsubq_f32(x.v[i], y.v[i]));
}
inline F32x16 mul(F32x16 x, F32x16 y) {
  TF_EACH_QUARTER(F32x16, vmulq_f32(x.v[i], y.v[i]));
}
inline F32x16 div(F32x16 x, F32x16 y) {
  TF_EACH_QUARTER(F32x16, vdivq_f32(x.v[i], y.v[i]));
}
inline F32x16 fma(F32x16 x, F32x16 y, F32x16 z) {
  TF_EACH_QUARTER(F32x16, vfmaq_f32(z.v[i], x.v[i], y.v[i]));
}
// Compare and select: NEON's own maximum treats NaN and signed zeros differently from x86.
inline F32x16 max(F32x16 x, F32x16 y) {
  TF_EACH_QUARTER(F32x16, vbslq_f32(vcgtq_f32(x.v[i], y.v[i]), x.v[i], y.v[i]));
}
inline F32x16 min(F32x16 x, F32x16 y) {
  TF_EACH_QUARTER(F32x16, vbslq_f32(vcltq_f32(x.v[i], y.v[i]), x.v[i], y.v[i]));
}
inline Mask16 greater(F32x16 x, F32x16 y) {
  TF_EACH_QUARTER(Mask16, vcgtq_f32(x.v[i], y.v[i]));
}
inline Mask16 greater_int(I32x16 x, I32x16 y) {
  TF_EACH_QUARTER(Mask16, vcgtq_s32(x.v[i], y.v[i]));
}
inline Mask16 is_nan(F32x16 x) {
  TF_EACH_QUARTER(Mask16, vmvnq_u32(vceqq_f32(x.v[i], x.v[i])));
}
inline Mask16 both(Mask16 x, Mask16 y) {
  TF_EACH_QUARTER(Mask16, vandq_u32(x.v[i], y.v[i]));
}
inline F32x16 select(Mask16 mask, F32x16 x, F32x16 y) {
  TF_EACH_QUARTER(F32x16, vbslq_f32(mask.v[i], x.v[i], y.v[i]));
}
inline I32x16 bits_of(F32x16 x) {
  TF_EACH_QUARTER(I32x16, vreinterpretq_s32_f32(x.v[i]));
}
inline F32x16 float_of(I32x16 x) {
  TF_EACH_QUARTER(F32x16, vreinterpretq_f32_s32(x.v[i]));
}
inline F32x16 to_float(I32x16 x) {
  TF_EACH_QUARTER(F32x16, vcvtq_f32_s32(x.v[i]));
}
inline I32x16 add(I32x16 x, I32x16 y) {
  TF_EACH_QUARTER(I32x16, vaddq_s32(x.v[i], y.v[i]));
}
inline I32x16 sub(I32x16 x, I32x16 y) {
  TF_EACH_QUARTER(I32x16, vsubq_s32(x.v[i], y.v[i]));
}
inline I32x16 bit_and(I32x16 x, I32x16 y) {
  TF_EACH_QUARTER(I32x16, vandq_s32(x.v[i], y.v[i]));
}
inline I32x16 bit_or(I32x16 x, I32x16 y) {
  TF_EACH_QUARTER(I32x16, vorrq_s32(x.v[i], y.v[i]));
}
template <int kShift>
inline I32x16 shift_left(I32x16 x) {
  TF_EACH_QUARTER(I32x16, vshlq_n_s32(x.v[i], kShift));
}
template <int kShift>
inline I32x16 shift_right_logical(I32x16 x) {
  TF_EACH_QUARTER(I32x16, vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(x.v[i]), kShift)));
}
template <int kShift>
inline I32x16 shift_right_signed(I32x16 x) {
  TF_EACH_QUARTER(I32x16, vshrq_n_s32(x.v[i], kShift));
}

inline float fold_add(F32x16 x) {
  const float32x4_t four = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float fold_max(F32x16 x) {
  float lanes[16];
  store(lanes, x);
  float largest = lanes[0];
  for (int i = 1; i < 16; ++i) largest = largest > lanes[i] ? largest : lanes[i];
  return largest;
}
inline float square_root(float x) {
  return vget_lane_f32(vsqrt_f32(vdup_n_f32(x)), 0);
}

inline I32x16 load_pairs(const std::uint32_t* p) {
  TF_EACH_QUARTER(I32x16, vreinterpretq_s32_u32(vld1q_u32(p + 4 * i)));
}
inline F32x16 load_bf16(const std::uint16_t* p) {
  TF_EACH_QUARTER(F32x16, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)));
}
inline void store_low_halves(std::uint16_t* p, I32x16 x) {
  for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vmovn_u32(vreinterpretq_u32_s32(x.v[i])));
}

#undef TF_EACH_QUARTER

}  // namespace
}  // namespace tensorfold::ops::cpu
