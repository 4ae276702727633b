// What attention's kernels are given, and how a launch is cut into units: a block of packed query rows of one kv head over
// one segment of a window, or over all keys of a prompt. A packed row is (row of the lane, head of the kv head's group):
// index row * group + head, so that all heads that share keys share their loads.
//
// Grids depend on capacities alone; everything about lanes and positions is read here, on the device.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/cuda/attention/attention_math.cuh"
#include "ops/cuda/attention/short_code.cuh"
#include "ops/cuda/attention/page_layout.h"
#include "ops/cuda/instructions.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/pass_data.h"

namespace tensorfold::ops::cuda {

struct AttentionArguments {
  LanesRef lanes;
  const __nv_bfloat16* q;         // [rows, heads * head_dim]
  __nv_bfloat16* out;             // the same shape
  const std::byte* pages;
  std::size_t page_bytes;
  const std::byte* trees;
  std::size_t tree_bytes;
  const float* gate;              // null: none
  std::int64_t gate_stride, gate_offset, gate_head_stride;
  // Windows. A launch leaves, and a fold takes, the partial results of items whose first partial row lies in the slice.
  std::int64_t slice_begin, slice_end;
  float* partial_outputs;         // [partial row of the slice][head][padded head_dim]
  float2* partial_states;         // [partial row of the slice][head]: maximum, sum
  float2* carried_states;         // [CTA of the fold]: maximum and sum of rows that later slices go on with; null: one slice
  float* carried_outputs;         // [CTA of the fold][64]
  float scale_log2;               // scale * log2(e)
  int heads, kv_heads, group, head_dim;
  int window;                     // 0: all keys
  int unit_rows;                  // packed rows of a unit
  int row_blocks;                 // of a window's item, by the widest lane
  Divisor by_heads, by_kv_heads, by_group, by_row_blocks;
};

/// Keys that a row of the lane sees, as absolute positions, inclusive.
struct RowKeys {
  int first, last;
};

/// A lane as units see it.
struct LaneView {
  int first_row = 0, row_count = 0, position = 0, slot = 0;
  std::int32_t partials = 0;  // DeviceLane::partials
  int settled = 0;  // DeviceLane::settled
  bool mutual = false;
  const std::int32_t* pages = nullptr;
  const std::int32_t* parents = nullptr;  // null: a chain
  const std::int32_t* depths = nullptr;

  /// `kTrees` false: the kernel is never given a tree.
  template <bool kTrees = true>
  __device__ __forceinline__ void load(const AttentionArguments& a, int index) {
    const DeviceLane& lane = pass_lanes(a.lanes)[index];
    const std::int32_t* words = pass_words(a.lanes.header);
    first_row = lane.first_row;
    row_count = lane.row_count;
    position = lane.position;
    slot = lane.slot;
    partials = lane.partials;
    settled = lane.settled;
    mutual = lane.mutual != 0;
    pages = words + lane.pages;
    if constexpr (!kTrees) return;
    parents = lane.parents >= 0 ? words + lane.parents : nullptr;
    depths = lane.parents >= 0 ? words + lane.depths : nullptr;
  }
  __device__ __forceinline__ int row_position(int row) const {
    return position + (depths != nullptr ? depths[row] : row);
  }
  __device__ __forceinline__ RowKeys keys_of(int row, int window) const {
    const int at = row_position(row);
    return {window > 0 ? max(0, at - window + 1) : 0, mutual ? position + row_count - 1 : at};
  }
};

/// A unit of work; `tile` .. `tile_end` are the tiles that any of its rows sees.
struct Unit {
  LaneView lane;
  int kv_head = 0;
  int packed_begin = 0;     // first packed row
  int tile = 0, tile_end = 0;
  int keys_end = 0;         // keys of the lane that lie in pages after this pass: positions below
  int first_seen = 0;       // oldest key that a row of the lane sees
  std::int64_t partial = 0; // windows: partial row (of the slice) of the lane's row 0 in this segment

  __device__ __forceinline__ int packed_count(const AttentionArguments& a) const { return lane.row_count * a.group; }
  /// Rows of a tile that hold no key of the lane, or one that its rows have left behind: [0, clean_begin) and
  /// [clean_end, 64). What lies there may be anything; as values it is replaced by zeros.
  __device__ __forceinline__ int clean_begin(int at) const { return max(0, first_seen - at * kTileKeys); }
  __device__ __forceinline__ int clean_end(int at) const { return min(kTileKeys, keys_end - at * kTileKeys); }
  __device__ __forceinline__ bool needs_cleaning(int at) const {
    return at * kTileKeys < first_seen || (at + 1) * kTileKeys > keys_end;
  }
};

/// Zeros for what needs cleaning in a stage of `blocks` blocks of a tile's values; this is thread `thread` of `threads`.
template <int blocks>
__device__ __forceinline__ void clean_values(const Unit& unit, int tile, std::uint32_t stage, int thread, int threads) {
  const int begin = unit.clean_begin(tile), end = unit.clean_end(tile);
  const int dirty = (begin + kTileKeys - end) * 8;  // chunks of a block
#pragma unroll 1
  for (int i = thread; i < dirty; i += threads) {
    const int row = (i >> 3) < begin ? (i >> 3) : (i >> 3) - begin + end;
    const std::uint32_t to = stage + row * kBlockRowBytes + (i & 7) * 16;
#pragma unroll
    for (int block = 0; block < blocks; ++block) store_shared_16(to + block * kBlockBytes, make_uint4(0, 0, 0, 0));
  }
}

/// The rows of the lane that a unit's packed rows belong to, and from them its tiles within [first_key, end_key).
__device__ __forceinline__ bool bound_unit(const AttentionArguments& a, Unit& unit, int first_key, int end_key) {
  const int packed = unit.packed_count(a);
  if (unit.packed_begin >= packed) return false;
  const LaneView& lane = unit.lane;
  unit.first_seen = lane.keys_of(0, a.window).first;
  int first = unit.first_seen, last = end_key - 1;
  if (lane.depths == nullptr) {
    unit.keys_end = lane.position + lane.row_count;
    first = lane.keys_of(a.by_group.quotient(unit.packed_begin), a.window).first;
    last = lane.keys_of(a.by_group.quotient(min(packed, unit.packed_begin + a.unit_rows) - 1), a.window).last;
  } else {
    unit.keys_end = lane.position;
  }
  unit.tile = max(first, first_key) / kTileKeys;
  unit.tile_end = (min(last + 1, end_key) + kTileKeys - 1) / kTileKeys;
  return unit.tile < unit.tile_end && max(first, first_key) <= last;
}

/// Walks a CTA's units: every gridDim.x-th.
template <bool kPrompt, bool kTrees = true>
class UnitWalk {
 public:
  __device__ __forceinline__ explicit UnitWalk(const AttentionArguments& a) : index_(static_cast<int>(blockIdx.x)) {
    const PassGroup& group = pass_group(a.lanes);
    if constexpr (kPrompt) {
      lanes_ = group.lane_count;
    } else {
      count_ = group.item_count * a.kv_heads * a.row_blocks;
    }
  }
  /// The next unit that has work. False: none is left.
  __device__ __forceinline__ bool next(const AttentionArguments& a, Unit& unit) {
    while (true) {
      const int index = index_;
      if constexpr (kPrompt) {
        if (!find_prompt(a, index, unit)) return false;
        index_ += static_cast<int>(gridDim.x);
        return true;
      } else {
        if (index >= count_) return false;
        index_ += static_cast<int>(gridDim.x);
        if (find_window(a, index, unit)) return true;
      }
    }
  }

 private:
  __device__ __forceinline__ bool find_window(const AttentionArguments& a, int index, Unit& unit) const {
    const int of_blocks = a.by_row_blocks.quotient(index), at = a.by_kv_heads.quotient(of_blocks);
    const int block = a.by_row_blocks.remainder(index, of_blocks);
    unit.kv_head = a.by_kv_heads.remainder(of_blocks, at);
    const AttentionItem item = pass_items(a.lanes)[at];
    unit.lane.load<kTrees>(a, item.lane);
    unit.packed_begin = block * a.unit_rows;
    const std::int64_t partial = unit.lane.partials + static_cast<std::int64_t>(item.index) * unit.lane.row_count;
    if (partial < a.slice_begin || partial >= a.slice_end) return false;
    unit.partial = partial - a.slice_begin;
    return bound_unit(a, unit, item.first_key, item.end_key);
  }
  /// Prompts: lane after lane and kv head after kv head, so that the CTAs at work share what the L2 cache holds; of each the
  /// last rows first, as they see the most keys.
  __device__ __forceinline__ bool find_prompt(const AttentionArguments& a, int index, Unit& unit) const {
    for (int lane = 0; lane < lanes_; ++lane) {
      const int rows = pass_lanes(a.lanes)[lane].row_count;
      if (rows <= kWindowRowsMax) continue;
      const int blocks = (rows * a.group + a.unit_rows - 1) / a.unit_rows;
      if (index >= blocks * a.kv_heads) {
        index -= blocks * a.kv_heads;
        continue;
      }
      unit.kv_head = index / blocks;
      const int block = index % blocks;
      unit.lane.load<kTrees>(a, lane);
      unit.packed_begin = (blocks - 1 - block) * a.unit_rows;
      return bound_unit(a, unit, 0, unit.lane.position + unit.lane.row_count);
    }
    return false;
  }

  int index_ = 0, count_ = 0, lanes_ = 0;
};

/// Where a thread's two rows (g and g + 8 of a 16-row fragment whose first packed row is `fragment`) stand.
struct RowPair {
  bool valid[2];
  int row[2];          // of the lane
  int head[2];         // query head
  RowKeys keys[2];
  int whole_begin, whole_end;  // tiles that all rows of the warp see whole
  int halves;                  // of the fragment, 8 rows each, that hold a row: 0 .. 2

  __device__ __forceinline__ void load(const AttentionArguments& a, const Unit& unit, int fragment, int lane_in_warp) {
    const int packed = unit.packed_count(a);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = fragment + (lane_in_warp >> 2) + 8 * r;
      valid[r] = at < packed;
      row[r] = a.by_group.quotient(min(at, packed - 1));
      head[r] = unit.kv_head * a.group + a.by_group.remainder(min(at, packed - 1), row[r]);
      keys[r] = unit.lane.keys_of(row[r], a.window);
    }
    halves = min(max(packed - fragment + 7, 0) >> 3, 2);
    whole_begin = (__reduce_max_sync(~0u, max(keys[0].first, keys[1].first)) + kTileKeys - 1) / kTileKeys;
    whole_end = (__reduce_min_sync(~0u, min(keys[0].last, keys[1].last)) + 1) / kTileKeys;
  }
  /// Whether some row of the warp sees a part of the tile only.
  __device__ __forceinline__ bool sees_part(int tile) const { return tile < whole_begin || tile >= whole_end; }
};

/// Element (row, head, column 0) of q or out.
__device__ __forceinline__ std::int64_t head_offset(const AttentionArguments& a, const Unit& unit, int row, int head) {
  return (static_cast<std::int64_t>(unit.lane.first_row + row) * a.heads + head) * a.head_dim;
}

/// Two adjacent columns of a finished row: divided by the row's sum, gated, rounded.
__device__ __forceinline__ void store_output(const AttentionArguments& a, const Unit& unit, int row, int head, int column,
                                             float low, float high, float sum) {
  if (column >= a.head_dim) return;
  low = finish(low, sum);
  high = finish(high, sum);
  if (a.gate != nullptr) {
    const float* gate = a.gate + (unit.lane.first_row + row) * a.gate_stride + a.gate_offset + head * a.gate_head_stride;
    low = __fmul_rn(low, sigmoid(gate[column]));
    high = __fmul_rn(high, sigmoid(gate[column + 1]));
  }
  *reinterpret_cast<std::uint32_t*>(a.out + head_offset(a, unit, row, head) + column) = bf16_pair(low, high);
}

}  // namespace tensorfold::ops::cuda
