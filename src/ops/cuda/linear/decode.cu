// Choosing how the decode kernel runs, and launching it.
#include <algorithm>
#include <cstdint>

#include "ops/cuda/linear/decode_kernel.cuh"

namespace tensorfold::ops::cuda {
namespace {

int divide_up(int a, int b) {
  return (a + b - 1) / b;
}

/// Tiles that one warp works on side by side: what registers allow and instantiation costs.
template <typename F, int token_tiles>
constexpr int tiles_at_once_max = F::kSmallScales && token_tiles == 1 ? 3 : 2;

/// Completes `arguments` from `plan`; the bytes of shared memory that it takes.
std::size_t lay_out(const PackedPart& part, const DecodePlan& plan, int rows, int token_tiles, int tiles_at_once,
                    DecodeArguments& arguments) {
  arguments.cluster = plan.cluster;
  arguments.slots = plan.slots;
  arguments.slot_warps = divide_up(part.segments, plan.cluster);
  arguments.stages = plan.stages;
  arguments.buffers = plan.buffers;
  const int input = arguments.slot_warps * part.segment_blocks * kBlockColumns * 2 * rows;
  const int owned_slots = divide_up(plan.slots, plan.cluster);
  const int sums = owned_slots * plan.buffers * tiles_at_once * kSegmentsMax * token_tiles * kPieceBytes;
  const int rings = plan.slots * arguments.slot_warps * plan.stages * tiles_at_once * part.block_bytes;
  arguments.sums_at = static_cast<std::uint32_t>(divide_up(input, 128) * 128);
  arguments.rings_at = arguments.sums_at + static_cast<std::uint32_t>(sums);
  arguments.barriers_at = arguments.rings_at + static_cast<std::uint32_t>(divide_up(rings, 16) * 16);
  return arguments.barriers_at + static_cast<std::size_t>(8 * (owned_slots + plan.slots) * plan.buffers);
}

bool sound(const DeviceFacts& facts, const PackedPart& part, const DecodePlan& plan, int rows, int token_tiles,
           int tiles_at_once, int warps_max) {
  const int slot_warps = divide_up(part.segments, plan.cluster);
  if (plan.slots < 1 || plan.slots * slot_warps > warps_max) return false;
  if ((plan.cluster - 1) * slot_warps >= part.segments) return false;  // a CTA without a segment
  DecodeArguments arguments;
  return lay_out(part, plan, rows, token_tiles, tiles_at_once, arguments) <= static_cast<std::size_t>(facts.shared_bytes_max);
}

int cluster_count(const DeviceFacts& facts, int cluster) {
  // Clusters of four don't fit evenly into an H200's groups of multiprocessors: 30 of them run at once.
  return cluster == 4 ? facts.sm_count * 10 / 44 : facts.sm_count / cluster;
}

/// Bytes of weights that the busiest multiprocessor's share comes to, in tiles of all K: what a launch takes, roughly.
double busiest_share(const DeviceFacts& facts, const PackedPart& part, int cluster, int slots) {
  const int tiles = divide_up(part.tiles, cluster_count(facts, cluster));
  const int slot_warps = divide_up(part.segments, cluster);
  return static_cast<double>(divide_up(tiles, slots) * slots * slot_warps) / part.segments;
}

template <typename F, int token_tiles>
bool choose(const DeviceFacts& facts, const PackedPart& part, int rows, DecodePlan& plan) {
  constexpr int kTilesAtOnce = tiles_at_once_max<F, token_tiles>;
  constexpr int kWarps = decode_warps_max<F, token_tiles>;
  double best = 0;
  bool found = false;
  for (const int cluster : {2, 1, 4}) {
    if (plan.cluster != 0 && plan.cluster != cluster) continue;
    const int slots_most = kWarps / divide_up(part.segments, cluster);
    for (int slots = plan.slots != 0 ? plan.slots : slots_most; slots >= 1; --slots) {
      const int clusters = plan.clusters != 0 ? plan.clusters : std::min(part.tiles, cluster_count(facts, cluster));
      DecodePlan candidate = plan;
      candidate.cluster = cluster;
      candidate.slots = slots;
      candidate.clusters = clusters;
      candidate.tiles_at_once = plan.tiles_at_once != 0 ? plan.tiles_at_once : kTilesAtOnce;
      candidate.stages = plan.stages != 0 ? plan.stages : 2;
      candidate.buffers = plan.buffers != 0 ? plan.buffers : 2;
      bool fits = sound(facts, part, candidate, rows, token_tiles, kTilesAtOnce, kWarps);
      if (!fits && plan.buffers == 0) {
        candidate.buffers = 1;
        fits = sound(facts, part, candidate, rows, token_tiles, kTilesAtOnce, kWarps);
      }
      if (fits) {
        const double share = busiest_share(facts, part, cluster, slots);
        if (!found || share < best) {
          best = share;
          candidate.tiles_at_once = kTilesAtOnce;
          found = true;
          plan = candidate;
        }
      }
      if (plan.slots != 0) break;
    }
  }
  return found;
}

template <typename F, int token_tiles>
bool run(CudaContext& context, const PackedPart& part, const LinearCall& call, DecodePlan plan) {
  constexpr int kTilesAtOnce = tiles_at_once_max<F, token_tiles>;
  if (!choose<F, token_tiles>(context.facts(), part, call.rows, plan)) return false;
  DecodeArguments arguments{};
  arguments.part = part;
  arguments.x = static_cast<const __nv_bfloat16*>(call.x);
  arguments.row_index = call.row_index;
  arguments.runs_aligned = part.columns % 8 == 0 && reinterpret_cast<std::uintptr_t>(call.x) % 16 == 0;
  arguments.out = linear_output(call);
  LaunchShape shape;
  shape.shared_bytes = lay_out(part, plan, call.rows, token_tiles, kTilesAtOnce, arguments);
  shape.cluster = plan.cluster;
  shape.grid = dim3(static_cast<unsigned>(plan.clusters * plan.cluster));
  shape.block = dim3(static_cast<unsigned>(32 * plan.slots * arguments.slot_warps));
  launch(context, "a linear layer", decode_linear_kernel<F, token_tiles, kTilesAtOnce>, shape, arguments);
  return true;
}

}  // namespace

bool decode_linear(CudaContext& context, const PackedPart& part, const LinearCall& call, const DecodePlan& wanted) {
  if (!context.facts().hopper || call.rows > kDecodeRowsMax) return false;
  bool done = false;
  visit_format(part, [&]<typename F>() {
    done = call.rows <= 8 ? run<F, 1>(context, part, call, wanted) : run<F, 2>(context, part, call, wanted);
  });
  return done;
}

}  // namespace tensorfold::ops::cuda
