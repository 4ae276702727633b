// A pass's host arrays as kernels read them: lanes, page tables, row lists, in one block of device memory. Plain structs,
// shared by host and device code. A captured graph holds addresses only of this block's start; everything inside is found
// through offsets, so the next pass can bring other lanes without a change to the graph.
#pragma once

#include <cstdint>

namespace tensorfold::ops::cuda {

constexpr int kPassGroupsMax = 16;    // cache groups of a model
constexpr int kPassIdsMax = 16;       // index lists of a pass
/// Lanes with more rows than this are prompts: attention walks their segments in order and keeps no partial results.
constexpr int kWindowRowsMax = 128;

/// One LaneSpan. Offsets are in int32 elements from the block's start; -1: absent.
struct DeviceLane {
  std::int32_t slot, first_row, row_count, position;
  std::int32_t pages;        // offset of the page table
  std::int32_t parents;      // offset of parents[row_count] of a tree, or -1
  std::int32_t depths;       // with parents: offset of depths[row_count]; the row's sequence index is position + depth
  std::int32_t replay;       // offset of replay_rows, or -1
  std::int32_t replay_count;
  std::int32_t commits, replay_tree, mutual;
  std::int32_t settled;      // keys below were written by earlier passes and are not touched by this one
  std::int32_t partials;     // partial results of attention before this lane's: the sum of items x rows of earlier windows
};

/// One part of attention's work that different CTAs may take: one segment of one window (a lane of up to kWindowRowsMax
/// rows) for any of its rows. Items are listed longest first, so that CTAs which take every n-th one end together.
struct AttentionItem {
  std::int32_t lane;         // index into the group's lanes
  std::int32_t first_key;    // of the segment (segment_begin)
  std::int32_t end_key;      // exclusive: the segment's end, or the lane's last key + 1
  std::int32_t index;        // place among the lane's items, from 0
};

struct PassGroup {
  std::int32_t lane_count;
  std::int32_t lanes;        // offset of DeviceLane[lane_count]
  std::int32_t row_lane;     // offset of [row_count]: index of the lane that a row belongs to; -1: a padding row
  std::int32_t item_count;
  std::int32_t items;        // offset of AttentionItem[item_count]
};

/// At the block's start.
struct PassHeader {
  std::int32_t rows;         // rows that hold a token
  std::int32_t row_count;    // with padding
  std::int32_t group_count;
  std::int32_t id_count;
  PassGroup groups[kPassGroupsMax];
  std::int32_t ids[kPassIdsMax];        // offset of each list
  std::int32_t id_counts[kPassIdsMax];
};

/// What a kernel takes as its argument to find one group's lanes, or one list, in the block.
struct LanesRef {
  const PassHeader* header = nullptr;
  std::int32_t group = 0;
};
struct IdsRef {
  const PassHeader* header = nullptr;  // null: no list
  std::int32_t list = 0;
};

#if defined(__CUDACC__)
__device__ __forceinline__ const std::int32_t* pass_words(const PassHeader* header) {
  return reinterpret_cast<const std::int32_t*>(header);
}
__device__ __forceinline__ const PassGroup& pass_group(LanesRef ref) {
  return ref.header->groups[ref.group];
}
__device__ __forceinline__ const DeviceLane* pass_lanes(LanesRef ref) {
  return reinterpret_cast<const DeviceLane*>(pass_words(ref.header) + pass_group(ref).lanes);
}
__device__ __forceinline__ const std::int32_t* pass_row_lane(LanesRef ref) {
  return pass_words(ref.header) + pass_group(ref).row_lane;
}
__device__ __forceinline__ const AttentionItem* pass_items(LanesRef ref) {
  return reinterpret_cast<const AttentionItem*>(pass_words(ref.header) + pass_group(ref).items);
}
__device__ __forceinline__ const std::int32_t* pass_ids(IdsRef ref) {
  return pass_words(ref.header) + ref.header->ids[ref.list];
}
#endif

}  // namespace tensorfold::ops::cuda
