// Choosing a plan and launching it. See wide.h.
#include "ops/cuda/linear/wide.h"

#include <algorithm>
#include <cstdint>

#include "base/assert.h"
#include "ops/cuda/kernel_facts.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear/wide_maps.h"
#include "ops/cuda/linear/wide_parameters.h"
#include "ops/cuda/linear/wide_table.h"

namespace tensorfold::ops::cuda {
namespace {

constexpr int kRingStagesMin = 3;
constexpr int kRingStagesMax = 16;
constexpr int kBarrierBytes = 16;  // of a stage
constexpr std::int64_t kPartialBytesMax = 256ll << 20;
constexpr std::int64_t kStrideMax = INT32_MAX / 256;  // Output (wide_kernel.cuh) counts a tile's elements with 32 bits

// What a multiprocessor of an H200 does in a cycle, for comparing plans: rough, and only ever a matter of speed.
constexpr double kWeightBytesPerCycle = 18;   // from memory, all multiprocessors reading
constexpr double kCachedBytesPerCycle = 24;   // from the L2 cache, likewise
constexpr double kDequantiseCycles = 150;     // of a k block of one warpgroup
constexpr double kSegmentCycles = 250;        // draining the tensor cores and adding a segment's sum
constexpr double kStoreCyclesPerToken = 8;    // of a warpgroup's rows
constexpr double kMeetingCycles = 5000;       // CTAs that wait for each other's sums
constexpr double kHandOverCycles = 1500;

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

double block_cycles(const PackedPart& part, const WidePlan& plan) {
  const double weights = static_cast<double>(plan.groups) * kWarpgroupTiles * part.block_bytes;
  const double from_memory = plan.token_tiles == 1 ? weights / kWeightBytesPerCycle : 0;
  const double cached = (plan.tokens * 2.0 * kBlockColumns / plan.cluster + weights) / kCachedBytesPerCycle;
  const double tensor = plan.groups * (kBlockColumns / 16) * plan.tokens / 2.0;
  return std::max({from_memory, cached, tensor, plan.groups * kDequantiseCycles});
}

// Bytes of the sums that one warpgroup hands over.
std::int64_t sum_bytes(const WidePlan& plan) {
  return static_cast<std::int64_t>(plan.tokens) * kWarpgroupTiles * kTileRows * static_cast<std::int64_t>(sizeof(float));
}

std::int64_t partial_slots(const PackedPart& part, const WidePlan& plan) {
  switch (plan.mode) {
    case SumMode::kSplit:
      return static_cast<std::int64_t>(plan.items) * plan.cluster * plan.groups * part.segments;
    case SumMode::kTree:
      return 2ll * plan.grid * plan.groups;
    case SumMode::kSequential:
      break;
  }
  return static_cast<std::int64_t>(plan.grid) * plan.groups;
}

std::int64_t counters(const WidePlan& plan) {
  return static_cast<std::int64_t>(plan.groups) * (plan.mode == SumMode::kSplit ? 2 * plan.items * plan.cluster : plan.grid);
}

// out[r] = x[rows[r]], 16 bytes a step.
__global__ void gather_rows_kernel(const uint4* x, IdsRef rows, std::int64_t row_words, std::int64_t words, uint4* out) {
  allow_next();
  wait_for_previous();
  const std::int32_t* list = pass_ids(rows);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words; i += step) {
    out[i] = x[list[i / row_words] * row_words + i % row_words];
  }
}

const void* gather_rows(CudaContext& context, const PackedPart& part, const LinearCall& call) {
  const std::int64_t row_words = part.columns / 8, words = row_words * call.rows;
  void* out = context.scratch(Scratch::kActivations, static_cast<std::size_t>(words) * 16);
  LaunchShape shape;
  shape.block = 256;
  shape.grid = static_cast<unsigned>(std::min<std::int64_t>(divide_up(words, 256), 8ll * context.facts().sm_count));
  launch(context, "gathering rows", gather_rows_kernel, shape, static_cast<const uint4*>(call.x), call.row_index, row_words, words,
         static_cast<uint4*>(out));
  return out;
}

WideKernel find_kernel(const PackedPart& part, const WidePlan& plan) {
  return plan.tokens <= 64 ? find_window_kernel(part, plan) : find_prompt_kernel(part, plan);
}

void consider(const DeviceFacts& facts, const PackedPart& part, std::int64_t rows, SumMode mode, int tokens, WidePlan& best,
              bool& found) {
  for (int cluster = 1; cluster <= 2; ++cluster) {
    for (int groups = 1; groups <= wide_groups_max(tokens, mode, part.small_scales != 0); ++groups) {
      WidePlan plan;
      plan.mode = mode;
      plan.tokens = tokens;
      plan.groups = groups;
      plan.cluster = cluster;
      if (!complete_wide_plan(facts, part, rows, plan)) continue;
      if (found && plan.cost > best.cost) continue;  // of equals the later one: it reads activations less often
      best = plan;
      found = true;
    }
  }
}

}  // namespace

bool complete_wide_plan(const DeviceFacts& facts, const PackedPart& part, std::int64_t rows, WidePlan& plan) {
  const int segments = part.segments;
  const bool split = plan.mode == SumMode::kSplit;
  if (plan.groups > wide_groups_max(plan.tokens, plan.mode, part.small_scales != 0)) return false;
  const std::int64_t row_groups = divide_up(part.tiles, static_cast<std::int64_t>(plan.cluster) * plan.groups * kWarpgroupTiles);
  const int clusters = facts.sm_count / plan.cluster;
  const std::int64_t token_tiles = divide_up(rows, plan.tokens);
  const std::int64_t items = row_groups * token_tiles;
  if (items * segments > (1 << 30)) return false;
  plan.token_tiles = static_cast<std::int32_t>(token_tiles);
  plan.items = static_cast<std::int32_t>(items);
  plan.item_units = plan.mode == SumMode::kTree ? (segments > kTreeHalf ? 2 : 1) : segments;
  const std::int64_t units = items * plan.item_units;
  // Sharing items evenly pays while a CTA has about one of its own; below that each would wait for the ones before.
  const bool shared = split || 4 * items >= 3ll * clusters;
  const std::int64_t busy = std::min<std::int64_t>(clusters, shared ? units : items);
  plan.grid = static_cast<std::int32_t>(busy * plan.cluster);
  plan.stage_bytes = static_cast<std::int32_t>(
      divide_up(plan.tokens * 2 * kBlockColumns + plan.groups * kWarpgroupTiles * part.block_bytes, 1024) * 1024);
  plan.stages = std::min(kRingStagesMax, facts.shared_bytes_max / (plan.stage_bytes + kBarrierBytes));
  if (plan.stages < kRingStagesMin || partial_slots(part, plan) * sum_bytes(plan) > kPartialBytesMax) return false;

  const double unit_segments = plan.mode == SumMode::kTree ? std::min(segments, kTreeHalf) : 1;
  const double unit_cycles = unit_segments * (part.segment_blocks * block_cycles(part, plan) + kSegmentCycles);
  const double busiest = static_cast<double>(divide_up(units, busy));
  const double hand_over = 2.0 * static_cast<double>(sum_bytes(plan)) * plan.groups / kCachedBytesPerCycle;
  plan.cost = busiest * unit_cycles + busiest / plan.item_units * plan.tokens * plan.groups * kStoreCyclesPerToken;
  if (split) {
    plan.cost += kMeetingCycles + busiest * hand_over;
  } else if (units % busy != 0 || busiest < plan.item_units) {
    plan.cost += kHandOverCycles + hand_over;
  }
  if (plan.mode == SumMode::kTree) plan.cost += busiest / plan.item_units * hand_over;
  return true;
}

bool choose_wide_plan(const DeviceFacts& facts, const PackedPart& part, std::int64_t rows, WidePlan& plan) {
  bool found = false;
  const SumMode whole = part.segment_tree ? SumMode::kTree : SumMode::kSequential;
  if (rows <= 64) {
    const int tokens = rows <= 32 ? 32 : 64;
    if (!part.segment_tree) consider(facts, part, rows, whole, tokens, plan, found);
    consider(facts, part, rows, SumMode::kSplit, tokens, plan, found);
    if (found) return true;
  }
  consider(facts, part, rows, whole, 128, plan, found);
  consider(facts, part, rows, SumMode::kSplit, 128, plan, found);
  if (rows > 128 && !part.segment_tree) consider(facts, part, rows, whole, 192, plan, found);
  return found;
}

void run_wide_plan(CudaContext& context, const PackedPart& part, const LinearCall& call, const WidePlan& plan) {
  const void* x = call.row_index.header != nullptr ? gather_rows(context, part, call) : call.x;
  WideParameters parameters;
  parameters.part = part;
  parameters.out = linear_output(call);
  parameters.cluster = plan.cluster;
  parameters.token_tiles = plan.token_tiles;
  parameters.items = plan.items;
  parameters.item_units = plan.item_units;
  parameters.stages = plan.stages;
  parameters.stage_bytes = plan.stage_bytes;
  parameters.read_once = plan.token_tiles == 1;
  parameters.partials =
      context.scratch(Scratch::kPartials, static_cast<std::size_t>(partial_slots(part, plan) * sum_bytes(plan)));
  parameters.counters = static_cast<std::int32_t*>(
      context.scratch(Scratch::kCounters, static_cast<std::size_t>(counters(plan)) * sizeof(std::int32_t)));
  LaunchShape shape;
  shape.grid = static_cast<unsigned>(plan.grid);
  shape.cluster = plan.cluster;
  shape.block = static_cast<unsigned>((plan.groups + 1) * kWarpgroupThreads);
  shape.shared_bytes = static_cast<std::size_t>(plan.stages) * static_cast<std::size_t>(plan.stage_bytes + kBarrierBytes);
  const WideKernel kernel = find_kernel(part, plan);
  TF_ASSERT(kernel != nullptr);
  TF_ASSERT(kernel_registers(context.facts(), reinterpret_cast<const void*>(kernel)) >=
            wide_launch_registers(wide_groups_max(plan.tokens, plan.mode, part.small_scales != 0)));
  launch(context, "a wide linear layer", kernel, shape,
         weight_map(part, plan.groups * kWarpgroupTiles), activation_map(x, call.rows, part.columns, plan.tokens / plan.cluster), parameters);
}

bool wide_linear(CudaContext& context, const PackedPart& part, const LinearCall& call) {
  if (!context.facts().hopper || part.columns % 8 != 0 || std::max<std::int64_t>(call.y_stride, part.rows) > kStrideMax) return false;
  WidePlan plan;
  if (!choose_wide_plan(context.facts(), part, call.rows, plan) || find_kernel(part, plan) == nullptr) return false;
  run_wide_plan(context, part, call, plan);
  return true;
}

}  // namespace tensorfold::ops::cuda
