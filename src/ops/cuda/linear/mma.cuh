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

/// Where one lane's sums of a tile's 16 rows and the eight tokens from `first_token` on go. What they are added to (a bias, the
/// residual in y) is read at once by the constructor, so that it is on its way before the sums are there, and one read doesn't
/// wait for the store before it. Unless it `exists` the place may be any; nothing of it is read or may be stored.
class TileOutput {
 public:
  __device__ __forceinline__ TileOutput(const LinearOutput& out, const PackedPart& part, int tile, int first_token, int lane,
                                         bool exists = true)
      : out_(out), has_bias_(part.bias != nullptr) {
    const int rows[2] = {packed_row(part, tile, lane >> 2), packed_row(part, tile, (lane >> 2) + 8)};
    const bool gated = out.gated != nullptr;
    const int token = first_token + 2 * (lane & 3);
    const std::int64_t stride = gated ? part.rows / 2 : out.y_stride;
    const std::int64_t first = token * stride + rows[0] + (gated ? 0 : part.first_row);
    y_ = gated ? nullptr : out.y + first;
    gated_ = gated ? out.gated + first : nullptr;
    between_tokens_ = static_cast<int>(stride);
    between_rows_ = rows[1] - rows[0];
#pragma unroll
    for (int i = 0; i < 4; ++i) wanted_[i] = exists && token + (i & 1) < out.rows && (gated || rows[i >> 1] < part.rows);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if (has_bias_ && exists) bias_[row] = part.bias[min(rows[row], part.rows - 1)];
    }
    if (out.accumulate == 0) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) before_[i] = wanted_[i] ? y_[offset(i)] : 0.0f;
  }

  /// Rows 0 and 8 of the lane's, of both tokens each.
  __device__ __forceinline__ void store(const float (&sums)[4]) const {
    float values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = has_bias_ ? sums[i] + bias_[i >> 1] : sums[i];  // not + 0: that would lose the sign of one
    if (gated_ != nullptr) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (wanted_[i]) gated_[offset(i)] = __float2bfloat16_rn(activate(out_.kind, values[i]) * values[2 + i]);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (wanted_[i]) y_[offset(i)] = out_.accumulate ? before_[i] + values[i] : values[i];
    }
  }

 private:
  __device__ __forceinline__ int offset(int i) const { return (i & 1) * between_tokens_ + (i >> 1) * between_rows_; }

  const LinearOutput& out_;
  float* y_;
  __nv_bfloat16* gated_;
  bool has_bias_, wanted_[4];
  float bias_[2], before_[4];
  int between_tokens_, between_rows_;
};

}  // namespace tensorfold::ops::cuda
