// See grouped_experts.h: which layers fit, and the shapes of the launches.
#include "ops/cuda/moe/grouped_experts.cuh"

#include <algorithm>

#include "base/assert.h"
#include "ops/cuda/kernel_facts.h"
#include "ops/cuda/moe/routing.h"

namespace tensorfold::ops::cuda::experts {
namespace {

constexpr int kStagesMax = 8;
constexpr int kStagesWanted = 4;

std::int32_t parked_levels(const PackedPart& part) {
  return part.segment_tree == 0 || part.segments <= 2 ? 0 : part.segments <= 4 ? 1 : 2;
}

/// Ring, staging and barriers; returns the bytes, or 0 when not even two stages fit.
std::int32_t plan_shared(const CudaContext& context, bool down, GroupedLaunch& launch) {
  launch.stage_bytes = (launch.item_rows * 256 + kGroupedTiles * launch.part.block_bytes + 1023) / 1024 * 1024;
  launch.staging_floats =
      down ? launch.item_rows * std::max(kOutputStride, parked_levels(launch.part) * 64) : 0;
  const std::int32_t staging = 2 * launch.staging_floats * 4, barriers = 2 * kStagesMax * 8;
  launch.stages = std::min((context.facts().shared_bytes_max - staging - barriers) / launch.stage_bytes, kStagesMax);
  if (launch.stages < 2) return 0;
  launch.staging = launch.stages * launch.stage_bytes;
  launch.barriers = launch.staging + staging;
  return launch.barriers + barriers;
}

/// Long enough for nearly all experts where rows spread evenly, as short as that allows: a stage holds as many rows.
std::int32_t item_rows_for(const CudaContext& context, const RoutingInputs& routing, const PackedPart& part, bool down) {
  const std::int64_t mean = static_cast<std::int64_t>(routing.rows) * routing.top_k / routing.experts;
  GroupedLaunch launch;
  launch.part = part;
  launch.item_rows = mean <= 8 ? 32 : mean <= 24 ? 64 : mean <= 72 ? 96 : kTokensMax;
  while (launch.item_rows > 32 && (plan_shared(context, down, launch) == 0 || launch.stages < kStagesWanted)) {
    launch.item_rows -= 32;
  }
  return launch.item_rows;
}

template <typename F, bool down>
auto grouped_kernel(const PackedPart& part) {
  if constexpr (down) {
    if (part.segment_tree != 0) return grouped_experts<F, true, true>;
  }
  return grouped_experts<F, down, false>;
}

template <bool down>
void launch_grouped(CudaContext& context, GroupedLaunch& facts) {
  const std::int32_t bytes = plan_shared(context, down, facts);
  TF_ASSERT(bytes > 0);
  LaunchShape shape;
  shape.grid = static_cast<unsigned>(context.facts().sm_count);
  shape.block = kGroupedThreads;
  shape.shared_bytes = static_cast<std::size_t>(bytes);
  visit_format(facts.part, [&]<typename F>() {
    const auto kernel = grouped_kernel<F, down>(facts.part);
    TF_ASSERT(kernel_registers(context.facts(), reinterpret_cast<const void*>(kernel)) >= kGroupedLaunchRegisters);
    launch(context, down ? "running experts' down" : "running experts' gate and up", kernel, shape, facts);
  });
}

bool fits(const CudaContext& context, const PackedPart& part, bool down) {
  GroupedLaunch launch;
  launch.part = part;
  launch.item_rows = 32;
  return plan_shared(context, down, launch) > 0;
}

}  // namespace

bool grouped_experts_fit(const CudaContext& context, const PackedPart& gate_up, const PackedPart& down) {
  if (!context.facts().hopper || gate_up.paired_halves == 0 || gate_up.segment_tree != 0) return false;
  if (gate_up.columns % 8 != 0 || down.columns % 8 != 0 || down.rows % 4 != 0) return false;
  return fits(context, gate_up, false) && fits(context, down, true);
}

void set_grouped_item_rows(const CudaContext& context, const PackedPart& gate_up, const PackedPart& down,
                           RoutingInputs& routing) {
  routing.item_rows[0] = item_rows_for(context, routing, gate_up, false);
  routing.item_rows[1] = item_rows_for(context, routing, down, true);
}

void run_grouped_experts(CudaContext& context, const GroupedExperts& experts) {
  const RoutingInputs& routing = experts.routing;
  const std::int64_t slots = static_cast<std::int64_t>(routing.rows) * routing.top_k;
  auto* inner = static_cast<std::uint16_t*>(
      context.scratch(Scratch::kActivations, static_cast<std::size_t>(slots * experts.down.columns * 2)));
  auto* outputs = static_cast<float*>(
      context.scratch(Scratch::kPartials, static_cast<std::size_t>(slots * experts.down.rows) * sizeof(float)));
  GroupedLaunch launch;
  launch.slots = experts.plan.slots;
  launch.top_k = routing.top_k;
  launch.kind = experts.kind;
  launch.inner = inner;
  launch.outputs = outputs;

  launch.part = experts.gate_up;
  launch.x = experts.x;
  launch.items = experts.plan.items[0];
  launch.item_count = experts.plan.item_counts;
  launch.item_rows = routing.item_rows[0];
  launch_grouped<false>(context, launch);

  launch.part = experts.down;
  launch.x = inner;
  launch.items = experts.plan.items[1];
  launch.item_count = experts.plan.item_counts + 1;
  launch.item_rows = routing.item_rows[1];
  launch_grouped<true>(context, launch);

  combine(context, routing, experts.plan, experts.target, outputs);
}

}  // namespace tensorfold::ops::cuda::experts
