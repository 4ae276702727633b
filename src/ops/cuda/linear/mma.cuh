// What the linear kernels share beside weights: x as fragments, the sum over K-segments, and what happens to a sum once it is
// complete. The order in which segments are added is written here once (one-arithmetic.md, rule 1).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/cuda/activation.cuh"
#include "ops/cuda/instructions.cuh"
#include "ops/cuda/linear/linear_call.h"

namespace tensorfold::ops::cuda {

/// x[k], x[k + 1] as a fragment register, zero beyond K; `aligned`: two can be read at once, k and K are even.
__device__ __forceinline__ std::uint32_t input_pair(const __nv_bfloat16* row, int k, int columns, bool aligned) {
  if (aligned) return k < columns ? *reinterpret_cast<const std::uint32_t*>(row + k) : 0;
  const std::uint32_t low = k < columns ? __bfloat16_as_ushort(row[k]) : 0;
  const std::uint32_t high = k + 1 < columns ? __bfloat16_as_ushort(row[k + 1]) : 0;
  return low | high << 16;
}

/// The sum of up to eight segments that come in order, each a vector of `count` numbers: one after the other, or as the
/// binary tree ((s0+s1)+(s2+s3))+((s4+s5)+(s6+s7)) without those that don't exist. Every thread of a warp takes the same way.
template <int count>
class SegmentSum {
 public:
  __device__ __forceinline__ void add(const float (&segment)[count], int index, bool tree) {
    if (!tree) {
      fold(0, segment, index > 0);
      return;
    }
    // Like a binary counter: level l holds a complete subtree of 2^l segments when bit l of the index is set.
    if ((index & 1) == 0) return fold(0, segment, false);
    float sum[count];
    join(0, segment, sum);
    if ((index & 2) == 0) return fold(1, sum, false);
    join(1, sum, sum);
    if ((index & 4) == 0) return fold(2, sum, false);
    join(2, sum, sum);
    fold(0, sum, false);
  }
  /// The total of `segments` segments.
  __device__ __forceinline__ void finish(int segments, bool tree, float (&total)[count]) const {
    bool any = !tree || segments == 8;
    if (any) copy(0, total);
    if (any) return;
#pragma unroll
    for (int level = 0; level < 3; ++level) {
      if ((segments >> level & 1) == 0) continue;
      if (any) {
        join(level, total, total);
      } else {
        copy(level, total);
        any = true;
      }
    }
  }

 private:
  __device__ __forceinline__ void fold(int level, const float (&values)[count], bool add) {
#pragma unroll
    for (int i = 0; i < count; ++i) sums_[level][i] = add ? sums_[level][i] + values[i] : values[i];
  }
  __device__ __forceinline__ void join(int level, const float (&right)[count], float (&sum)[count]) const {
#pragma unroll
    for (int i = 0; i < count; ++i) sum[i] = sums_[level][i] + right[i];
  }
  __device__ __forceinline__ void copy(int level, float (&total)[count]) const {
#pragma unroll
    for (int i = 0; i < count; ++i) total[i] = sums_[level][i];
  }
  float sums_[3][count];
};

/// The same where all segments are at hand: the first of `values` becomes the total of the first `segments`.
template <int count>
__device__ __forceinline__ void sum_segments(float (&values)[kSegmentsMax][count], int segments, bool tree) {
  if (tree) {
    // Pairs, pairs of pairs, halves.
#pragma unroll
    for (int width = 1; width < kSegmentsMax; width *= 2) {
#pragma unroll
      for (int segment = 0; segment < kSegmentsMax; segment += 2 * width) {
        if (segment + width >= segments) continue;
#pragma unroll
        for (int i = 0; i < count; ++i) values[segment][i] = values[segment][i] + values[segment + width][i];
      }
    }
  } else {
#pragma unroll
    for (int segment = 1; segment < kSegmentsMax; ++segment) {
      if (segment >= segments) continue;
#pragma unroll
      for (int i = 0; i < count; ++i) values[0][i] = values[0][i] + values[segment][i];
    }
  }
}

/// Where complete sums go.
struct LinearOutput {
  float* y;
  std::int64_t y_stride;
  __nv_bfloat16* gated;
  std::int32_t rows;
  std::int32_t accumulate;
  ActivationKind kind;
};

inline LinearOutput linear_output(const LinearCall& call) {
  return {call.y, call.y_stride, static_cast<__nv_bfloat16*>(call.gated), call.rows, call.accumulate ? 1 : 0, call.kind};
}

/// Stores what one lane holds of a tile's 16 rows and the eight tokens from `first_token` on.
__device__ __forceinline__ void store_tile(const LinearOutput& out, const PackedPart& part, int tile, int first_token,
                                           int lane, const float (&sums)[4]) {
  const int low = packed_row(part, tile, lane >> 2), high = packed_row(part, tile, (lane >> 2) + 8);
  float bias[2] = {0.0f, 0.0f};
  if (part.bias != nullptr) {
    bias[0] = part.bias[min(low, part.rows - 1)];
    bias[1] = part.bias[min(high, part.rows - 1)];
  }
  const int token = first_token + 2 * (lane & 3);
  if (out.gated != nullptr) {
    const int width = part.rows / 2;
    __nv_bfloat16* to = out.gated + token * static_cast<std::int64_t>(width) + low;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float gate = sums[i], up = sums[2 + i];
      if (part.bias != nullptr) gate += bias[0], up += bias[1];
      if (token + i < out.rows) to[i * width] = __float2bfloat16_rn(activate(out.kind, gate) * up);
    }
    return;
  }
  float* to = out.y + token * out.y_stride + part.first_row + low;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int second = i >> 1;
    if (token + (i & 1) >= out.rows || (second ? high : low) >= part.rows) continue;
    float* y = to + (i & 1) * out.y_stride + second * (high - low);
    float value = sums[i];
    if (part.bias != nullptr) value += bias[second];  // not of a zero: that would lose the sign of one
    *y = out.accumulate ? *y + value : value;
  }
}

}  // namespace tensorfold::ops::cuda
