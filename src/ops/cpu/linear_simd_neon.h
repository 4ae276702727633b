// Sixteen fp32 lanes on AArch64 NEON: four registers. Only the primitives that differ between instruction sets are
// here; the kernels are in linear_kernels.h. Included inside an unnamed namespace.

struct F32x16 {
  float32x4_t quarter[4];
};
struct U32x16 {
  uint32x4_t quarter[4];
};

// Six rows' chains, a row of weights and an input fill 29 of the 32 registers.
inline constexpr int kMicroPanels = 1;
inline constexpr int kMicroTokens = 6;
inline constexpr bool kTilesInRegisters = false;
inline constexpr bool kHasUnsignedToFloat = false;

#define TF_EACH_QUARTER(Type, i, expression)                  \
  Type result;                                                \
  for (int i = 0; i < 4; ++i) result.quarter[i] = expression; \
  return result

TF_INLINE F32x16 set1(float value) {
  TF_EACH_QUARTER(F32x16, i, vdupq_n_f32(value));
}
TF_INLINE F32x16 zero() {
  return set1(0.0f);
}
TF_INLINE F32x16 load(const float* p) {
  TF_EACH_QUARTER(F32x16, i, vld1q_f32(p + 4 * i));
}
TF_INLINE void store(float* p, F32x16 v) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, v.quarter[i]);
}
TF_INLINE F32x16 add(F32x16 a, F32x16 b) {
  TF_EACH_QUARTER(F32x16, i, vaddq_f32(a.quarter[i], b.quarter[i]));
}
TF_INLINE F32x16 mul(F32x16 a, F32x16 b) {
  TF_EACH_QUARTER(F32x16, i, vmulq_f32(a.quarter[i], b.quarter[i]));
}
TF_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  TF_EACH_QUARTER(F32x16, i, vfmaq_f32(c.quarter[i], a.quarter[i], b.quarter[i]));
}
TF_INLINE F32x16 negate(F32x16 a) {
  TF_EACH_QUARTER(F32x16, i, vnegq_f32(a.quarter[i]));
}

TF_INLINE U32x16 load_u32(const std::uint8_t* p) {
  TF_EACH_QUARTER(U32x16, i, vreinterpretq_u32_u8(vld1q_u8(p + 16 * i)));
}
template <int kShift>
TF_INLINE U32x16 shift_right(U32x16 v) {
  if constexpr (kShift == 0) {
    return v;  // the instruction's shift is 1 to 32
  } else {
    TF_EACH_QUARTER(U32x16, i, vshrq_n_u32(v.quarter[i], kShift));
  }
}
template <int kShift>
TF_INLINE U32x16 shift_left(U32x16 v) {
  TF_EACH_QUARTER(U32x16, i, vshlq_n_u32(v.quarter[i], kShift));
}
TF_INLINE U32x16 shift_right_by(U32x16 v, int shift) {
  TF_EACH_QUARTER(U32x16, i, vshlq_u32(v.quarter[i], vdupq_n_s32(-shift)));
}
TF_INLINE U32x16 mask(U32x16 v, std::uint32_t bits) {
  TF_EACH_QUARTER(U32x16, i, vandq_u32(v.quarter[i], vdupq_n_u32(bits)));
}
TF_INLINE U32x16 either(U32x16 a, U32x16 b) {
  TF_EACH_QUARTER(U32x16, i, vorrq_u32(a.quarter[i], b.quarter[i]));
}
TF_INLINE F32x16 as_float(U32x16 v) {
  TF_EACH_QUARTER(F32x16, i, vreinterpretq_f32_u32(v.quarter[i]));
}
TF_INLINE F32x16 to_float(U32x16 v) {
  TF_EACH_QUARTER(F32x16, i, vcvtq_f32_u32(v.quarter[i]));
}
TF_INLINE F32x16 unsigned_to_float(U32x16 v) {
  return to_float(v);  // not used: kHasUnsignedToFloat
}

/// fp32 of the low kBits (at most 4) bits, the others being anything.
template <int kBits>
TF_INLINE F32x16 low_code_to_float(U32x16 v) {
  return to_float(mask(v, (1u << kBits) - 1));
}

// The conversion keeps half denormals whatever the thread's mode: FZ is not about half precision, and FZ16 not about
// conversions.
TF_INLINE F32x16 load_f16(const std::uint8_t* p) {
  TF_EACH_QUARTER(F32x16, i, vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + 8 * i))));
}
TF_INLINE F32x16 load_bf16(const std::uint8_t* p) {
  TF_EACH_QUARTER(F32x16, i, vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p + 8 * i)), 16)));
}
TF_INLINE F32x16 load_i8(const std::uint8_t* p) {
  const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(p));
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes));
  const int16x8_t high = vmovl_high_s8(bytes);
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
          vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))};
}

// Adds 0x7fff plus the lowest bit of the kept part, then cuts: to_bf16 for every value but denormals, which the mode
// has flushed (or the product will). The bf16 conversion of ARMv8.6 is not in every ARM64 CPU.
TF_INLINE float32x4_t round_to_bf16(float32x4_t value) {
  const uint32x4_t bits = vreinterpretq_u32_f32(value);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t sum = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
  return vreinterpretq_f32_u32(vandq_u32(sum, vdupq_n_u32(0xffff0000u)));
}
TF_INLINE F32x16 round_to_bf16(F32x16 v) {
  TF_EACH_QUARTER(F32x16, i, round_to_bf16(v.quarter[i]));
}

#undef TF_EACH_QUARTER
