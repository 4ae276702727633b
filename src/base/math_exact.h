// Our own double-precision logarithm and exponential, compiled for host and device from one source, so that a draw made
// by the CPU and a draw made by a GPU are the same draw (one-arithmetic.md, rule 10). Only +, -, *, / and integer
// operations are used, each correctly rounded everywhere; nothing is fused. Both are within one unit in the last place,
// which tests check against libm; what callers rely on is that the bits never differ between machines.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#if defined(__CUDACC__)
#define TF_HOST_DEVICE __host__ __device__
#else
#define TF_HOST_DEVICE
#endif

#if defined(__GNUC__)
#define TF_ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define TF_ALWAYS_INLINE inline
#endif

namespace tensorfold {

TF_HOST_DEVICE TF_ALWAYS_INLINE std::uint64_t double_bits(double value) {
#if defined(__CUDA_ARCH__)
  return static_cast<std::uint64_t>(__double_as_longlong(value));
#else
  return std::bit_cast<std::uint64_t>(value);
#endif
}

TF_HOST_DEVICE TF_ALWAYS_INLINE double double_from_bits(std::uint64_t bits) {
#if defined(__CUDA_ARCH__)
  return __longlong_as_double(static_cast<long long>(bits));
#else
  return std::bit_cast<double>(bits);
#endif
}

namespace math_detail {

inline constexpr double kLn2High = 0x1.62e42fee00000p-1;  // 33 leading bits, so that small multiples are exact
inline constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
inline constexpr double kInverseLn2 = 0x1.71547652b82fep+0;
inline constexpr double kRoundShift = 0x1.8p52;  // adding it rounds to an integer held in the low bits

/// exp(x) = fraction · 2^k with fraction in about [0.7, 1.42]; `shifted` carries k in its low bits. |x| < 1500.
/// Branch-free, so that loops over it vectorise.
struct ExpParts {
  double fraction;
  double shifted;
};
TF_HOST_DEVICE TF_ALWAYS_INLINE ExpParts exp_parts(double x) {
  const double shifted = x * kInverseLn2 + kRoundShift;
  const double k = shifted - kRoundShift;
  const double high = x - k * kLn2High;
  const double low = k * kLn2Low;
  const double r = high - low;
  const double correction = (high - r) - low;
  // (exp(r) - 1 - r) / r², Taylor; |r| <= ln(2)/2 leaves a remainder below 2^-60.
  double tail = 1.0 / 87178291200.0;
  tail = tail * r + 1.0 / 6227020800.0;
  tail = tail * r + 1.0 / 479001600.0;
  tail = tail * r + 1.0 / 39916800.0;
  tail = tail * r + 1.0 / 3628800.0;
  tail = tail * r + 1.0 / 362880.0;
  tail = tail * r + 1.0 / 40320.0;
  tail = tail * r + 1.0 / 5040.0;
  tail = tail * r + 1.0 / 720.0;
  tail = tail * r + 1.0 / 120.0;
  tail = tail * r + 1.0 / 24.0;
  tail = tail * r + 1.0 / 6.0;
  tail = tail * r + 0.5;
  return {1.0 + (r + (r * r * tail + correction)), shifted};
}

}  // namespace math_detail

/// exp(x) for x in [-700, 700]: no special cases, so loops over it vectorise. Bit-equal to exp_exact there.
TF_HOST_DEVICE TF_ALWAYS_INLINE double exp_exact_bounded(double x) {
  const math_detail::ExpParts parts = math_detail::exp_parts(x);
  // The low 12 bits of `shifted` are k modulo 4096; the shift drops everything above them.
  return parts.fraction * double_from_bits((double_bits(parts.shifted) + 1023u) << 52);
}

TF_HOST_DEVICE inline double exp_exact(double x) {
  if (x != x) return x;
  if (x > 709.782712893384) return std::numeric_limits<double>::infinity();
  if (x < -745.2) return 0.0;
  if (x >= -700.0 && x <= 700.0) return exp_exact_bounded(x);
  // Near the ends of the range 2^k itself may not be representable: two steps, one of which may round.
  const double step = x < 0.0 ? 0x1p-200 : 0x1p200;
  const math_detail::ExpParts parts = math_detail::exp_parts(x);
  const std::uint64_t shift = x < 0.0 ? 200u : static_cast<std::uint64_t>(-200);
  return parts.fraction * double_from_bits((double_bits(parts.shifted) + shift + 1023u) << 52) * step;
}

/// Natural logarithm; -inf for x <= 0 (a probability that rounded to zero), NaN for NaN.
TF_HOST_DEVICE inline double log_exact(double x) {
  if (x != x) return x;
  if (x <= 0.0) return -std::numeric_limits<double>::infinity();
  if (x > std::numeric_limits<double>::max()) return x;
  std::int64_t exponent = 0;
  if (x < std::numeric_limits<double>::min()) {
    x *= 0x1p54;
    exponent = -54;
  }
  const std::uint64_t bits = double_bits(x);
  exponent += static_cast<std::int64_t>(bits >> 52) - 1023;
  double m = double_from_bits((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
  if (m > 0x1.6a09e667f3bcdp+0) {  // sqrt(2): m in (0.7, 1.42) keeps the series short
    m *= 0.5;
    ++exponent;
  }
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  // log(1 + f) = 2·atanh(s) = f - s·(f - series), series = 2z/3 + 2z²/5 + ...
  double series = 2.0 / 23.0;
  series = series * z + 2.0 / 21.0;
  series = series * z + 2.0 / 19.0;
  series = series * z + 2.0 / 17.0;
  series = series * z + 2.0 / 15.0;
  series = series * z + 2.0 / 13.0;
  series = series * z + 2.0 / 11.0;
  series = series * z + 2.0 / 9.0;
  series = series * z + 2.0 / 7.0;
  series = series * z + 2.0 / 5.0;
  series = series * z + 2.0 / 3.0;
  series *= z;
  const double k = static_cast<double>(exponent);
  return k * math_detail::kLn2High - ((s * (f - series) - k * math_detail::kLn2Low) - f);
}

}  // namespace tensorfold
