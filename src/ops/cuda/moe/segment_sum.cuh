// The order in which a layer's K-segments are added (one-arithmetic.md, rule 1), as SegmentSum of linear/mma.cuh has it, in the
// form that the experts' kernels were measured with: values are added up where they are, and a pair's sum is carried on at once.
// The same bits by other machine code.
#pragma once

namespace tensorfold::ops::cuda::experts {

/// Adds up to eight segments of `count` values each, as a tree or one after the other.
template <int count>
struct CarriedSegmentSum {
  // Tree: level l holds the sum of 2^l segments while bit l of the number added is set. Otherwise level 0 holds the sum.
  static constexpr int kLevels = 3;
  float parked[kLevels][count];

  /// `values` is segment `index`, counted from 0 without gaps; it is changed.
  __device__ __forceinline__ void add(int index, bool tree, float (&values)[count]) {
    if (!tree) {
      if (index > 0) merge<0>(values);
      park<0>(values);
    } else {
      carry<0>(index, values);
    }
  }

  /// The sum of the `segments` that were added.
  __device__ __forceinline__ void finish(int segments, bool tree, float (&result)[count]) const {
    if (!tree) {
      copy<0>(result);
    } else if (segments == 1 << kLevels) {
      copy<kLevels - 1>(result);
    } else {
      bool any = false;
#pragma unroll
      for (int level = 0; level < kLevels; ++level) {
        if ((segments >> level & 1) == 0) continue;
#pragma unroll
        for (int i = 0; i < count; ++i) result[i] = any ? parked[level][i] + result[i] : parked[level][i];
        any = true;
      }
    }
  }

 private:
  template <int level>
  __device__ __forceinline__ void merge(float (&values)[count]) const {
#pragma unroll
    for (int i = 0; i < count; ++i) values[i] = parked[level][i] + values[i];
  }
  template <int level>
  __device__ __forceinline__ void park(const float (&values)[count]) {
#pragma unroll
    for (int i = 0; i < count; ++i) parked[level][i] = values[i];
  }
  template <int level>
  __device__ __forceinline__ void copy(float (&result)[count]) const {
#pragma unroll
    for (int i = 0; i < count; ++i) result[i] = parked[level][i];
  }
  // The second half of a pair meets the first one and goes a level up; the topmost stays, finish() finds it there.
  template <int level>
  __device__ __forceinline__ void carry(int index, float (&values)[count]) {
    const bool second = index >> level & 1;
    if (second) merge<level>(values);
    if constexpr (level + 1 < kLevels) {
      if (second) {
        carry<level + 1>(index, values);
        return;
      }
    }
    park<level>(values);
  }
};

}  // namespace tensorfold::ops::cuda::experts
