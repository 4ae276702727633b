// Where the partial results of a window's row lie (attention_work.cuh), for whoever folds them: a launch of its own, or the
// unit that comes last.
#pragma once

#include "ops/cuda/attention/attention_work.cuh"

namespace tensorfold::ops::cuda {

/// A row's partial results.
struct PartialRow {
  std::int64_t first = 0;   // (partial row, head) of its first segment
  std::int64_t stride = 0;  // to the next segment's
  int count = 0;            // 0: the row is padding or a prompt's, or the slice has none of its segments
  bool begins = true, ends = true;  // whether these are the row's first, and its last
};
/// Of row `row` of the lane.
__device__ __forceinline__ PartialRow partial_row(const AttentionArguments& a, const LaneView& lane, int row, int head) {
  const RowKeys keys = lane.keys_of(row, a.window);
  const int begin = segment_ordinal(keys.first), skipped = begin - segment_ordinal(lane.keys_of(0, a.window).first);
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
  result.stride = static_cast<std::int64_t>(lane.row_count) * a.heads;
  result.first = (first - a.slice_begin + row) * a.heads + head + done * result.stride;
  result.count = end - done;
  result.begins = done == 0;
  result.ends = end == all;
  return result;
}
/// Of row `row` of the pass.
__device__ __forceinline__ PartialRow partial_row(const AttentionArguments& a, int row, int head) {
  const int lane_index = pass_row_lane(a.lanes)[row];
  if (lane_index < 0) return {};
  LaneView lane;
  lane.load(a, lane_index);
  if (lane.row_count > kWindowRowsMax) return {};
  return partial_row(a, lane, row - lane.first_row, head);
}

}  // namespace tensorfold::ops::cuda
