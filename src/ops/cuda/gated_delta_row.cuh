// What becomes of a row before the recurrence: convolution, L2 norms and gates, for one head by one warp. Apart from the launches
// because two make such rows: the one that prepares all rows of a pass, and windows of few rows, which prepare their own.
#pragma once

#include "ops/cuda/gated_delta.cuh"

namespace tensorfold::ops::cuda::delta {

/// A head of the convolution's channels.
struct Head {
  enum Kind { kQuery, kKey, kValue } kind;
  int index;          // among the heads of its kind
  int first_channel;
  int width;
};

__device__ __forceinline__ Head head_of(const Params& p, int unit) {
  const GatedDeltaGeometry& g = p.geometry;
  if (unit < g.k_heads) return {Head::kQuery, unit, unit * g.k_dim, g.k_dim};
  if (unit < 2 * g.k_heads) return {Head::kKey, unit - g.k_heads, unit * g.k_dim, g.k_dim};
  const int head = unit - 2 * g.k_heads;
  return {Head::kValue, head, 2 * g.k_heads * g.k_dim + head * g.v_dim, g.v_dim};
}

/// Weights of four channels; taps that the kernel lacks are zeros in front.
template <int kTaps>
struct TapWeights {
  float tap[4][kTaps];
  __device__ __forceinline__ void load(const Params& p, const Head& head, int first) {
    const int taps = p.geometry.conv_kernel;
    if (kTaps == 4 && taps == 4 && p.vectors && first < head.width) {
      const auto* rows = reinterpret_cast<const float4*>(p.conv_weight) + head.first_channel + first;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 row = rows[i];
        tap[i][0] = row.x;
        tap[i][1] = row.y;
        tap[i][2] = row.z;
        tap[i][3] = row.w;
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* weights = p.conv_weight + static_cast<std::int64_t>(head.first_channel + first + i) * taps;
      const bool inside = first + i < head.width;
#pragma unroll
      for (int j = 0; j < kTaps; ++j) {
        const int from = j - (kTaps - taps);
        tap[i][j] = inside && from >= 0 ? weights[from] : 0.0f;
      }
    }
  }
};

template <int kTaps>
__device__ __forceinline__ float4 convolve(const TapWeights<kTaps>& weights, const float4 (&x)[kTaps]) {
  float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int j = 0; j < kTaps; ++j) {
    sum.x = __fmaf_rn(weights.tap[0][j], x[j].x, sum.x);
    sum.y = __fmaf_rn(weights.tap[1][j], x[j].y, sum.y);
    sum.z = __fmaf_rn(weights.tap[2][j], x[j].z, sum.z);
    sum.w = __fmaf_rn(weights.tap[3][j], x[j].w, sum.w);
  }
  return {silu(sum.x), silu(sum.y), silu(sum.z), silu(sum.w)};
}

__device__ __forceinline__ float4 scaled(const float4& x, float factor) {
  return {__fmul_rn(x.x, factor), __fmul_rn(x.y, factor), __fmul_rn(x.z, factor), __fmul_rn(x.w, factor)};
}

/// A head of q or k, normed and rounded, to a row of the working rows' layout.
template <int kBlocks>
__device__ __forceinline__ void store_key(const Params& p, Head::Kind kind, std::uint16_t* row, const float4 (&y)[kBlocks],
                                          int thread) {
  float sum = 0.0f;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) sum = add_squares(sum, y[block]);
  const float inverse = inverse_root(__fadd_rn(add_warp(sum), 1e-6f));
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    float4 value = scaled(y[block], inverse);
    if (kind == Head::kQuery) value = scaled(value, p.query_scale);
    const int first = block * 128 + 4 * thread;
    if (first < p.k_padded()) {
      *reinterpret_cast<uint2*>(row + first) = {bf16_pair(value.x, value.y), bf16_pair(value.z, value.w)};
    }
  }
}

/// (growth, beta) of row `at` of a lane's sequence.
__device__ __forceinline__ float2 gates_of(const Params& p, const DeviceLane& lane, const float* slot, int at, int head,
                                           float decay, float bias) {
  const float* input = input_row(p, lane, slot, at);
  const bool is_replay = at < lane.replay_count;
  const float b = is_replay ? input[p.channels + head] : input[p.b_offset - p.qkv_offset + head];
  const float a = is_replay ? input[p.channels + p.geometry.v_heads + head] : input[p.a_offset - p.qkv_offset + head];
  return {exponential(__fmul_rn(decay, softplus(__fadd_rn(a, bias)))), sigmoid(b)};
}

}  // namespace tensorfold::ops::cuda::delta
