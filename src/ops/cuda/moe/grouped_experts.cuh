// The kernels behind grouped_experts.h: one template for gate and up, and for down.
//
// A persistent CTA takes units (item, 128 weight rows). A warpgroup of producers gathers, block of 128 k by block, the item's
// rows and the packed weights into a ring of stages, by 16-byte copies that announce themselves. Two warpgroups of 64 weight
// rows each dequantise into A fragments and multiply: weights are wgmma's 64-row operand, tokens its other one, in steps of
// kTokenStep, so that few tokens cost little. Sums of a segment stay in registers, and so do those of all
// segments: an item's product never leaves the CTA unfinished.
//
// A stage: rows of x as two tiles [item rows][64 k] in the 128-byte swizzle, then eight packed blocks.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/activation.cuh"
#include "ops/cuda/instructions.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear/dequantise.cuh"
#include "ops/cuda/moe/block_copy.cuh"
#include "ops/cuda/moe/grouped_experts.h"
#include "ops/cuda/ring_position.cuh"

namespace tensorfold::ops::cuda::experts {

constexpr int kGroupedTiles = 8;           // of 16 weight rows, of a unit
constexpr int kGroupedThreads = 3 * 128;
// Registers of a thread: the launch's equal share, and what producers and the two warpgroups of consumers make of it.
constexpr int kGroupedLaunchRegisters = 65536 / kGroupedThreads / 8 * 8;
constexpr int kGroupedProducerRegisters = 88, kGroupedConsumerRegisters = 208;
static_assert(kGroupedProducerRegisters + 2 * kGroupedConsumerRegisters <= 3 * kGroupedLaunchRegisters, "the kernel would hang");
constexpr int kOutputStride = 64 + 4;      // floats of a token in down's staging: no two lanes of a store share a bank

/// One linear of every expert over the rows of its items.
struct GroupedLaunch {
  PackedPart part;
  const std::uint16_t* x = nullptr;   // gate, up: [rows][part.columns]; down: [places in the plan][part.columns]
  const std::int32_t* slots = nullptr;
  const ExpertItem* items = nullptr;
  const std::int32_t* item_count = nullptr;
  std::int32_t top_k = 0;
  ActivationKind kind = ActivationKind::kSilu;
  std::uint16_t* inner = nullptr;     // gate, up: [places][part.rows / 2]
  float* outputs = nullptr;           // down: [slots][part.rows]
  std::int32_t item_rows = 0;         // that a stage holds
  std::int32_t stages = 0, stage_bytes = 0;
  std::int32_t staging = 0, barriers = 0;  // offsets in shared memory
  std::int32_t staging_floats = 0;         // of a warpgroup: down's outputs on their way, before that a tree's parked sums
};

constexpr int kTokensMax = 128;  // of an item
constexpr int kTokenStep = 16;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct GroupedUnit {
  ExpertItem item;
  std::int32_t group;
};

/// The CTA's units, one after the other; the next one's item is read while the last one is worked on.
class UnitWalk {
 public:
  __device__ UnitWalk(const GroupedLaunch& launch)
      : launch_(launch),
        groups_((launch.part.tiles + kGroupedTiles - 1) / kGroupedTiles),
        count_(*launch.item_count * groups_),
        unit_(blockIdx.x) {
    read_ahead();
  }
  __device__ __forceinline__ bool done() const { return unit_ >= count_; }
  /// The unit at hand; from here on peek() is the one after it.
  __device__ __forceinline__ GroupedUnit take() {
    const GroupedUnit unit = ahead_;
    unit_ += gridDim.x;
    read_ahead();
    return unit;
  }
  __device__ __forceinline__ const GroupedUnit& peek() const { return ahead_; }

 private:
  __device__ __forceinline__ void read_ahead() {
    if (done()) return;
    const int item = unit_ / groups_;
    ahead_.group = unit_ - item * groups_;
    const int4 words = __ldg(reinterpret_cast<const int4*>(launch_.items + item));
    ahead_.item = {words.x, words.y, words.z, words.w};
  }

  const GroupedLaunch& launch_;
  int groups_, count_, unit_;
  GroupedUnit ahead_ = {};
};

// --- producers --------------------------------------------------------------------------------------------------------

constexpr int kRowsPerThreadMax = kTokensMax / 16;  // 16 rows at a time

/// Where the rows lie that a producer thread copies, its one of each 16, in bytes from x.
struct GatherRows {
  std::uint32_t offsets[kRowsPerThreadMax];
  std::int32_t count = 0;

  template <bool down>
  __device__ __forceinline__ void read(const GroupedLaunch& launch, const ExpertItem& item) {
    const int first = threadIdx.x >> 3;
    const std::uint32_t row_bytes = launch.part.columns * 2;
    count = (item.count - first + 15) / 16;
#pragma unroll
    for (int i = 0; i < kRowsPerThreadMax; ++i) {
      const int row = min(first + 16 * i, item.count - 1);
      std::uint32_t source = item.begin + row;
      if constexpr (!down) source = __ldg(launch.slots + source) / launch.top_k;
      offsets[i] = source * row_bytes + (threadIdx.x & 7) * 16;
    }
  }
};

/// A block's columns of the rows, to the two tiles of a stage; what lies beyond the last column is zero.
__device__ __forceinline__ void copy_rows(const GroupedLaunch& launch, const GatherRows& rows, int block, std::uint32_t target) {
  const std::uint32_t tile_bytes = launch.item_rows * 128;
  const auto* x = reinterpret_cast<const std::uint8_t*>(launch.x) + block * (kBlockColumns * 2);
  const int columns = launch.part.columns - block * kBlockColumns;
  if (columns >= kBlockColumns) {
#pragma unroll
    for (int i = 0; i < kRowsPerThreadMax; ++i) {
      if (i >= rows.count) break;
      copy_16(target + i * 2048, x + rows.offsets[i]);
      copy_16(target + i * 2048 + tile_bytes, x + rows.offsets[i] + 128);
    }
    return;
  }
  const int column = (threadIdx.x & 7) * 8;
  const int bytes = min(max(columns - column, 0), 8) * 2, bytes_then = min(max(columns - column - 64, 0), 8) * 2;
#pragma unroll
  for (int i = 0; i < kRowsPerThreadMax; ++i) {
    if (i >= rows.count) break;
    copy_16_padded(target + i * 2048, bytes > 0 ? x + rows.offsets[i] : x, bytes);
    copy_16_padded(target + i * 2048 + tile_bytes, bytes_then > 0 ? x + rows.offsets[i] + 128 : x, bytes_then);
  }
}

template <typename F, bool down>
__device__ __forceinline__ void produce(const GroupedLaunch& launch, std::uint32_t shared_base, std::uint32_t full,
                                        std::uint32_t empty) {
  const PackedPart& part = launch.part;
  const int tid = threadIdx.x, warp = tid >> 5, chunk = tid & 7, first_row = tid >> 3;
  const std::uint64_t policy = policy_read_once();
  const std::uint32_t lane_target = first_row * 128 + ((chunk ^ (first_row & 7)) << 4);
  const std::uint32_t warp_blocks = launch.item_rows * 256 + warp * 2 * part.block_bytes;
  const std::int64_t tile_stride = static_cast<std::int64_t>(part.k_blocks) * part.block_bytes;
  UnitWalk walk(launch);
  GatherRows next;
  if (!walk.done()) next.read<down>(launch, walk.peek().item);
  RingPosition at;
  bool first_round = true;  // of the ring: it is empty
  while (!walk.done()) {
    const GatherRows rows = next;
    const GroupedUnit unit = walk.take();
    const int first_tile = unit.group * kGroupedTiles + warp * 2;
    const std::uint8_t* weights = part.blocks + unit.item.expert * part.expert_bytes + first_tile * tile_stride;
#pragma unroll 1
    for (int block = 0; block < part.k_blocks; ++block) {
      if (!first_round) barrier_wait(empty + 8 * at.stage, at.phase ^ 1);
      const std::uint32_t stage = shared_base + at.stage * launch.stage_bytes;
      if (first_tile < part.tiles) copy_block<F>(stage + warp_blocks, weights, part.block_bytes, policy);
      if (first_tile + 1 < part.tiles) {
        copy_block<F>(stage + warp_blocks + part.block_bytes, weights + tile_stride, part.block_bytes, policy);
      }
      weights += part.block_bytes;
      copy_rows(launch, rows, block, stage + lane_target);
      barrier_arrive_after_copies(full + 8 * at.stage);
      at.advance(launch.stages);
      first_round = first_round && at.stage != 0;
      if (block == 0 && !walk.done()) next.read<down>(launch, walk.peek().item);
    }
  }
}

// --- consumers --------------------------------------------------------------------------------------------------------

/// A consumer warp's view of the ring.
class StageReader {
 public:
  __device__ StageReader(const GroupedLaunch& launch, std::uint32_t shared_base, std::uint32_t full, std::uint32_t empty)
      : launch_(launch), shared_base_(shared_base), full_(full), empty_(empty) {}

  /// The next stage's address, once it is there.
  __device__ __forceinline__ std::uint32_t wait() {
    barrier_wait(full_ + 8 * at_.stage, at_.phase);
    publish_shared_writes();
    const std::uint32_t stage = shared_base_ + at_.stage * launch_.stage_bytes;
    held_ = at_.stage;
    at_.advance(launch_.stages);
    return stage;
  }
  __device__ __forceinline__ int held() const { return held_; }
  __device__ __forceinline__ void release(int stage) {
    if ((threadIdx.x & 31) == 0) barrier_arrive(empty_ + 8 * stage);
  }

 private:
  const GroupedLaunch& launch_;
  std::uint32_t shared_base_, full_, empty_;
  RingPosition at_;
  int held_ = -1;
};

using Sums = float[kTokensMax / 2];

/// The first `count` accumulators.
template <int count, int all>
__device__ __forceinline__ float (&first_of(float (&values)[all]))[count] {
  return *reinterpret_cast<float(*)[count]>(&values);
}

/// Four k16 steps for the fewest tokens, in steps of kTokenStep, that hold `count`. One accumulator array serves every
/// width: were each width a loop of its own, the compiler would give each registers of its own.
template <int tokens>
__device__ __forceinline__ void multiply_half(Sums& sum, const std::uint32_t (&a)[4][4],
                                              std::uint32_t rows, int count) {
  if constexpr (tokens < kTokensMax) {
    if (count > tokens) {
      multiply_half<tokens + kTokenStep>(sum, a, rows, count);
      return;
    }
  }
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    wgmma(first_of<tokens / 2>(sum), a[step], tile_descriptor(rows + step * 32), true);
  }
  wgmma_commit();
}

/// One segment of the product of this warpgroup's 64 weight rows and an item's tokens.
template <typename F>
__device__ __forceinline__ void multiply_segment(const GroupedLaunch& launch, StageReader& reader, int segment, int count,
                                                 Sums& sum) {
  const PackedPart& part = launch.part;
  const int lane = threadIdx.x & 31, tile = (threadIdx.x >> 5) - 4;  // of the unit's eight
  const std::uint32_t tile_bytes = launch.item_rows * 128;
#pragma unroll
  for (float& value : sum) value = 0.0f;
  hold(sum);
  const int end = min((segment + 1) * part.segment_blocks, part.k_blocks);
  int read = -1;  // stage of the block before
#pragma unroll 1
  for (int block = segment * part.segment_blocks; block < end; ++block) {
    const std::uint32_t stage = reader.wait();
    const SharedBlock weights{stage + 2 * tile_bytes + tile * part.block_bytes};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Values as they are become the fragment without an instruction between: loaded earlier, they would land in registers
      // that a running wgmma still reads (ptxas takes those for free).
      constexpr bool kDirect = F::kArithmetic == WeightArithmetic::kValues;
      HalfCodes<F> codes;
      if constexpr (!kDirect) codes = load_codes<F>(weights, half, lane);
      const HalfScales<F> scales = load_scales<F>(weights, part, half, lane);
      wgmma_wait<1>();
      if constexpr (kDirect) codes = load_codes<F>(weights, half, lane);
      if (half == 1 && read >= 0) reader.release(read);
      std::uint32_t a[4][4];
      fragment<F, 0>(codes, scales, a[0]);
      fragment<F, 1>(codes, scales, a[1]);
      fragment<F, 2>(codes, scales, a[2]);
      fragment<F, 3>(codes, scales, a[3]);
#pragma unroll
      for (int step = 0; step < 4; ++step) hold(a[step]);
      multiply_half<kTokenStep>(sum, a, stage + half * tile_bytes, count);
    }
    read = reader.held();
  }
  wgmma_wait<0>();
  hold(sum);
  reader.release(read);
}

/// Where a tree's sums wait: level 0 in registers, the others here, a thread's own.
struct ParkedSums {
  float* own;  // of this thread; [level − 1][value][thread of the warpgroup]
  std::int32_t level_stride;

  __device__ __forceinline__ void put(int level, const Sums& values, int count) const {
    float* place = own + (level - 1) * level_stride;
#pragma unroll
    for (int i = 0; i < kTokensMax / 2; ++i) {
      if (i % 8 == 0 && 2 * i >= count) break;
      place[i * 128] = values[i];
    }
  }
  __device__ __forceinline__ void add_to(Sums& values, int level, int count) const {
    const float* place = own + (level - 1) * level_stride;
#pragma unroll
    for (int i = 0; i < kTokensMax / 2; ++i) {
      if (i % 8 == 0 && 2 * i >= count) break;
      values[i] = place[i * 128] + values[i];
    }
  }
};

/// The product of this warpgroup's 64 weight rows and an item's tokens, segment after segment; the compiler gives every copy
/// of the inner loop registers of its own, so there is one. A tree's sums meet as a binary counter carries: before segment
/// i is added, level l holds a sum where bit l of i is set; the last segment meets all that are there.
template <typename F, bool tree>
__device__ __forceinline__ void multiply_item(const GroupedLaunch& launch, StageReader& reader, int count,
                                              const ParkedSums& parked, Sums& total) {
  const int segments = launch.part.segments;
#pragma unroll 1
  for (int segment = 0; segment < segments; ++segment) {
    Sums sum;
    multiply_segment<F>(launch, reader, segment, count, sum);
    const bool adds = tree ? segment & 1 : segment > 0;
#pragma unroll
    for (int i = 0; i < kTokensMax / 2; ++i) total[i] = adds ? total[i] + sum[i] : sum[i];
    if constexpr (tree) {
      const bool last = segment + 1 == segments;
      if (!adds && !last) continue;
      int level = 1;
#pragma unroll 1
      for (; last ? level < 3 : segment >> level & 1; ++level) {
        if (segment >> level & 1) parked.add_to(total, level, count);
      }
      if (!last) parked.put(level, total, count);
    }
  }
}

/// Activation of a unit's 64 columns, to `inner`.
__device__ __forceinline__ void write_inner(const GroupedLaunch& launch, const GroupedUnit& unit,
                                            const Sums& sums) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int tile = unit.group * kGroupedTiles + (threadIdx.x >> 5) - 4;
  if (tile >= launch.part.tiles) return;
  const int width = launch.part.rows / 2;
  const bool odd = g & 1;
  std::uint16_t* place = launch.inner + static_cast<std::int64_t>(unit.item.begin) * width + tile * 8 + (g & ~1);
#pragma unroll
  for (int n = 0; n < kTokensMax / 8; ++n) {
    if (8 * n >= unit.item.count) break;
    std::uint32_t values[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float value = activate(launch.kind, sums[4 * n + i]) * sums[4 * n + 2 + i];
      values[i] = __bfloat16_as_ushort(__float2bfloat16_rn(value));
    }
    // The neighbour in g has the neighbouring column: each takes both columns of one of the two tokens.
    const std::uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? values[0] : values[1], 4);
    const int token = 8 * n + 2 * t + odd;
    if (token < unit.item.count) {
      *reinterpret_cast<std::uint32_t*>(place + static_cast<std::int64_t>(token) * width) =
          odd ? other | values[1] << 16 : values[0] | other << 16;
    }
  }
}

/// A warpgroup's 64 columns of the item's slots, through shared memory so that rows are written in one piece.
__device__ __forceinline__ void write_outputs(const GroupedLaunch& launch, const GroupedUnit& unit, float* staging,
                                              const Sums& sums) {
  const int warpgroup = (threadIdx.x >> 7) - 1, thread = threadIdx.x & 127;
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  warpgroup_sync(1 + warpgroup);  // parked sums lay here
#pragma unroll
  for (int n = 0; n < kTokensMax / 8; ++n) {
    if (8 * n >= unit.item.count) break;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      staging[(8 * n + 2 * t + (i & 1)) * kOutputStride + (thread >> 5) * 16 + g + 8 * (i >> 1)] = sums[4 * n + i];
    }
  }
  warpgroup_sync(1 + warpgroup);
  const int column = (unit.group * kGroupedTiles + warpgroup * 4) * kTileRows + thread % 16 * 4;
#pragma unroll 4
  for (int token = thread / 16; token < unit.item.count && column < launch.part.rows; token += 8) {
    const std::int64_t slot = __ldg(launch.slots + unit.item.begin + token);
    *reinterpret_cast<float4*>(launch.outputs + slot * launch.part.rows + column) =
        *reinterpret_cast<const float4*>(staging + token * kOutputStride + thread % 16 * 4);
  }
  warpgroup_sync(1 + warpgroup);  // sums will be parked here again
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// gate and up, or down; a layer's segments are added one after the other or as a tree.
template <typename F, bool down, bool tree>
__global__ void __launch_bounds__(kGroupedThreads, 1) grouped_experts(const __grid_constant__ GroupedLaunch launch) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::uint8_t shared[];
  const std::uint32_t shared_base = shared_address(shared);
  const std::uint32_t full = shared_base + launch.barriers, empty = full + 8 * launch.stages;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < launch.stages; ++stage) {
      barrier_init(full + 8 * stage, 128);
      barrier_init(empty + 8 * stage, 8);
    }
  }
  allow_next();
  __syncthreads();
  wait_for_previous();
  if (threadIdx.x < 128) {
    give_registers<kGroupedProducerRegisters>();
    produce<F, down>(launch, shared_base, full, empty);
    wait_copies<0>();
    return;
  }
  take_registers<kGroupedConsumerRegisters>();
  StageReader reader(launch, shared_base, full, empty);
  UnitWalk walk(launch);
  const int warpgroup = (threadIdx.x >> 7) - 1;
  float* own = reinterpret_cast<float*>(shared + launch.staging) + warpgroup * launch.staging_floats;
  const ParkedSums parked{own + (threadIdx.x & 127), launch.item_rows * 64};
  while (!walk.done()) {
    const GroupedUnit unit = walk.take();
    Sums sums;
    multiply_item<F, tree>(launch, reader, unit.item.count, parked, sums);
    if constexpr (down) {
      write_outputs(launch, unit, own, sums);
    } else {
      write_inner(launch, unit, sums);
    }
  }
#endif
}

}  // namespace tensorfold::ops::cuda::experts
