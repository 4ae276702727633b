// Transcendentals and the bf16 rounding over sixteen lanes. The polynomials are minimax fits of our own (relative error
// below 1e-8 before rounding); the tests hold each to its own bound of at most 2.5 ulp of libm. Results below the smallest normal are zero.
#pragma once

namespace tensorfold::ops::cpu {
namespace {

constexpr float kRoundMagic = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer in the low mantissa bits

inline F32x16 quiet_nan() {
  return float_of(splat_int(0x7fc00000));
}
inline F32x16 negate(F32x16 x) {
  return mul(x, splat(-1.0f));
}

inline F32x16 exp2_lanes(F32x16 x) {
  const F32x16 clamped = min(max(x, splat(-127.0f)), splat(128.0f));
  const F32x16 shifted = add(clamped, splat(kRoundMagic));
  const F32x16 f = sub(clamped, sub(shifted, splat(kRoundMagic)));
  F32x16 p = splat(0.0001559467218f);
  p = fma(p, f, splat(0.001340664362f));
  p = fma(p, f, splat(0.009617692992f));
  p = fma(p, f, splat(0.05550310552f));
  p = fma(p, f, splat(0.2402265278f));
  p = fma(p, f, splat(0.693147215f));
  p = fma(p, f, splat(1.0f));
  // The exponent field of p takes the integer; at x = 128 that gives infinity by itself.
  F32x16 y = float_of(add(bits_of(p), shift_left<23>(bits_of(shifted))));
  y = select(greater(splat(-126.0f), x), splat(0.0f), y);
  return select(is_nan(x), quiet_nan(), y);
}

inline F32x16 exp_lanes(F32x16 x) {
  const F32x16 clamped = min(max(x, splat(-88.0f)), splat(89.0f));
  const F32x16 shifted = fma(clamped, splat(1.44269504f), splat(kRoundMagic));
  const F32x16 n = sub(shifted, splat(kRoundMagic));
  F32x16 r = fma(n, splat(-0.693359375f), clamped);
  r = fma(n, splat(2.12194440e-4f), r);
  F32x16 p = splat(0.001381460877f);
  p = fma(p, r, splat(0.008368710503f));
  p = fma(p, r, splat(0.04166838748f));
  p = fma(p, r, splat(0.1666652068f));
  p = fma(p, r, splat(0.4999999345f));
  p = add(fma(mul(r, r), p, r), splat(1.0f));
  F32x16 y = float_of(add(bits_of(p), shift_left<23>(bits_of(shifted))));
  y = select(greater(splat(-87.3365f), x), splat(0.0f), y);
  y = select(greater(x, splat(88.72283f)), float_of(splat_int(0x7f800000)), y);
  return select(is_nan(x), quiet_nan(), y);
}

inline F32x16 sigmoid_lanes(F32x16 x) {
  return div(splat(1.0f), add(exp_lanes(negate(x)), splat(1.0f)));
}

inline F32x16 silu_lanes(F32x16 x) {
  return mul(x, sigmoid_lanes(x));
}

inline F32x16 tanh_lanes(F32x16 x) {
  const I32x16 sign = bit_and(bits_of(x), splat_int(INT32_MIN));
  const F32x16 magnitude = float_of(bit_and(bits_of(x), splat_int(0x7fffffff)));
  const F32x16 z = mul(x, x);
  F32x16 p = splat(0.002147207473f);
  p = fma(p, z, splat(-0.008182327674f));
  p = fma(p, z, splat(0.02170283301f));
  p = fma(p, z, splat(-0.05394718096f));
  p = fma(p, z, splat(0.1333320959f));
  p = fma(p, z, splat(-0.333333309f));
  const F32x16 small = fma(mul(x, z), p, x);
  const F32x16 e = exp_lanes(add(magnitude, magnitude));
  const F32x16 large = sub(splat(1.0f), div(splat(2.0f), add(e, splat(1.0f))));
  return select(greater(splat(0.625f), magnitude), small, float_of(bit_or(bits_of(large), sign)));
}

/// log(1 + u) for u >= 0: log of the rounded sum, plus what the rounding lost.
inline F32x16 log1p_lanes(F32x16 u) {
  const F32x16 t = add(splat(1.0f), u);
  const F32x16 lost = div(sub(u, sub(t, splat(1.0f))), t);
  const I32x16 exponent = shift_right_signed<23>(sub(bits_of(t), splat_int(0x3f3504f3)));  // t = 2^k·m, m in √½..√2
  const F32x16 f = sub(float_of(sub(bits_of(t), shift_left<23>(exponent))), splat(1.0f));
  const F32x16 k = to_float(exponent);
  F32x16 p = splat(0.06915593055f);
  p = fma(p, f, splat(-0.1178989749f));
  p = fma(p, f, splat(0.1187292028f));
  p = fma(p, f, splat(-0.123843296f));
  p = fma(p, f, splat(0.1421866388f));
  p = fma(p, f, splat(-0.1666925212f));
  p = fma(p, f, splat(0.2000222632f));
  p = fma(p, f, splat(-0.2499998657f));
  p = fma(p, f, splat(0.3333331045f));
  const F32x16 square = mul(f, f);
  F32x16 tail = mul(mul(square, f), p);
  tail = fma(square, splat(-0.5f), tail);
  tail = add(fma(k, splat(-2.12194440e-4f), lost), tail);
  return fma(k, splat(0.693359375f), add(f, tail));
}

inline F32x16 softplus_lanes(F32x16 x) {
  return select(greater(x, splat(20.0f)), x, log1p_lanes(exp_lanes(min(splat(20.0f), x))));
}

/// to_bf16 (base/bf16.h) on bit patterns; the result stands in the low half of each lane.
inline I32x16 bf16_bits(F32x16 x) {
  const I32x16 bits = bits_of(x);
  const I32x16 magnitude = bit_and(bits, splat_int(0x7fffffff));
  const I32x16 high = shift_right_logical<16>(bits);
  const I32x16 bias = add(bit_and(high, splat_int(1)), splat_int(0x7fff));
  const F32x16 rounded = float_of(shift_right_logical<16>(add(bits, bias)));
  const F32x16 quieted = float_of(bit_or(high, splat_int(0x0040)));
  const F32x16 zero = float_of(bit_and(high, splat_int(0x8000)));
  const F32x16 finite = select(greater_int(splat_int(0x00800000), magnitude), zero, rounded);
  return bits_of(select(greater_int(magnitude, splat_int(0x7f800000)), quieted, finite));
}

inline void store_bf16_first(std::uint16_t* p, F32x16 x, std::int64_t n) {
  if (n >= 16) return store_low_halves(p, bf16_bits(x));
  std::uint16_t lanes[16];
  store_low_halves(lanes, bf16_bits(x));
  for (std::int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

inline F32x16 rounded_to_bf16(F32x16 x) {
  return float_of(shift_left<16>(bf16_bits(x)));
}

/// Probabilities are in [0, 1] or the canonical NaN, and never denormal, so the plain rounding is enough.
inline F32x16 rounded_probability(F32x16 x) {
  const I32x16 bits = bits_of(x);
  const I32x16 bias = add(bit_and(shift_right_logical<16>(bits), splat_int(1)), splat_int(0x7fff));
  return float_of(bit_and(add(bits, bias), splat_int(static_cast<std::int32_t>(0xffff0000u))));
}

inline float sum_of_squares(const float* x, std::int64_t count) {
  F32x16 sum = splat(0.0f);
  for (std::int64_t i = 0; i < count; i += 16) {
    const F32x16 value = load_first(x + i, count - i);
    sum = fma(value, value, sum);
  }
  return fold_add(sum);
}

/// 1 / sqrt(mean(x²) + epsilon).
inline float inverse_rms(const float* x, std::int64_t width, float epsilon) {
  const float mean = sum_of_squares(x, width) * (1.0f / static_cast<float>(width));
  return 1.0f / square_root(mean + epsilon);
}

}  // namespace
}  // namespace tensorfold::ops::cpu
