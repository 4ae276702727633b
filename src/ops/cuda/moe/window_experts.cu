// See window_experts.h: which layers fit, and the shape of the launch.
#include "ops/cuda/moe/window_experts.cuh"

#include <algorithm>
#include <bit>
#include <tuple>

#include "base/assert.h"

namespace tensorfold::ops::cuda::experts {
namespace {

constexpr int kDeepStages = 6;      // of a ring, where blocks are small
constexpr int kShallowStages = 3;

int stages_of(const PackedPart& part) {
  return part.bits <= 4 ? kDeepStages : kShallowStages;
}

/// Two buffers of segments for every tile at hand; the shared expert has one at a time.
std::int32_t partial_bytes(std::int32_t sharing_shift) {
  return (kWindowWarps >> sharing_shift) * 2 * kSegmentsMax * 512;
}

int units_of(const PackedPart& down, std::int32_t unit_segments) {
  return (down.segments + unit_segments - 1) / unit_segments;
}

/// How many of down's segments a warp adds, so that warps are done soonest: few slots leave them idle unless several share
/// one. Groups must be subtrees of the sum, a power of two of them.
std::int32_t choose_unit_segments(const PackedPart& down, std::int32_t slots) {
  if (down.segment_tree == 0) return kSegmentsMax;
  std::int32_t best = kSegmentsMax, best_turns = INT32_MAX;  // in segments; a unit costs one more
  for (std::int32_t unit = kSegmentsMax; unit >= 1; unit /= 2) {
    if (!std::has_single_bit(static_cast<unsigned>(units_of(down, unit)))) continue;
    const std::int32_t units = slots * units_of(down, unit);
    const std::int32_t turns = (units + kWindowWarps - 1) / kWindowWarps * (std::min(unit, down.segments) + 1);
    if (turns < best_turns) best = unit, best_turns = turns;
  }
  return slots < kWindowWarps ? best : kSegmentsMax;
}

/// How the launch is cut, and its shared memory; the second is what is returned.
std::int32_t plan_launch(const CudaContext& context, const PackedPart& gate_up, const PackedPart& down,
                         const RoutingInputs& routing, bool shared, WindowLaunch& launch) {
  launch.routes = window_experts_route(routing);
  launch.slots_per_row = routing.top_k + (shared ? 1 : 0);
  launch.shared_items = shared ? (routing.rows + kWindowItemRows - 1) / kWindowItemRows : 0;
  launch.shared_slots = shared ? routing.rows : 0;
  const std::int32_t routed_slots = routing.rows * routing.top_k, slots = routing.rows * launch.slots_per_row;
  launch.block_bytes = std::max(launch.gate_up ? gate_up.block_bytes : 0, launch.down ? down.block_bytes : 0);
  const std::int32_t tiles_per_cta = routed_slots * gate_up.tiles / context.facts().sm_count;
  launch.sharing_shift = tiles_per_cta <= 2 ? 3 : 2;
  launch.unit_segments = choose_unit_segments(down, slots);
  const std::int32_t units = units_of(down, launch.unit_segments);
  launch.units_shift = std::countr_zero(static_cast<unsigned>(units));
  const std::int32_t x_buffers = launch.routes ? (routing.rows + kWindowItemRows - 1) / kWindowItemRows : 2;
  std::int32_t bytes = std::max(launch.gate_up ? gate_up.k_blocks * x_buffers * 2048 : 0,
                                launch.down ? units * slots * kTileRows * 4 : 0);
  const auto take = [&bytes](std::int32_t size) {
    const std::int32_t place = (bytes + 15) / 16 * 16;
    bytes = place + size;
    return place;
  };
  launch.ring = take(kWindowWarps * stages_of(launch.gate_up ? gate_up : down) * launch.block_bytes);
  launch.partials = take(partial_bytes(launch.sharing_shift));
  const auto routed_items = static_cast<std::int32_t>(item_capacity(routed_slots, routing.experts, kWindowItemRows));
  launch.items = take((routed_items + launch.shared_items) * 4);
  launch.slots = take(slots * 2);
  if (launch.routes) {
    launch.chosen = take(routed_slots * 4);
    launch.weights = take(routed_slots * 4);
    launch.masks = take((kWindowExpertsRoutedMax + kWindowWarps) * 4);
    launch.candidates = take(routing.rows * kRouteCandidates * static_cast<std::int32_t>(sizeof(RouteCandidate)));
  }
  constexpr auto kEarlyBytes = static_cast<std::int32_t>(sizeof(CombineInputs));
  if (launch.down) launch.early = take(std::min(routing.rows * kTileRows, kWindowThreads) * kEarlyBytes);
  launch.barriers = take(16);
  return bytes;
}

template <typename F>
void launch_format(CudaContext& context, const WindowExperts& experts, const WindowLaunch& launch_facts,
                   std::int32_t shared_bytes) {
  if constexpr (F::kBits <= 8) {
    LaunchShape shape;
    shape.grid = static_cast<unsigned>(context.facts().sm_count);
    shape.block = kWindowThreads;
    shape.shared_bytes = static_cast<std::size_t>(shared_bytes);
    constexpr int kStages = F::kBits <= 4 ? kDeepStages : kShallowStages;
    launch(context, "running a window's experts", window_experts<F, kStages>, shape, experts, launch_facts);
  }
}

bool same_format(const PackedPart& a, const PackedPart& b) {
  return a.bits == b.bits && a.scale_kind == b.scale_kind && a.small_scales == b.small_scales &&
         (a.group_size >= 64) == (b.group_size >= 64);
}

}  // namespace

bool window_experts_route(const RoutingInputs& routing) {
  return routing.rows <= kWindowRoutedRowsMax && routing.experts <= kWindowExpertsRoutedMax;
}

bool stored_alike(const PackedPart& one, const PackedPart& other) {
  const auto layout = [](const PackedPart& part) {
    return std::tuple(part.bits, part.scale_kind, part.group_size, part.zero_point, part.small_scales, part.block_bytes,
                      part.first_row, part.rows, part.columns, part.segment_tree, part.paired_halves, part.bias == nullptr);
  };
  return layout(one) == layout(other) && one.bias == nullptr;
}

bool window_experts_fit(const CudaContext& context, const PackedPart& gate_up, const PackedPart& down,
                        const RoutingInputs& routing, bool shared) {
  const std::int64_t slots = static_cast<std::int64_t>(routing.rows) * routing.top_k;
  if (shared && !window_experts_route(routing)) return false;
  if (slots > kWindowSlotsMax || routing.top_k > kTopKMax || routing.experts > 65535) return false;
  if (gate_up.paired_halves == 0 || gate_up.columns % 8 != 0 || gate_up.bits > 8 || down.bits > 8) return false;
  for (const bool split : {false, true}) {
    if (split && same_format(gate_up, down)) continue;
    if (!split && !same_format(gate_up, down)) continue;
    for (const bool gate_up_phase : {true, false}) {
      WindowLaunch launch;
      launch.gate_up = !split || gate_up_phase;
      launch.down = !split || !gate_up_phase;
      if (plan_launch(context, gate_up, down, routing, shared, launch) > context.facts().shared_bytes_max) return false;
    }
  }
  return true;
}

void run_window_experts(CudaContext& context, const WindowExperts& experts) {
  const bool shared = experts.shared_gate_up != nullptr;
  TF_ASSERT(window_experts_fit(context, experts.gate_up, experts.down, experts.routing, shared));
  const std::int64_t slots = static_cast<std::int64_t>(experts.routing.rows) * (experts.routing.top_k + (shared ? 1 : 0));
  WindowLaunch launch;
  launch.inner = static_cast<std::uint16_t*>(context.scratch(
      Scratch::kActivations, static_cast<std::size_t>(slots * experts.down.k_blocks * kBlockColumns * 2)));
  launch.counters = static_cast<std::uint32_t*>(context.scratch(Scratch::kCounters, 256));
  const bool together = same_format(experts.gate_up, experts.down);
  for (const bool first : {true, false}) {
    launch.gate_up = first;
    launch.down = together || !first;
    const std::int32_t bytes = plan_launch(context, experts.gate_up, experts.down, experts.routing, shared, launch);
    visit_format(first ? experts.gate_up : experts.down,
                 [&]<typename F>() { launch_format<F>(context, experts, launch, bytes); });
    if (together) return;
  }
}

}  // namespace tensorfold::ops::cuda::experts
