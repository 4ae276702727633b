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

/// Where one lane's sums of a tile's 16 rows and the eight tokens from `first_token` on go. The residual that they are added to is
/// read at once by the constructor, so that it is on its way before the sums are there, and one read doesn't wait for the store
/// before it. Unless it `exists` the place may be any; nothing of it is read or may be stored.
class TileOutput {
 public:
  __device__ __forceinline__ TileOutput(const LinearOutput& out, const PackedPart& part, int tile, int first_token, int lane,
                                        bool exists = true)
      : out_(out), part_(part), row_(packed_row(part, tile, lane >> 2)) {
    const int token = first_token + 2 * (lane & 3);
    if (out.gated != nullptr) {
      to_ = out.gated + static_cast<std::int64_t>(token) * (part.rows / 2) + row_;
    } else {
      to_ = out.y + token * out.y_stride + part.first_row + row_;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wanted_[i] = exists && token + (i & 1) < out.rows && (out.gated != nullptr || row_ + (i >> 1) * between_rows() < part.rows);
    }
    if (out.accumulate == 0) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) before_[i] = wanted_[i] ? *place(i) : 0.0f;
  }

  /// Rows 0 and 8 of the lane's, of both tokens each.
  __device__ __forceinline__ void store(const float (&sums)[4]) const {
    float values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = sums[i];
    if (part_.bias != nullptr) {  // not + 0: that would lose the sign of one
      const float bias[2] = {part_.bias[min(row_, part_.rows - 1)], part_.bias[min(row_ + between_rows(), part_.rows - 1)]};
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] += bias[i >> 1];
    }
    if (out_.gated != nullptr) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        __nv_bfloat16* to = static_cast<__nv_bfloat16*>(to_) + i * (part_.rows / 2);
        if (wanted_[i]) *to = __float2bfloat16_rn(activate(out_.kind, values[i]) * values[2 + i]);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (wanted_[i]) *place(i) = out_.accumulate ? before_[i] + values[i] : values[i];
    }
  }

 private:
  /// As packed_row() has them.
  __device__ __forceinline__ int between_rows() const { return part_.paired_halves ? part_.rows / 2 : 8; }
  __device__ __forceinline__ float* place(int i) const {
    return static_cast<float*>(to_) + (i & 1) * out_.y_stride + (i >> 1) * between_rows();
  }

  const LinearOutput& out_;
  const PackedPart& part_;
  int row_;
  void* to_;  // y or gated
  bool wanted_[4];
  float before_[4];
};

}  // namespace tensorfold::ops::cuda
