// The order in which a layer's K-segments are added (one-arithmetic.md, rule 1), for kernels that meet them one by one in
// ascending order: one after the other, or as a binary tree over eight, in which subtrees without segments don't exist.
#pragma once

#include <cstdint>

#include "ops/cuda/linear/packed_linear.h"

namespace tensorfold::ops::cuda::experts {

/// Adds segments of `count` values each. `levels`: binary digits that a segment's index may have. Sequential order takes one.
template <int count, int levels>
struct SegmentSum {
  float parked[levels][count];  // tree: level l holds the sum of 2^l segments while bit l of the number added is set

  /// `values` is segment `index`, counted from 0 without gaps.
  __device__ __forceinline__ void add(int index, bool tree, const float (&values)[count]) {
    if (!tree) {
#pragma unroll
      for (int i = 0; i < count; ++i) parked[0][i] = index == 0 ? values[i] : parked[0][i] + values[i];
      return;
    }
    float sum[count];
#pragma unroll
    for (int i = 0; i < count; ++i) sum[i] = values[i];
    bool placed = false;
#pragma unroll
    for (int level = 0; level < levels; ++level) {
      if (placed) continue;
      if (level == levels - 1 || (index >> level & 1) == 0) {
        // The topmost level's second half ends the sum: finish() finds it there alone.
        const bool ends = index >> level & 1;
#pragma unroll
        for (int i = 0; i < count; ++i) parked[level][i] = ends ? parked[level][i] + sum[i] : sum[i];
        placed = true;
      } else {
#pragma unroll
        for (int i = 0; i < count; ++i) sum[i] = parked[level][i] + sum[i];
      }
    }
  }

  /// The sum of the `segments` that were added.
  __device__ __forceinline__ void finish(int segments, bool tree, float (&result)[count]) const {
    if (!tree || segments == 1 << levels) {
      constexpr int kTop = levels - 1;
#pragma unroll
      for (int i = 0; i < count; ++i) result[i] = tree ? parked[kTop][i] : parked[0][i];
      return;
    }
    bool any = false;
#pragma unroll
    for (int level = 0; level < levels; ++level) {
      if ((segments >> level & 1) == 0) continue;
#pragma unroll
      for (int i = 0; i < count; ++i) result[i] = any ? parked[level][i] + result[i] : parked[level][i];
      any = true;
    }
  }
};

}  // namespace tensorfold::ops::cuda::experts
