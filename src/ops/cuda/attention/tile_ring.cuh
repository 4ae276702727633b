// The mma.sync kernel's way of getting pages into shared memory: a ring of stages that all threads of the CTA fill with
// cp.async, in the order in which units use them. A stage is one part (at most 128 dimensions) of a tile's keys or values.
// Apart from the kernel because the ring runs ahead of it, over the ends of units.
#pragma once

#include "ops/cuda/attention/attention_work.cuh"
#include "ops/cuda/instructions.cuh"

namespace tensorfold::ops::cuda {

template <int kBlocks>
struct TileShape {
  static constexpr int kDims = kBlocks * kBlockDims;
  static constexpr int kStageBlocks = kBlocks == 4 ? 2 : kBlocks;
  static constexpr int kParts = kBlocks / kStageBlocks;         // stages of a tile's keys, and of its values
  static constexpr int kStageBytes = kStageBlocks * kBlockBytes;
  static constexpr int kStages = kBlocks == 1 ? 4 : 3;
  static constexpr int kRingBytes = kStages * kStageBytes;
};

template <int kBlocks, bool kPrompt>
class TileRing {
 public:
  using Shape = TileShape<kBlocks>;

  __device__ __forceinline__ TileRing(const AttentionArguments& a, std::uint32_t ring)
      : walk_(a), ring_(ring), policy_(policy_read_once()) {
    begin_unit(a);
  }

  /// Fills all stages but one; pages that this pass doesn't touch are asked for before the kernels before have ended.
  __device__ __forceinline__ void start(const AttentionArguments& a) {
    bool waited = kPrompt;
    if (waited) wait_for_previous();
#pragma unroll 1
    for (int stage = 0; stage < Shape::kStages - 1; ++stage) {
      if (!waited && more_ && (tile_ + 1) * kTileKeys > settled_) {
        wait_for_previous();
        waited = true;
      }
      issue(a, stage);
    }
    if (!waited) wait_for_previous();
  }

  /// Address of the next stage in order, complete for all threads; it stays valid until the next call.
  __device__ __forceinline__ std::uint32_t acquire(const AttentionArguments& a) {
    wait_copies<Shape::kStages - 2>();
    __syncthreads();  // everyone's copies are here, and nobody reads the stage before any more
    issue(a, stage_ == 0 ? Shape::kStages - 1 : stage_ - 1);
    const std::uint32_t address = ring_ + stage_ * Shape::kStageBytes;
    stage_ = stage_ + 1 == Shape::kStages ? 0 : stage_ + 1;
    return address;
  }

 private:
  __device__ __forceinline__ void begin_unit(const AttentionArguments& a) {
    Unit unit;
    more_ = walk_.next(a, unit);
    if (!more_) return;
    tile_ = unit.tile;
    tile_end_ = unit.tile_end;
    settled_ = unit.lane.settled;
    pages_ = unit.lane.pages;
    head_offset_ = unit.kv_head * page_head_bytes(kBlocks);
    next_page_ = pages_[tile_];
  }
  __device__ __forceinline__ void issue(const AttentionArguments& a, int stage) {
    if (more_) {
      if (part_ == 0) {
        source_ = a.pages + static_cast<std::size_t>(next_page_) * a.page_bytes + head_offset_;
        if (tile_ + 1 < tile_end_) next_page_ = pages_[tile_ + 1];
      }
      const std::byte* from = source_ + part_ * Shape::kStageBytes;  // values follow keys
      const std::uint32_t to = ring_ + stage * Shape::kStageBytes;
#pragma unroll 4
      for (int at = static_cast<int>(threadIdx.x) * 16; at < Shape::kStageBytes; at += static_cast<int>(blockDim.x) * 16) {
        copy_16(own_value(to + at), from + at, policy_);
      }
      if (++part_ == 2 * Shape::kParts) {
        part_ = 0;
        if (++tile_ == tile_end_) begin_unit(a);
      }
    }
    commit_copies();
  }

  UnitWalk<kPrompt> walk_;
  std::uint32_t ring_;
  std::uint64_t policy_;
  bool more_ = false;
  int part_ = 0, stage_ = 0;
  int tile_ = 0, tile_end_ = 0, settled_ = 0;
  std::int32_t next_page_ = 0;
  std::size_t head_offset_ = 0;
  const std::int32_t* pages_ = nullptr;
  const std::byte* source_ = nullptr;
};

}  // namespace tensorfold::ops::cuda
