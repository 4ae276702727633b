// Choosing how the decode kernel runs, and launching it.
#include <algorithm>
#include <bit>
#include <cstdint>

#include "ops/cuda/aligned.cuh"
#include "ops/cuda/linear/decode_kernel.cuh"

namespace tensorfold::ops::cuda {
namespace {

constexpr int kReservedBytes = 1024;  // of shared memory, a CTA
constexpr int kBarrierBytes = 8;
constexpr std::int64_t kSmallLayerBytes = 4 << 20;
// Rows that a layer norms itself, and their bytes in fp32: every CTA reads them all, one after the other, and beyond this that takes
// longer than a launch. SmolLM2 (576 wide): 0.75 instead of 0.87 ms for one row, but 1.21 instead of 1.04 ms for eight.
constexpr std::int64_t kNormedRowsMax = 2;
constexpr std::int64_t kNormedBytesMax = 32 << 10;

// K up to which two tiles at once are quicker than three: their code is shorter (1.70 instead of 1.75 ms a pass of the 35B-A3B). A
// bound that gives most of a model's layers one build: passes that mixed two were slower wherever that was tried.
constexpr std::int32_t kShortColumnsMax = 4096;

int divide_up(int a, int b) {
  return (a + b - 1) / b;
}

EvenCut cut(int count, int pieces) {
  return {count / pieces, count % pieces};
}

int cluster_count(const DeviceFacts& facts, int cluster) {
  // Clusters of four don't fit evenly into an H200's groups of multiprocessors: 30 of them run at once.
  return cluster == 4 ? facts.sm_count * 10 / 44 : facts.sm_count / cluster;
}

/// Behind everything else; `share`: columns of a CTA. Returns where it ends.
std::uint32_t lay_out_norm(const PackedPart& part, int rows, int share, std::uint32_t at, NormedInput& norm) {
  norm.rows_at = (at + 15) / 16 * 16;
  norm.weight_at = norm.rows_at + normed_rows_bytes(rows, part.columns);
  norm.sums_at = norm.weight_at + normed_weight_bytes(share);
  norm.arrived_at = norm.sums_at + normed_sums_bytes(rows);
  return norm.arrived_at + kBarrierBytes;
}

/// Lays out a launch by `plan`; the bytes of shared memory that it takes.
template <typename Build>
std::size_t lay_out(const PackedPart& part, const DecodePlan& plan, const LinearCall& call, DecodeArguments& arguments) {
  const int slot_warps = divide_up(part.segments, plan.cluster), owned_slots = divide_up(plan.slots, plan.cluster);
  arguments.cluster_shift = std::countr_zero(static_cast<unsigned>(plan.cluster));
  arguments.buffers = plan.buffers;
  arguments.clusters = cut(part.tiles, plan.clusters);
  for (int more = 0; more < 2; ++more) arguments.slots[more] = cut(arguments.clusters.each + more, plan.slots);
  const int share = slot_warps * part.segment_blocks * kBlockColumns;
  const int input = share * 2 * call.rows;
  const int sums = owned_slots * plan.buffers * Build::kSumsBytes;
  const int rings = plan.slots * slot_warps * Build::kStages * Build::kTilesAtOnce * part.block_bytes;
  arguments.sums_at = static_cast<std::uint32_t>(divide_up(input, 128) * 128);
  arguments.rings_at = arguments.sums_at + static_cast<std::uint32_t>(sums);
  arguments.barriers_at = arguments.rings_at + static_cast<std::uint32_t>(rings);
  const std::uint32_t end = arguments.barriers_at + static_cast<std::uint32_t>(kBarrierBytes * (owned_slots + plan.slots) * plan.buffers);
  return call.norm == nullptr ? end : lay_out_norm(part, call.rows, share, end, arguments.norm);
}

template <typename Build>
bool sound(const DeviceFacts& facts, const PackedPart& part, const DecodePlan& plan, const LinearCall& call) {
  const int slot_warps = divide_up(part.segments, plan.cluster);
  if (plan.slots < 1 || plan.slots * slot_warps > Build::kWarpsMax) return false;
  if ((plan.cluster - 1) * slot_warps >= part.segments) return false;  // a CTA without a segment
  DecodeArguments arguments;
  const int all = facts.shared_bytes_max + kReservedBytes;
  return lay_out<Build>(part, plan, call, arguments) <= static_cast<std::size_t>(all / Build::kCtas - kReservedBytes);
}

/// Fills what `plan` leaves open; false: it doesn't fit. Measured on an H200 (cuda_linear sweep, and whole passes): pairs of CTAs, and
/// as many slots as have a full turn's tiles each. More would issue more instructions for the same tiles. A CTA alone where each can
/// have a tile: a pair would wait for one another (1.10 instead of 1.13 ms a pass of a 1.5B, 1.93 instead of 1.98 of the 35B-A3B).
template <typename Build>
bool choose(const DeviceFacts& facts, const PackedPart& part, const LinearCall& call, DecodePlan& plan) {
  constexpr int kPairFirst[] = {2, 1, 4}, kOneFirst[] = {1, 2, 4};
  const bool alone = part.segment_blocks == 1 || part.tiles <= facts.sm_count;  // with one block a segment a pair has nothing to share
  for (const int cluster : alone ? kOneFirst : kPairFirst) {
    if (plan.cluster != 0 && plan.cluster != cluster) continue;
    DecodePlan candidate = plan;
    candidate.cluster = cluster;
    candidate.tiles_at_once = Build::kTilesAtOnce;
    candidate.stages = Build::kStages;
    candidate.ctas = Build::kCtas;
    candidate.warps = Build::kWarpsMax;
    candidate.clusters = plan.clusters != 0 ? plan.clusters : std::min(part.tiles, cluster_count(facts, cluster));
    const int turns = divide_up(divide_up(part.tiles, candidate.clusters), Build::kTilesAtOnce);
    const int slots_most = std::min(turns, Build::kWarpsMax / divide_up(part.segments, cluster));
    for (int slots = plan.slots != 0 ? plan.slots : slots_most; slots >= 1; --slots) {
      candidate.slots = slots;
      candidate.buffers = plan.buffers != 0 ? plan.buffers : 2;
      bool fits = sound<Build>(facts, part, candidate, call);
      if (!fits && plan.buffers == 0) {
        candidate.buffers = 1;
        fits = sound<Build>(facts, part, candidate, call);
      }
      if (fits) {
        plan = candidate;
        return true;
      }
      if (plan.slots != 0) break;
    }
  }
  return false;
}

void set_norm(const RmsNormParams& from, bool keeps, NormedInput& norm) {
  norm.x = from.x;
  norm.weight = from.weight;
  norm.kept = keeps ? reinterpret_cast<__nv_bfloat16*>(from.out) : nullptr;
  norm.x_stride = from.x_stride;
  norm.epsilon = from.epsilon;
  norm.inverse_width = 1.0f / static_cast<float>(from.width);
  norm.threads = norm_threads(from.width);
}

template <typename F, typename Build>
bool run(CudaContext& context, const PackedPart& part, const LinearCall& call, DecodePlan plan) {
  if (!choose<Build>(context.facts(), part, call, plan)) return false;
  DecodeArguments arguments{};
  arguments.part = part;
  arguments.x = static_cast<const __nv_bfloat16*>(call.x);
  arguments.row_index = call.row_index;
  arguments.runs_aligned = part.columns % 8 == 0 && is_aligned(call.x, 16);
  arguments.out = linear_output(call);
  if (call.norm != nullptr) set_norm(*call.norm, call.keeps_norm, arguments.norm);
  LaunchShape shape;
  shape.shared_bytes = lay_out<Build>(part, plan, call, arguments);
  // Where a CTA has a multiprocessor to itself, the next layer's must not move in: two of those would then meet on one.
  if (Build::kCtas == 1 && part.expert_bytes > kSmallLayerBytes) {
    const auto half = static_cast<std::size_t>(context.facts().shared_bytes_max / 2 + kReservedBytes);
    shape.shared_bytes = std::max(shape.shared_bytes, half);
  }
  shape.cluster = plan.cluster;
  shape.grid = dim3(static_cast<unsigned>(plan.clusters * plan.cluster));
  shape.block = dim3(32, static_cast<unsigned>(divide_up(part.segments, plan.cluster)), static_cast<unsigned>(plan.slots));
  launch(context, "a linear layer", decode_linear_kernel<F, Build>, shape, arguments);
  return true;
}

/// Whether `wanted` asks for this build, or for none.
template <typename Build>
bool wants(const DecodePlan& wanted) {
  const auto agrees = [](int asked, int has) { return asked == 0 || asked == has; };
  return agrees(wanted.tiles_at_once, Build::kTilesAtOnce) && agrees(wanted.stages, Build::kStages) &&
         agrees(wanted.ctas, Build::kCtas) && agrees(wanted.warps, Build::kWarpsMax);
}

/// The first build that is wanted and fits.
template <typename F, typename... Builds>
bool run_first(CudaContext& context, const PackedPart& part, const LinearCall& call, const DecodePlan& wanted) {
  return ((wants<Builds>(wanted) && run<F, Builds>(context, part, call, wanted)) || ...);
}

template <typename F>
bool run_format(CudaContext& context, const PackedPart& part, const LinearCall& call, const DecodePlan& wanted) {
  if constexpr (F::kSmallScales) {
    if (call.rows <= 8) {
      if (part.columns <= kShortColumnsMax && run_first<F, DecodeBuild<1, 2, 2, 12, 1>>(context, part, call, wanted)) return true;
      return run_first<F, DecodeBuild<1, 3, 2, 12, 1>, DecodeBuild<1, 2, 3, 12, 1>, DecodeBuild<1, 2, 2, 12, 1>,
                       DecodeBuild<1, 2, 3, 16, 1>, DecodeBuild<1, 1, 3, 16, 2>, DecodeBuild<1, 3, 2, 8, 2>>(context, part, call,
                                                                                                            wanted);
    }
    return run_first<F, DecodeBuild<2, 2, 2, 16, 1>, DecodeBuild<2, 3, 2, 12, 1>, DecodeBuild<2, 2, 3, 12, 1>, DecodeBuild<2, 1, 3, 16, 1>>(
        context, part, call, wanted);
  } else {
    if (call.rows <= 8) return run_first<F, DecodeBuild<1, 2, 2, 12, 1>>(context, part, call, wanted);
    return run_first<F, DecodeBuild<2, 2, 2, 12, 1>>(context, part, call, wanted);
  }
}

}  // namespace

bool decode_norms_inputs(const CudaContext& context, const RmsNormParams& norm) {
  const bool plain = norm.weight != nullptr && norm.out != nullptr && norm.out_float == nullptr && norm.row_index == nullptr &&
                     (norm.out_stride == 0 || norm.out_stride == norm.width);
  const bool aligned = norm.width % 4 == 0 && norm.x_stride % 4 == 0 && is_aligned(norm.x, 16) && is_aligned(norm.weight, 16) &&
                       is_aligned(norm.out, 8);
  return context.facts().hopper && plain && aligned && norm.rows <= kNormedRowsMax &&
         norm.rows * norm.width * static_cast<std::int64_t>(sizeof(float)) <= kNormedBytesMax;
}

bool decode_linear(CudaContext& context, const PackedPart& part, const LinearCall& call, const DecodePlan& wanted) {
  if (!context.facts().hopper || call.rows > kDecodeRowsMax) return false;
  bool done = false;
  visit_narrow_format(part, [&]<typename F>() { done = run_format<F>(context, part, call, wanted); });
  return done;
}

}  // namespace tensorfold::ops::cuda
