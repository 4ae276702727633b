// One kernel for every linear layer of more than a decode window's rows, on Hopper: windows of up to 128 rows and prompts.
//
// A warpgroup owns 64 rows of the weights (four packed tiles, one a warp): wgmma.m64nNk16 with A = weights, dequantised from
// shared memory into registers, B = a tile of kTokens rows of activations in shared memory. Packed weights and activations
// arrive by tensor copies, a stage (one k block of 128) at a time, one barrier for both; a producer warp fills the ring, and
// weights of the first stages are on their way before the kernel waits for the one before it.
//
// A's registers come in two sets: a set is dequantised while the tensor cores work on the other one.
//
// Two CTAs may form a cluster: they compute neighbouring rows, and each brings half of the activations to both. What bounds
// these kernels, beside the tensor cores, is how much the L2 cache delivers.
//
// The order of the sums (one-arithmetic.md, rule 1) is a part's: segments of k blocks, k16 steps ascending within a segment,
// segments one after the other or as a binary tree over eight. How it is computed is free, and there are three ways:
//
//   kSequential  CTAs share the list of (item, segment) evenly, an item being a tile of the output. The CTA that computes
//                the first segments of an item hands its running sum to the next one. It does that part first and the rest
//                of an item that another CTA began last, so that in practice no one waits.
//   kTree        The same with halves of an item (segments 0 to 3, 4 to 7): the left half's sum is parked in scratch memory.
//   kSplit       For layers with too few rows: one segment an item; the segments' sums go to scratch memory and are added in
//                order by the CTAs that computed them. All CTAs must be resident.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "ops/cuda/instructions.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear/dequantise.cuh"
#include "ops/cuda/linear/wide_parameters.h"
#include "ops/cuda/ring_position.cuh"

namespace tensorfold::ops::cuda {

/// Calls `visit.template operator()<F, kScales>()`, see wide_kernel; not for combinations that no checkpoint has.
template <typename Visitor>
void visit_wide_format(const PackedPart& part, Visitor&& visit) {
  using enum ScaleKind;
  visit_format(part, [&]<typename F>() {
    if constexpr (F::kArithmetic != WeightArithmetic::kFloat || F::kScaleSets == 4) {
      visit.template operator()<F, kNone>();
    } else if (part.scale_kind == kHalfPair) {
      visit.template operator()<F, kHalfPair>();
    } else if (part.scale_kind == kFloatPair) {
      visit.template operator()<F, kFloatPair>();
    } else if constexpr (F::kBits == 4 || F::kBits == 5) {
      part.scale_kind == kHalf ? visit.template operator()<F, kHalf>() : visit.template operator()<F, kScaleMin>();
    } else if constexpr (F::kBits == 8) {
      if (part.scale_kind == kHalf) visit.template operator()<F, kHalf>();
    }
  });
}

/// Register budgets: the launch gives every thread an equal share, which consumers and producers trade. groups · consumer +
/// producer <= (groups + 1) · share must hold for every number of groups up to the most, or the kernel hangs; run_wide_plan()
/// looks whether the compiled kernel has that share.
template <typename F, int kTokens, SumMode mode>
struct WideShape {
  static constexpr int kGroupsMax = wide_groups_max(kTokens, mode, F::kSmallScales);
  static constexpr int kThreadsMax = (kGroupsMax + 1) * kWarpgroupThreads;
  static constexpr int kConsumerRegisters = kGroupsMax == 2 ? 232 : kGroupsMax == 3 ? 160 : kGroupsMax == 4 ? 112 : 88;
  static constexpr int kProducerRegisters = kGroupsMax == 3 || kGroupsMax == 4 ? 32 : 40;
  static constexpr int kLaunchRegisters = wide_launch_registers(kGroupsMax);
  static_assert(kGroupsMax * kConsumerRegisters + kProducerRegisters <= (kGroupsMax + 1) * kLaunchRegisters);
  static_assert(kConsumerRegisters >= kLaunchRegisters);  // so fewer groups leave more
  static_assert(kConsumerRegisters % 8 == 0 && kProducerRegisters % 8 == 0 && kProducerRegisters >= 24);
  /// k16 steps of one of A's two sets.
  static constexpr int kSetSteps = kConsumerRegisters >= 160 && kTokens <= 128 && mode != SumMode::kTree ? 4 : 2;
  static constexpr bool kSpreadScales = F::kSmallScales && kConsumerRegisters < 96 && kTokens == 64;
};

/// Consecutive segments of one item.
struct WideRun {
  int row_group = 0, token_tile = 0;
  int first_segment = 0, end_segment = 0;
  bool publishes = false;  // the next CTA goes on where this one ends
};

namespace wide {

__device__ __forceinline__ int cluster_rank(const WideParameters& p) {
  return p.cluster == 2 ? static_cast<int>(blockIdx.x) & 1 : 0;
}

/// Run `index` of this CTA; false when there is none. Runs of a cluster's CTAs differ in their row group alone.
template <SumMode mode>
__device__ __forceinline__ bool find_run(const WideParameters& p, int index, WideRun& run) {
  const int cluster = static_cast<int>(blockIdx.x) / p.cluster, clusters = static_cast<int>(gridDim.x) / p.cluster;
  int item, first, end;
  if constexpr (mode == SumMode::kSplit) {
    const int unit = cluster + index * clusters;
    if (unit >= p.items * p.item_units) return false;
    item = unit / p.item_units;
    first = unit % p.item_units;
    end = first + 1;
  } else {
    const int units = p.item_units;
    const std::int64_t all = static_cast<std::int64_t>(p.items) * units;
    const int begin = static_cast<int>(all * cluster / clusters), stop = static_cast<int>(all * (cluster + 1) / clusters);
    if (begin >= stop) return false;
    const int first_item = begin / units, last_item = (stop - 1) / units;
    if (first_item == last_item) {
      if (index > 0) return false;
      item = first_item, first = begin - item * units, end = stop - item * units;
    } else {
      const int head = stop % units != 0 ? 1 : 0;
      const int full = stop / units - (begin + units - 1) / units;
      if (index < head) {
        item = last_item, first = 0, end = stop - item * units;
      } else if (index < head + full) {
        item = (begin + units - 1) / units + index - head, first = 0, end = units;
      } else {
        if (index > head + full || begin % units == 0) return false;
        item = first_item, first = begin - item * units, end = units;
      }
    }
  }
  run.row_group = item / p.token_tiles * p.cluster + cluster_rank(p);
  run.token_tile = item % p.token_tiles;
  run.publishes = end != p.item_units;
  run.first_segment = first;
  run.end_segment = end;
  if constexpr (mode == SumMode::kTree) {
    run.first_segment = first * kTreeHalf;
    run.end_segment = min(end * kTreeHalf, p.part.segments);
  }
  return true;
}

__device__ __forceinline__ int segment_begin(const WideParameters& p, int segment) {
  return segment * p.part.segment_blocks;
}
__device__ __forceinline__ int segment_end(const WideParameters& p, int segment) {
  return min((segment + 1) * p.part.segment_blocks, p.part.k_blocks);
}

/// The ring: stages of [activations: two boxes of 64 k][weights: blocks of the CTA's tiles], then barriers.
template <int kTokens>
struct Ring {
  static constexpr std::uint32_t kBoxBytes = kTokens * 128;
  static constexpr std::uint32_t kActivationBytes = 2 * kBoxBytes;
  std::uint32_t stages_at, full_at, empty_at, stage_bytes;
  int stages;

  __device__ __forceinline__ Ring(const WideParameters& p, std::uint32_t base)
      : stages_at(base),
        full_at(base + p.stages * p.stage_bytes),
        empty_at(full_at + 8 * p.stages),
        stage_bytes(p.stage_bytes),
        stages(p.stages) {}
  __device__ __forceinline__ std::uint32_t stage(int index) const { return stages_at + index * stage_bytes; }
  __device__ __forceinline__ std::uint32_t full(int index) const { return full_at + 8 * index; }
  __device__ __forceinline__ std::uint32_t empty(int index) const { return empty_at + 8 * index; }
};

constexpr int kEarlyStages = 3;

/// The producer's walk over all k blocks of all runs of the CTA.
template <SumMode mode>
struct BlockWalk {
  WideRun run;
  int index = 0, block = 0, end = 0;
  __device__ __forceinline__ bool next(const WideParameters& p) {
    if (++block < end) return true;
    if (!find_run<mode>(p, index++, run)) return false;
    block = segment_begin(p, run.first_segment);
    end = segment_end(p, run.end_segment - 1);
    return true;
  }
};

template <int kTokens, SumMode mode>
__device__ __forceinline__ void produce(const WideParameters& p, const CUtensorMap* weights, const CUtensorMap* activations,
                                        const Ring<kTokens>& ring, int groups) {
  const std::uint32_t bytes = ring.kActivationBytes + groups * kWarpgroupTiles * p.part.block_bytes;
  const std::uint64_t weight_policy = p.read_once ? policy_read_once() : policy_read_again();
  const std::uint64_t activation_policy = policy_read_again();
  const auto copy_weights = [&](const BlockWalk<mode>& at, int stage) {
    barrier_expect(ring.full(stage), bytes);
    copy_box_4d(ring.stage(stage) + ring.kActivationBytes, weights, 0, 0, at.block,
                        at.run.row_group * groups * kWarpgroupTiles, ring.full(stage), weight_policy);
  };
  const int rank = cluster_rank(p);
  const auto copy_activations = [&](const BlockWalk<mode>& at, int stage) {
#pragma unroll
    for (int box = 0; box < 2; ++box) {
      const std::uint32_t destination = ring.stage(stage) + box * ring.kBoxBytes;
      const int column = at.block * kBlockColumns + box * 64, row = at.run.token_tile * kTokens;
      if (p.cluster == 2) {  // each CTA brings half of the rows to both
        copy_box_2d_to_all(destination + rank * (ring.kBoxBytes / 2), activations, column, row + rank * (kTokens / 2),
                                   ring.full(stage), 3, activation_policy);
      } else {
        copy_box_2d(destination, activations, column, row, ring.full(stage), activation_policy);
      }
    }
  };
  prefetch_map(weights);
  prefetch_map(activations);
  // Few stages' weights before the wait: the copy engine keeps to the order, and activations would queue behind more.
  BlockWalk<mode> ahead, behind;
  const int early = min(kEarlyStages, ring.stages);
  int filled = 0;
  while (filled < early && ahead.next(p)) copy_weights(ahead, filled++);
  wait_for_previous();
  for (int stage = 0; stage < filled; ++stage) {
    behind.next(p);
    copy_activations(behind, stage);
  }
  if (filled < early) return;
  RingPosition place;  // a fresh barrier lets pass who waits for the phase before its first
  place.stage = early - 1, place.phase = 1;
  place.advance(ring.stages);
  while (ahead.next(p)) {
    barrier_wait(ring.empty(place.stage), place.phase);
    copy_weights(ahead, place.stage);
    copy_activations(ahead, place.stage);
    place.advance(ring.stages);
  }
}

/// What a consumer thread knows of its place.
struct Consumer {
  int group, warp, lane;  // warpgroup of the CTA, warp of the warpgroup
  __device__ __forceinline__ int thread() const { return warp * 32 + lane; }
};

/// acc = the sum over k blocks [begin, end), k16 steps ascending.
template <typename F, ScaleKind kScales, int kTokens, typename Shape>
__device__ __forceinline__ void sum_segment(const WideParameters& p, const Ring<kTokens>& ring, const Consumer& me,
                                            RingPosition& place, int begin, int end, float (&acc)[kTokens / 2]) {
  constexpr int kSetSteps = Shape::kSetSteps;
  std::uint32_t a[2][kSetSteps][4];
  const std::uint32_t my_block =
      ring.kActivationBytes + (me.group * kWarpgroupTiles + me.warp) * static_cast<std::uint32_t>(p.part.block_bytes);
  const auto release = [&](int stage) {
    if (me.lane < p.cluster) barrier_arrive_relaxed(cluster_address(ring.empty(stage), me.lane));
  };
  PackedPart part = p.part;
  if constexpr (kScales != ScaleKind::kNone) part.scale_kind = kScales;
  int previous = -1;
#pragma unroll 1
  for (int block = begin; block < end; ++block) {
    barrier_wait(ring.full(place.stage), place.phase);
    const std::uint32_t stage = ring.stage(place.stage);
    const std::uint64_t tile = tile_descriptor_unmasked(stage);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Values as they are go straight into the registers of a set, which ptxas takes for free too early: they are read only
      // once it is (tools/check_sass.py looks for what ptxas does with the others).
      constexpr bool kDirect = F::kArithmetic == WeightArithmetic::kValues;
      HalfCodes<F> codes;
      if constexpr (!kDirect) codes = load_codes<F>(SharedBlock{stage + my_block}, half, me.lane);
      using Scales = std::conditional_t<Shape::kSpreadScales, SpreadScales<F>, HalfScales<F>>;
      const auto scales = static_cast<Scales>(load_scales<F>(SharedBlock{stage + my_block}, part, half, me.lane));
#pragma unroll
      for (int set = 0; set < 4 / kSetSteps; ++set) {
        std::uint32_t(&registers)[kSetSteps][4] = a[kSetSteps == 4 ? half : set];
        // The group before the last has ended: its registers are free, and with them the stage that it read.
        wgmma_wait<1>();
        if constexpr (kDirect) codes = load_codes<F>(SharedBlock{stage + my_block}, half, me.lane);
        if (half * (4 / kSetSteps) + set == 1 && previous >= 0) release(previous);
        if (kSetSteps == 4 || set == 0) {
          fragment<F, 0>(codes, scales, registers[0]);
          fragment<F, 1>(codes, scales, registers[1]);
        }
        if constexpr (kSetSteps == 4) {
          fragment<F, 2>(codes, scales, registers[2]);
          fragment<F, 3>(codes, scales, registers[3]);
        } else if (set == 1) {
          fragment<F, 2>(codes, scales, registers[0]);
          fragment<F, 3>(codes, scales, registers[1]);
        }
#pragma unroll
        for (int i = 0; i < kSetSteps; ++i) hold(registers[i]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < kSetSteps; ++i) {
          const int step = set * kSetSteps + i;
          wgmma(acc, registers[i], advance_descriptor(tile, half * ring.kBoxBytes + step * 32),
                        half + step > 0 || block != begin);
        }
        wgmma_commit();
      }
    }
    previous = place.stage;
    place.advance(ring.stages);
  }
  wgmma_wait<0>();
  hold(acc);
  release(previous);
}

/// Sums of one warpgroup in scratch memory: [kTokens / 8][thread] of float4.
template <int kTokens>
__device__ __forceinline__ float4* sums_of(const WideParameters& p, int slot, int thread) {
  return static_cast<float4*>(p.partials) + static_cast<std::int64_t>(slot) * (kTokens / 8) * kWarpgroupThreads + thread;
}
template <int count>
__device__ __forceinline__ void store_sums(float4* to, const float (&values)[count]) {
#pragma unroll
  for (int i = 0; i < count / 4; ++i) {
    __stcg(to + i * kWarpgroupThreads, make_float4(values[4 * i], values[4 * i + 1], values[4 * i + 2], values[4 * i + 3]));
  }
}
/// values = stored + values.
template <int count>
__device__ __forceinline__ void add_to_stored(const float4* from, float (&values)[count]) {
#pragma unroll
  for (int i = 0; i < count / 4; ++i) {
    const float4 stored = __ldcg(from + i * kWarpgroupThreads);
    values[4 * i] = stored.x + values[4 * i];
    values[4 * i + 1] = stored.y + values[4 * i + 1];
    values[4 * i + 2] = stored.z + values[4 * i + 2];
    values[4 * i + 3] = stored.w + values[4 * i + 3];
  }
}

/// What a warpgroup's threads wrote is visible to who sees the counter raised.
__device__ __forceinline__ void raise(std::int32_t* counter, const Consumer& me) {
  warpgroup_sync(1 + me.group);
  if (me.thread() == 0) {
    __threadfence();
    atomicAdd(counter, 1);
  }
}
__device__ __forceinline__ void await(const std::int32_t* counter, int value, const Consumer& me) {
  if (me.thread() == 0) {
    std::int32_t seen;
    do {
      seen = load_acquire(counter);
    } while (seen < value);
  }
  warpgroup_sync(1 + me.group);
}

/// Where one thread's sums of a tile go: as TileOutput of mma.cuh, with what all tokens share worked out once. What the sums are
/// added to is read for many tokens before any is stored: a read that had to wait for the store before it would cost the latency of
/// memory for every element.
template <int kTokens>
class Output {
 public:
  __device__ __forceinline__ Output(const WideParameters& p, int tile, int token_tile, int lane) : out_(p.out) {
    const PackedPart& part = p.part;
    const int g = lane >> 2;
    const int rows[2] = {packed_row(part, tile, g), packed_row(part, tile, g + 8)};
    has_bias_ = part.bias != nullptr;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      wanted_[i] = tile < part.tiles && (part.paired_halves ? rows[0] < part.rows / 2 : rows[i] < part.rows);
      bias_[i] = wanted_[i] && has_bias_ ? part.bias[rows[i]] : 0.0f;
    }
    const bool gated = out_.gated != nullptr;
    const std::int64_t stride = gated ? part.rows / 2 : out_.y_stride;
    const int token = token_tile * kTokens + 2 * (lane & 3);
    const std::int64_t first = token * stride + rows[0] + (gated ? 0 : part.first_row);
    y_ = gated ? nullptr : out_.y + first;
    gated_ = gated ? out_.gated + first : nullptr;
    tokens_left_ = out_.rows - token;
    between_tokens_ = static_cast<int>(stride);
    between_rows_ = rows[1] - rows[0];
  }
  __device__ __forceinline__ bool accumulates() const { return out_.accumulate != 0; }

  /// before[0 .. 3] = what the thread's values of tokens 8 · n .. 8 · n + 7 are added to: rows g and g + 8, two tokens each.
  __device__ __forceinline__ void read(int n, float* before) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      before[i] = is_wanted(n, i) ? y_[offset(n, i)] : 0.0f;
    }
  }
  /// `before`: of read(), when the output accumulates.
  __device__ __forceinline__ void store(int n, const float* sums, const float* before) const {
    float values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = has_bias_ ? sums[i] + bias_[i >> 1] : sums[i];
    if (gated_ != nullptr) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (is_wanted(n, i)) gated_[offset(n, i)] = __float2bfloat16_rn(activate(out_.kind, values[i]) * values[2 + i]);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (is_wanted(n, i)) y_[offset(n, i)] = out_.accumulate ? before[i] + values[i] : values[i];
    }
  }

 private:
  __device__ __forceinline__ bool is_wanted(int n, int i) const { return 8 * n + (i & 1) < tokens_left_ && wanted_[i >> 1]; }
  /// Fits: wide_linear() takes no longer rows.
  __device__ __forceinline__ int offset(int n, int i) const {
    return (8 * n + (i & 1)) * between_tokens_ + (i >> 1) * between_rows_;
  }

  const LinearOutput& out_;
  float* y_;
  __nv_bfloat16* gated_;
  bool has_bias_, wanted_[2];
  float bias_[2];
  int tokens_left_, between_tokens_, between_rows_;
};

/// `before`: registers for what the sums are added to. As many as there are, a multiple of four, are read at once; what they hold is
/// lost. Never a wgmma's sums: ptxas makes the kernel's products wait for one another where anything else writes to those.
template <int kTokens, int kBefore>
__device__ __forceinline__ void store_sums_of_tile(const WideParameters& p, const WideRun& run, int groups, const Consumer& me,
                                           const float (&sum)[kTokens / 2], float (&before)[kBefore]) {
  constexpr int kGroups = kBefore / 4;  // of eight tokens
  static_assert(kTokens / 8 % kGroups == 0);
  const int tile = (run.row_group * groups + me.group) * kWarpgroupTiles + me.warp;
  const Output<kTokens> output(p, tile, run.token_tile, me.lane);
#pragma unroll
  for (int first = 0; first < kTokens / 8; first += kGroups) {
    if (output.accumulates()) {
#pragma unroll
      for (int i = 0; i < kGroups; ++i) output.read(first + i, &before[4 * i]);
    }
#pragma unroll
    for (int i = 0; i < kGroups; ++i) output.store(first + i, &sum[4 * (first + i)], &before[4 * i]);
  }
}

/// Takes over the sum that the CTA before this one published: values = its sum + values.
template <int count>
__device__ __forceinline__ void take_published(const WideParameters& p, int groups, const Consumer& me, float (&values)[count]) {
  const int slot = (static_cast<int>(blockIdx.x) - p.cluster) * groups + me.group;
  await(p.counters + slot, 1, me);
  add_to_stored(sums_of<2 * count>(p, slot, me.thread()), values);
  if (me.thread() == 0) p.counters[slot] = 0;
}
template <int count>
__device__ __forceinline__ void publish(const WideParameters& p, int groups, const Consumer& me, const float (&values)[count]) {
  const int slot = static_cast<int>(blockIdx.x) * groups + me.group;
  store_sums(sums_of<2 * count>(p, slot, me.thread()), values);
  raise(p.counters + slot, me);
}

template <typename F, ScaleKind kScales, int kTokens>
__device__ __forceinline__ void consume_sequential(const WideParameters& p, const Ring<kTokens>& ring, const Consumer& me,
                                                   int groups) {
  using Shape = WideShape<F, kTokens, SumMode::kSequential>;
  RingPosition place;
  WideRun run;
#pragma unroll 1
  for (int index = 0; find_run<SumMode::kSequential>(p, index, run); ++index) {
    float acc[kTokens / 2], sum[kTokens / 2];
#pragma unroll 1
    for (int segment = run.first_segment; segment < run.end_segment; ++segment) {
      sum_segment<F, kScales, kTokens, Shape>(p, ring, me, place, segment_begin(p, segment), segment_end(p, segment), acc);
      if (segment > 0 && segment == run.first_segment) take_published(p, groups, me, acc);
      const bool begins = segment == run.first_segment;
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) sum[i] = begins ? acc[i] : sum[i] + acc[i];
    }
    if (run.publishes) {
      publish(p, groups, me, sum);
    } else {
      float before[kTokens == 192 ? 4 : 16];  // registers that are free
      store_sums_of_tile<kTokens>(p, run, groups, me, sum, before);
    }
  }
}

template <typename F, ScaleKind kScales, int kTokens>
__device__ __forceinline__ void consume_tree(const WideParameters& p, const Ring<kTokens>& ring, const Consumer& me, int groups) {
  using Shape = WideShape<F, kTokens, SumMode::kTree>;
  // Left halves that the same CTA goes on with are parked behind all published ones.
  const int parked = (static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)) * groups + me.group;
  RingPosition place;
  WideRun run;
#pragma unroll 1
  for (int index = 0; find_run<SumMode::kTree>(p, index, run); ++index) {
    float acc[kTokens / 2], pair[kTokens / 2], half[kTokens / 2];
#pragma unroll 1
    for (int segment = run.first_segment; segment < run.end_segment; ++segment) {
      sum_segment<F, kScales, kTokens, Shape>(p, ring, me, place, segment_begin(p, segment), segment_end(p, segment), acc);
      const int leaf = segment % kTreeHalf;
      const bool last = leaf == kTreeHalf - 1 || segment + 1 == p.part.segments;
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) {
        if (leaf == 0) half[i] = acc[i];
        if (leaf == 1) half[i] = half[i] + acc[i];
        if (leaf == 2) pair[i] = acc[i];
        if (leaf == 3) pair[i] = pair[i] + acc[i];
        if (leaf >= 2 && last) half[i] = half[i] + pair[i];
      }
      if (!last) continue;
      if (segment >= kTreeHalf) {
        if (run.first_segment < kTreeHalf) {
          add_to_stored(sums_of<kTokens>(p, parked, me.thread()), half);
        } else {
          take_published(p, groups, me, half);
        }
      } else if (run.end_segment > kTreeHalf) {
        store_sums(sums_of<kTokens>(p, parked, me.thread()), half);
      }
    }
    if (run.publishes) {
      publish(p, groups, me, half);
    } else {
      store_sums_of_tile<kTokens>(p, run, groups, me, half, pair);
    }
  }
}

/// The sum over an output's segments, which `load(segment)` yields, in the part's order.
template <typename Load>
__device__ __forceinline__ float4 add_segments(const PackedPart& part, Load&& load) {
  float values[kSegmentsMax][4];
#pragma unroll
  for (int segment = 0; segment < kSegmentsMax; ++segment) {
    if (segment >= part.segments) continue;
    const float4 loaded = load(segment);
    values[segment][0] = loaded.x, values[segment][1] = loaded.y;
    values[segment][2] = loaded.z, values[segment][3] = loaded.w;
  }
  sum_segments(values, part.segments, part.segment_tree != 0);
  return make_float4(values[0][0], values[0][1], values[0][2], values[0][3]);
}

template <typename F, ScaleKind kScales, int kTokens>
__device__ __forceinline__ void consume_split(const WideParameters& p, const Ring<kTokens>& ring, const Consumer& me, int groups) {
  using Shape = WideShape<F, kTokens, SumMode::kSplit>;
  const int segments = p.part.segments;
  RingPosition place;
  WideRun run;
#pragma unroll 1
  for (int index = 0; find_run<SumMode::kSplit>(p, index, run); ++index) {
    float acc[kTokens / 2];
    const int segment = run.first_segment;
    sum_segment<F, kScales, kTokens, Shape>(p, ring, me, place, segment_begin(p, segment), segment_end(p, segment), acc);
    const int output = (run.row_group * p.token_tiles + run.token_tile) * groups + me.group;
    store_sums(sums_of<kTokens>(p, output * segments + segment, me.thread()), acc);
    raise(p.counters + 2 * output, me);
  }
  // Who computed a segment adds an equal share of the tokens.
#pragma unroll 1
  for (int index = 0; find_run<SumMode::kSplit>(p, index, run); ++index) {
    const int output = (run.row_group * p.token_tiles + run.token_tile) * groups + me.group;
    std::int32_t* counter = p.counters + 2 * output;
    await(counter, segments, me);
    const int tile = (run.row_group * groups + me.group) * kWarpgroupTiles + me.warp;
    const Output<kTokens> place_of(p, tile, run.token_tile, me.lane);
#pragma unroll 1
    for (int n = run.first_segment; n < kTokens / 8; n += segments) {
      float before[4];
      if (place_of.accumulates()) place_of.read(n, before);
      const float4 sum = add_segments(p.part, [&](int segment) {
        return __ldcg(sums_of<kTokens>(p, output * segments + segment, me.thread()) + n * kWarpgroupThreads);
      });
      const float values[4] = {sum.x, sum.y, sum.z, sum.w};
      place_of.store(n, values, before);
    }
    warpgroup_sync(1 + me.group);
    if (me.thread() == 0 && atomicAdd(counter + 1, 1) == segments - 1) {
      counter[0] = 0;
      counter[1] = 0;
    }
  }
}

}  // namespace wide

/// kScales: the part's scale kind where the format leaves it open (a branch in the loop would keep ptxas from overlapping
/// wgmma with anything), else kNone.
template <typename F, ScaleKind kScales, int kTokens, SumMode mode>
__global__ void __launch_bounds__(WideShape<F, kTokens, mode>::kThreadsMax, 1)
    wide_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap activations,
                const __grid_constant__ WideParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = WideShape<F, kTokens, mode>;
  extern __shared__ __align__(1024) std::uint8_t shared[];
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int groups = static_cast<int>(blockDim.x) / kWarpgroupThreads - 1;
  const wide::Ring<kTokens> ring(p, shared_address(shared));
  allow_next();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < p.stages; ++stage) {
      barrier_init(ring.full(stage), 1);
      barrier_init(ring.empty(stage), groups * 4 * p.cluster);
    }
    publish_barriers();
  }
  __syncwarp();
  cluster_sync_unaligned();
  if (warp / 4 == groups) {
    give_registers<Shape::kProducerRegisters>();
    if (static_cast<int>(threadIdx.x) == groups * kWarpgroupThreads) {
      wide::produce<kTokens, mode>(p, &weights, &activations, ring, groups);
    } else {
      wait_for_previous();
    }
  } else {
    take_registers<Shape::kConsumerRegisters>();
    const wide::Consumer me{warp / 4, warp % 4, static_cast<int>(threadIdx.x) % 32};
    wait_for_previous();
    if constexpr (mode == SumMode::kSequential) {
      wide::consume_sequential<F, kScales, kTokens>(p, ring, me, groups);
    } else if constexpr (mode == SumMode::kTree) {
      wide::consume_tree<F, kScales, kTokens>(p, ring, me, groups);
    } else {
      wide::consume_split<F, kScales, kTokens>(p, ring, me, groups);
    }
  }
  // A CTA stays while its neighbour may still write to its memory or arrive at its barriers.
  cluster_sync_unaligned();
#else
  (void)weights, (void)activations, (void)p;  // DeviceFacts::hopper keeps other GPUs away
#endif
}

}  // namespace tensorfold::ops::cuda
