// The fold of a window row's segments (attention_math.cuh), the second of a window's two launches. A CTA takes 64 columns of
// one (row, head): the factors of up to 128 segments are found side by side (the running maximum is a prefix maximum), then
// each column is walked in ascending order. Where the partial results come in slices, a row's fold stops at the slice's end
// and the next slice's goes on from there: the same steps in the same order.
#pragma once

#include "ops/cuda/attention/attention_math.cuh"
#include "ops/cuda/attention/attention_work.cuh"

namespace tensorfold::ops::cuda {

constexpr int kFoldThreads = 128;
constexpr int kFoldFactors = 128;  // segments whose factors are at hand
constexpr int kFoldStage = 32;     // segments whose outputs are at hand

/// A row's partial results.
struct PartialRow {
  std::int64_t first = 0;   // (partial row, head) of its first segment
  int stride = 0;           // to the next segment's
  int count = 0;            // 0: the row is padding or a prompt's, or the slice has none of its segments
  bool begins = true, ends = true;  // whether these are the row's first, and its last
};
__device__ __forceinline__ PartialRow partial_row(const AttentionArguments& a, int row, int head) {
  const int lane_index = pass_row_lane(a.lanes)[row];
  if (lane_index < 0) return {};
  LaneView lane;
  lane.load(a, lane_index);
  if (lane.row_count > kWindowRowsMax) return {};
  const RowKeys keys = lane.keys_of(row - lane.first_row, a.window);
  int begin = 0, skipped = 0;
  if (a.window > 0) {
    begin = segment_ordinal(keys.first);
    skipped = begin - segment_ordinal(lane.keys_of(0, a.window).first);
  }
  // Partial row of the lane's row 0 in the row's first segment.
  const std::int64_t first = lane.partials + static_cast<std::int64_t>(skipped) * lane.row_count;
  const int all = segment_ordinal(keys.last) - begin + 1;
  int done = 0, end = all;  // segments of earlier slices; of this one and earlier ones
  if (a.carried_states != nullptr) {
    const auto before = [&](std::int64_t slice) {
      return static_cast<int>(min(max(slice - first + lane.row_count - 1, std::int64_t{0}) / lane.row_count, std::int64_t{all}));
    };
    done = before(a.slice_begin);
    end = before(a.slice_end);
  }
  PartialRow result;
  result.stride = lane.row_count * a.heads;
  result.first = (first - a.slice_begin + row - lane.first_row) * a.heads + head + static_cast<std::int64_t>(done) * result.stride;
  result.count = end - done;
  result.begins = done == 0;
  result.ends = end == all;
  return result;
}

struct FoldShared {
  float keep[kFoldFactors], add[kFoldFactors], sum[kFoldFactors];
  float warp_maximum[kFoldThreads / 32];
  float outputs[2][kFoldStage][kBlockDims];
};

/// Factors of segments [begin, begin + 128) of the row; `before` is the maximum of all earlier ones and moves on.
__device__ __forceinline__ void find_factors(const AttentionArguments& a, const PartialRow& row, int begin, float& before,
                                             FoldShared& shared) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  float2 state = make_float2(minus_infinity(), 0.0f);
  if (begin + thread < row.count) state = __ldcg(a.partial_states + row.first + static_cast<std::int64_t>(begin + thread) * row.stride);
  float maximum = state.x;
#pragma unroll
  for (int distance = 1; distance < 32; distance <<= 1) {
    const float other = __shfl_up_sync(~0u, maximum, distance);
    if (lane >= distance) maximum = fmaxf(maximum, other);
  }
  if (lane == 31) shared.warp_maximum[warp] = maximum;
  float earlier = __shfl_up_sync(~0u, maximum, 1);
  if (lane == 0) earlier = minus_infinity();
  __syncthreads();
  earlier = fmaxf(earlier, before);
  for (int w = 0; w < kFoldThreads / 32; ++w) {
    if (w < warp) earlier = fmaxf(earlier, shared.warp_maximum[w]);
    before = fmaxf(before, shared.warp_maximum[w]);
  }
  const FoldFactors f = fold_factors(earlier, state.x, a.scale_log2);
  shared.keep[thread] = f.keep;
  shared.add[thread] = f.add;
  shared.sum[thread] = __fmul_rn(state.y, f.add);
}

__global__ void __launch_bounds__(kFoldThreads) attention_fold_kernel(const __grid_constant__ AttentionArguments a, int first_row,
                                                                      Divisor by_blocks) {
  __shared__ __align__(16) FoldShared shared;
  allow_next();
  const int thread = static_cast<int>(threadIdx.x);
  const int cta = static_cast<int>(blockIdx.x), index = by_blocks.quotient(cta), block = by_blocks.remainder(cta, index);
  const int row_of_launch = a.by_heads.quotient(index), row_index = first_row + row_of_launch;
  const int head = a.by_heads.remainder(index, row_of_launch);
  const PartialRow row = partial_row(a, row_index, head);
  wait_for_previous();
  if (row.count == 0) return;

  // 16 threads load one segment's 64 columns, 8 segments at a time.
  const int column = thread % 16 * 4, segment = thread / 16;
  const int dims = static_cast<int>(by_blocks.value) * kBlockDims;
  const float* outputs = whole(a.partial_outputs + row.first * dims + block * kBlockDims + column);
  const int stride = row.stride * dims;
  float4 ahead[kFoldStage / 8];
  const auto load = [&](int begin) {
#pragma unroll
    for (int i = 0; i < kFoldStage / 8; ++i) {
      const int at = begin + i * 8 + segment;
      ahead[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (at < row.count) ahead[i] = __ldcg(reinterpret_cast<const float4*>(outputs + static_cast<std::int64_t>(at) * stride));
    }
  };
  load(0);
  const int at = block * kBlockDims + thread;
  const bool ends_here = row.ends && thread < kBlockDims && at < a.head_dim;
  float gate = 0.0f;  // asked for early: it is on its way with the partial results
  if (a.gate != nullptr && ends_here) gate = a.gate[row_index * a.gate_stride + a.gate_offset + head * a.gate_head_stride + at];
  float before = minus_infinity(), output = 0.0f, sum = 0.0f;
  if (!row.begins) {
    const float2 state = __ldcg(a.carried_states + blockIdx.x);
    before = state.x;
    sum = state.y;
    if (thread < kBlockDims) output = __ldcg(a.carried_outputs + static_cast<std::int64_t>(blockIdx.x) * kBlockDims + thread);
  }
  for (int begin = 0; begin < row.count; begin += kFoldStage) {
    const int factor = begin % kFoldFactors, buffer = begin / kFoldStage % 2;
    if (factor == 0) {
      __syncthreads();  // the factors before are used up
      find_factors(a, row, begin, before, shared);
    }
#pragma unroll
    for (int i = 0; i < kFoldStage / 8; ++i) {
      *reinterpret_cast<float4*>(&shared.outputs[buffer][i * 8 + segment][column]) = ahead[i];
    }
    if (begin + kFoldStage < row.count) load(begin + kFoldStage);
    __syncthreads();
    if (thread < kBlockDims) {
      const int count = min(kFoldStage, row.count - begin);
#pragma unroll 8
      for (int i = 0; i < count; ++i) {
        const FoldFactors f = {shared.keep[factor + i], shared.add[factor + i]};
        output = fold(output, shared.outputs[buffer][i][thread], f);
        sum = __fmaf_rn(sum, f.keep, shared.sum[factor + i]);
      }
    }
  }
  if (!row.ends) {
    if (thread < kBlockDims) a.carried_outputs[static_cast<std::int64_t>(blockIdx.x) * kBlockDims + thread] = output;
    if (thread == 0) a.carried_states[blockIdx.x] = make_float2(before, sum);
    return;
  }
  if (!ends_here) return;
  float value = finish(output, sum);
  if (a.gate != nullptr) value = __fmul_rn(value, sigmoid(gate));
  a.out[(static_cast<std::int64_t>(row_index) * a.heads + head) * a.head_dim + at] = __float2bfloat16_rn(value);
}

}  // namespace tensorfold::ops::cuda
