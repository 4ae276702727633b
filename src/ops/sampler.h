// The keyed sampler (engine.md 2) as one header for host and device: noise, order, filters and the draw. A draw is a
// pure function of (row logits, rule, absolute position): it consumes no random state, so rejected drafts, neighbours
// and restarts can't move it. Everything here is plain double arithmetic from base/math_exact.h, bit-equal on both
// sides; the host's vectorised search over a whole vocabulary stands in engine/host_sampler.h, a GPU's in ops/cuda/draw.cu; both must give the same tokens.
//
// The draw, for temperature T > 0:
//   candidates  every finite logit that the mask allows, ordered by (logit descending, id ascending); +0 equals -0
//   top-k       the first k of them (k <= 0: all)
//   s_i         logit_i / max(T, 1e-6)
//   top-p       0 < p < 1. With 1 <= k <= 256: softmax over the kept k, cumulative sum in order, keep #(cum < p) + 1.
//               Beyond, and without top-k: integer masses floor(exp(s_i - s_0) · 2^40) of the kept ones, whose sums need
//               no order, need = ceil(p · total), keep #(cum < need) + 1. So k >= vocabulary is top-k off.
//   min-p       keep s_i >= s_0 + ln(min_p)
//   result      argmax(s_i + g_i); on equal scores the earlier candidate
// T <= 0: the first candidate.
#pragma once

#include <bit>
#include <cstdint>

#include "base/math_exact.h"
#include "ops/sampling_rule.h"

namespace tensorfold::sampling {

inline constexpr std::int32_t kSortedCandidatesMax = 256;  // a top-k up to here is sorted and summed in order

struct Candidate {
  float logit = 0.0f;
  std::int32_t token = 0;
};

/// The order of candidates. `>` on floats already treats +0 and -0 as equal.
TF_HOST_DEVICE TF_ALWAYS_INLINE bool comes_before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

/// The logits' order as a number's: ascending with the logit, +0 and -0 alike.
TF_HOST_DEVICE TF_ALWAYS_INLINE std::uint32_t sort_key(float logit) {
  const float value = logit == 0.0f ? 0.0f : logit;
#if defined(__CUDA_ARCH__)
  const std::uint32_t bits = __float_as_uint(value);
#else
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
#endif
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

TF_HOST_DEVICE TF_ALWAYS_INLINE std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBu;
  x ^= x >> 31;
  return x;
}

/// Depends on the request only.
TF_HOST_DEVICE inline std::uint64_t request_key(std::uint64_t seed) {
  return mix(seed + 0x9E3779B97F4A7C15u);
}

/// `position` is the absolute index of the token being drawn, never an offset in the reply or the window.
TF_HOST_DEVICE inline std::uint64_t row_key(std::uint64_t request, std::uint64_t position) {
  return mix(request ^ (position * 0xD1B54A32D192ED03u));
}

/// 53 bits of noise; the Gumbel value below grows with them.
TF_HOST_DEVICE TF_ALWAYS_INLINE std::uint64_t noise_bits(std::uint64_t row, std::int32_t token) {
  return mix(row ^ static_cast<std::uint64_t>(static_cast<std::uint32_t>(token))) >> 11;
}

TF_HOST_DEVICE inline double uniform(std::uint64_t noise) {
  return static_cast<double>(noise) * 0x1p-53 + 0x1p-54;
}

TF_HOST_DEVICE inline double gumbel(std::uint64_t noise) {
  return -log_exact(-log_exact(uniform(noise)));
}

TF_HOST_DEVICE TF_ALWAYS_INLINE double effective_temperature(double temperature) {
  return temperature > 1e-6 ? temperature : 1e-6;
}

TF_HOST_DEVICE TF_ALWAYS_INLINE double scaled(float logit, double effective_temperature) {
  return static_cast<double>(logit) / effective_temperature;
}

/// floor(exp(below_max) · 2^40) as a double that holds an integer; below_max = s_i - s_0 <= 0 (-inf allowed).
/// Branch-free: loops over it vectorise.
TF_HOST_DEVICE TF_ALWAYS_INLINE double nucleus_mass(double below_max) {
  const double x = below_max > -40.0 ? below_max : -40.0;
  const double mass = exp_exact_bounded(x) * 0x1p40;
  const double nearest = (mass + 0x1p52) - 0x1p52;
  return nearest - (nearest > mass ? 1.0 : 0.0);
}

/// ceil(p · total), exactly: p is a binary fraction.
TF_HOST_DEVICE inline std::uint64_t nucleus_need(std::uint64_t total, double p) {
  __extension__ typedef unsigned __int128 Wide;
  const std::uint64_t bits = double_bits(p);
  const int exponent = static_cast<int>(bits >> 52);  // 0 < p < 1: at most 1022
  const std::uint64_t fraction = bits & 0x000fffffffffffffu;
  const Wide mantissa = exponent == 0 ? fraction : (fraction | 0x0010000000000000u);
  const int shift = exponent == 0 ? 1074 : 1075 - exponent;  // p = mantissa · 2^-shift
  const Wide product = mantissa * total;
  if (shift >= 127) return product == 0 ? 0 : 1;
  return static_cast<std::uint64_t>((product + ((static_cast<Wide>(1) << shift) - 1)) >> shift);
}

TF_HOST_DEVICE inline bool top_p_is_on(const SamplingRule& rule) {
  return rule.top_p > 0.0 && rule.top_p < 1.0;
}

/// Lowest scaled value that min-p keeps, given the first candidate's.
TF_HOST_DEVICE inline double min_p_bound(double first_scaled, double min_p) {
  return min_p > 0.0 ? first_scaled + log_exact(min_p) : -std::numeric_limits<double>::infinity();
}

/// Steps 2 to 5 over the kept top-k candidates, in order (1 <= count <= kSortedCandidatesMax, temperature > 0). Returns the winner's index.
TF_HOST_DEVICE inline std::int32_t draw_from_top(const Candidate* candidates, std::int32_t count,
                                                 const SamplingRule& rule, std::uint64_t row) {
  const double temperature = effective_temperature(rule.temperature);
  const double first = scaled(candidates[0].logit, temperature);
  std::int32_t kept = count;
  if (top_p_is_on(rule)) {
    double total = 0.0;
    for (std::int32_t i = 0; i < count; ++i) total += exp_exact(scaled(candidates[i].logit, temperature) - first);
    double cumulative = 0.0;
    kept = 0;
    while (kept < count) {
      cumulative += exp_exact(scaled(candidates[kept].logit, temperature) - first) / total;
      ++kept;
      if (!(cumulative < rule.top_p)) break;
    }
  }
  const double bound = min_p_bound(first, rule.min_p);
  std::int32_t winner = 0;
  double best = first + gumbel(noise_bits(row, candidates[0].token));
  for (std::int32_t i = 1; i < kept; ++i) {
    const double s = scaled(candidates[i].logit, temperature);
    if (!(s >= bound)) break;
    const double score = s + gumbel(noise_bits(row, candidates[i].token));
    if (score > best) {
      best = score;
      winner = i;
    }
  }
  return winner;
}

}  // namespace tensorfold::sampling
