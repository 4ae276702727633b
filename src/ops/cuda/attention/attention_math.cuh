// The arithmetic of attention on CUDA: what happens to a row's scores, sums and partial results. Every kernel goes through
// these functions, so that a row's bits are the same whichever of them it meets.
//
// Per row and tile of 64 keys (s = q.k by ascending k16 steps, c = scale * log2(e)):
//   m' = max(m, tile max);  P_j = ex2(fma(s_j, c, -(m' * c)));  alpha = ex2((m - m') * c)
//   l  = fma(l, alpha, sum), sum over the thread's own keys (2t, 2t+1 of every 8) ascending;  m = m'
//   O  = O * alpha, then O += bf16(P) . V by ascending k16 steps
// At a segment's end the four threads of a quad add their l: xor 1, then 2. Segments merge in ascending order:
//   M' = max(M, m);  a = ex2((M - M') * c);  b = ex2((m - M') * c);  O_run = fma(O_run, a, O * b);  L = fma(L, a, l * b)
// and a row ends as bf16((O_run / L) * sigmoid(gate)). Before the first key M, m are -inf and O_run, O, L, l are 0; where a
// maximum is still -inf the exponents are taken relative to 0, so that tiles and segments without visible keys change nothing.
// (A zero's sign may change in such a step: finish() drops it.)
#pragma once

#include <cstdint>

#include "ops/cuda/activation.cuh"

namespace tensorfold::ops::cuda {

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

/// Running maximum and sum of two rows (g and g + 8 of a 16-row fragment) within a segment.
struct SegmentState {
  float maximum[2];
  float sum[2];
  __device__ __forceinline__ void open() {
    maximum[0] = maximum[1] = minus_infinity();
    sum[0] = sum[1] = 0.0f;
  }
  /// Adds the quad's four sums.
  __device__ __forceinline__ void close() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = __fadd_rn(sum[r], __shfl_xor_sync(~0u, sum[r], 1));
      sum[r] = __fadd_rn(sum[r], __shfl_xor_sync(~0u, sum[r], 2));
    }
  }
};

/// Which keys of a tile two rows see: tile-relative, inclusive.
struct VisibleKeys {
  int first[2];
  int last[2];
};

/// Scores in the accumulator layout of one m16n64 fragment: s[8 * 4], columns n * 8 + 2t (+1), rows g (0, 1) and g + 8 (2, 3).
/// Here and below `kHalves` is 1 where rows g + 8 hold nothing: then nothing is done for them.
template <int kHalves = 2>
__device__ __forceinline__ void mask_scores(float (&s)[32], const VisibleKeys& keys, int quad_lane) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 2 * kHalves; ++i) {
      const int key = n * 8 + 2 * quad_lane + (i & 1), r = i >> 1;
      if (key < keys.first[r] || key > keys.last[r]) s[n * 4 + i] = minus_infinity();
    }
  }
}

/// Scores become probabilities in place; `alpha` is what the sums so far are to be multiplied by.
template <int kHalves = 2>
__device__ __forceinline__ void softmax_tile(float (&s)[32], SegmentState& state, float (&alpha)[2], float c) {
#pragma unroll
  for (int r = 0; r < kHalves; ++r) {
    float largest = minus_infinity();
#pragma unroll
    for (int n = 0; n < 8; ++n) largest = fmaxf(largest, fmaxf(s[n * 4 + r * 2], s[n * 4 + r * 2 + 1]));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    const float maximum = fmaxf(state.maximum[r], largest);
    const float base = maximum == minus_infinity() ? 0.0f : maximum;
    alpha[r] = exp2_approximate(__fmul_rn(__fsub_rn(state.maximum[r], base), c));
    const float shift = -__fmul_rn(base, c);
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& p = s[n * 4 + r * 2 + i];
        p = exp2_approximate(__fmaf_rn(p, c, shift));
        sum = __fadd_rn(sum, p);
      }
    }
    state.sum[r] = __fmaf_rn(state.sum[r], alpha[r], sum);
    state.maximum[r] = maximum;
  }
}

/// Probabilities rounded to bf16 as the A operand of four k16 steps: p[step * 4 ..].
__device__ __forceinline__ void pack_probabilities(const float (&s)[32], std::uint32_t (&p)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) p[i] = bf16_pair(s[2 * i], s[2 * i + 1]);
}

/// O * alpha. A factor of exactly 1 changes nothing, so a warp whose rows all have it may skip the work.
template <int kHalves = 2, int kCount>
__device__ __forceinline__ void rescale(float (&o)[kCount], const float (&alpha)[2]) {
  if (!__any_sync(~0u, alpha[0] != 1.0f || (kHalves == 2 && alpha[1] != 1.0f))) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (((i >> 1) & 1) < kHalves) o[i] = __fmul_rn(o[i], alpha[(i >> 1) & 1]);
  }
}

/// The fold of one more segment (maximum m) into what has been folded (maximum `into`, which moves on).
struct FoldFactors {
  float keep, add;
};
__device__ __forceinline__ FoldFactors fold_factors(float& into, float m, float c) {
  const float maximum = fmaxf(into, m);
  const float base = maximum == minus_infinity() ? 0.0f : maximum;
  const FoldFactors factors = {exp2_approximate(__fmul_rn(__fsub_rn(into, base), c)), exp2_approximate(__fmul_rn(__fsub_rn(m, base), c))};
  into = maximum;
  return factors;
}
__device__ __forceinline__ float fold(float into, float next, FoldFactors f) {
  return __fmaf_rn(into, f.keep, __fmul_rn(next, f.add));
}

/// The row's output before its one rounding.
__device__ __forceinline__ float finish(float output, float sum) { return __fdiv_rn(__fadd_rn(output, 0.0f), sum); }

}  // namespace tensorfold::ops::cuda
