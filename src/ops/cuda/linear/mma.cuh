// What the mma.sync kernels of this folder share: the matrix instruction, the sum over K-segments, and what happens to a
// sum once it is complete. The order in which segments are added is written here once (one-arithmetic.md, rule 1).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/cuda/activation.cuh"
#include "ops/cuda/linear/linear_call.h"

namespace tensorfold::ops::cuda {

/// d += a · b over one k16 step. Lane 4·g + t holds rows g (d[0], d[1]) and g + 8 (d[2], d[3]), tokens 2·t (d[0], d[2]) and
/// 2·t + 1.
__device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
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
