// Which kernels a pass's attention is made of. Windows (lanes of up to kWindowRowsMax rows): one launch that leaves a partial
// result for every segment, one that folds them. Prompts: one launch in which each CTA walks its rows' segments. A pass
// that has both gets both. The choice depends on counts and capacities that hold for every replay of a captured pass.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>

#include "base/assert.h"
#include "ops/cuda/attention/attention_fold.cuh"
#include "ops/cuda/attention/attention_kernels.h"
#include "ops/cuda/attention/attention_work.cuh"
#include "ops/cuda/cuda_operations.h"

namespace tensorfold::ops::cuda {
namespace {

constexpr float kLog2E = 1.44269504f;

AttentionArguments arguments_of(const AttentionParams& p, const Lanes& lanes) {
  AttentionArguments a = {};
  a.lanes = lanes.ref;
  a.q = reinterpret_cast<const __nv_bfloat16*>(p.q);
  a.out = reinterpret_cast<__nv_bfloat16*>(p.out);
  a.pages = static_cast<const std::byte*>(p.pool.pages);
  a.page_bytes = p.pool.page_bytes;
  a.trees = static_cast<const std::byte*>(p.pool.trees);
  a.tree_bytes = p.pool.tree_bytes;
  a.gate = p.gate;
  a.gate_stride = p.gate_stride;
  a.gate_offset = p.gate_offset;
  a.gate_head_stride = p.gate_head_stride;
  a.scale_log2 = p.scale * kLog2E;
  a.heads = p.heads;
  a.kv_heads = p.geometry.kv_heads;
  a.group = p.heads / p.geometry.kv_heads;
  a.head_dim = p.geometry.head_dim;
  a.window = p.window;
  return a;
}

/// Launches the kernel on at most as many CTAs as are resident at once; they share the units.
void launch_units(CudaContext& context, const KernelChoice& choice, const AttentionArguments& a, std::int64_t units) {
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(choice.kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(choice.shared_bytes)),
        "attention");
  int resident = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, choice.kernel, choice.threads, choice.shared_bytes), "attention");
  TF_ASSERT(resident > 0);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(std::min<std::int64_t>(units, static_cast<std::int64_t>(resident) * context.facts().sm_count)));
  shape.block = dim3(static_cast<unsigned>(choice.threads));
  shape.shared_bytes = choice.shared_bytes;
  launch(context, "attention", choice.kernel, shape, a);
}

KernelChoice window_kernel(const CudaContext& context, const Lanes& lanes, int blocks, int kv_heads, int packed_rows) {
  const DeviceFacts& facts = context.facts();
  if (lanes.any_tree) return mma_tree_kernel(blocks, packed_rows, facts.shared_bytes_max);
  if (const char* force = getenv("TF_ATTENTION_FORCE")) {
    return force[0] == 'm' ? mma_window_kernel(blocks, packed_rows, facts.shared_bytes_max) : wgmma_window_kernel(blocks, packed_rows);
  }
  if (facts.hopper) {
    // One warp's tensor work hides behind memory when there are enough CTAs; a lone lane needs the quicker wgmma.
    const bool few_items = lanes.item_capacity * kv_heads <= 2ll * facts.sm_count;
    if (packed_rows > 16 || few_items) {
      const KernelChoice choice = wgmma_window_kernel(blocks, packed_rows);
      if (choice.kernel != nullptr) return choice;
    }
  }
  return mma_window_kernel(blocks, packed_rows, facts.shared_bytes_max);
}

/// Rows of the pass among which all windows lie. A captured pass must not depend on more than its padded row count.
struct RowRange {
  std::int64_t begin = 0, end = 0;
};
RowRange window_rows(const AttentionParams& p, const Lanes& lanes) {
  RowRange range = {0, lanes.row_count};
  if (lanes.rows_max <= kWindowRowsMax) return range;
  range = {lanes.row_count, 0};
  for (std::int32_t i = 0; i < p.lane_count; ++i) {
    const LaneSpan& lane = p.lanes[i];
    if (lane.row_count == 0 || lane.row_count > kWindowRowsMax) continue;
    range.begin = std::min<std::int64_t>(range.begin, lane.first_row);
    range.end = std::max<std::int64_t>(range.end, lane.first_row + lane.row_count);
  }
  return range;
}

void attend_windows(CudaContext& context, const AttentionParams& p, const Lanes& lanes, AttentionArguments a) {
  const int blocks = head_blocks(a.head_dim);
  const int packed_rows = std::min(lanes.rows_max, kWindowRowsMax) * a.group;
  const KernelChoice choice = window_kernel(context, lanes, blocks, a.kv_heads, packed_rows);
  const std::int64_t partials = lanes.partial_row_capacity * a.heads;
  const std::int64_t output_bytes = partials * blocks * kBlockDims * static_cast<std::int64_t>(sizeof(float));
  auto* scratch = static_cast<std::byte*>(context.scratch(
      Scratch::kPartials, static_cast<std::size_t>(output_bytes + partials * static_cast<std::int64_t>(sizeof(float2)))));
  a.partial_outputs = reinterpret_cast<float*>(scratch);
  a.partial_states = reinterpret_cast<float2*>(scratch + output_bytes);
  a.unit_rows = choice.unit_rows;
  a.row_blocks = (packed_rows + choice.unit_rows - 1) / choice.unit_rows;
  launch_units(context, choice, a, lanes.item_capacity * a.kv_heads * a.row_blocks);

  const RowRange rows = window_rows(p, lanes);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>((rows.end - rows.begin) * a.heads * blocks));
  shape.block = dim3(kFoldThreads);
  launch(context, "attention's fold", attention_fold_kernel, shape, a, static_cast<int>(rows.begin), blocks);
}

void attend_prompts(CudaContext& context, const AttentionParams& p, AttentionArguments a) {
  const int blocks = head_blocks(a.head_dim);
  KernelChoice choice;
  if (context.facts().hopper) choice = wgmma_prompt_kernel(blocks);
  if (choice.kernel == nullptr) choice = mma_prompt_kernel(blocks, context.facts().shared_bytes_max);
  a.unit_rows = choice.unit_rows;
  a.row_blocks = 1;
  std::int64_t units = 0;  // such passes are not captured, so the lanes themselves may be counted
  for (std::int32_t i = 0; i < p.lane_count; ++i) {
    const std::int64_t rows = p.lanes[i].row_count;
    if (rows > kWindowRowsMax) units += (rows * a.group + a.unit_rows - 1) / a.unit_rows * a.kv_heads;
  }
  launch_units(context, choice, a, units);
}

}  // namespace

void attention(CudaContext& context, const AttentionParams& p) {
  TF_ASSERT(p.geometry.kv_heads > 0 && p.heads % p.geometry.kv_heads == 0);
  TF_ASSERT(p.pool.page_bytes >= kv_page_bytes(p.geometry) && p.pool.page_bytes % 16 == 0);
  TF_ASSERT(p.scale > 0.0f);
  const Lanes lanes = context.attention_lanes(p.lanes, p.lane_count, p.window);
  const AttentionArguments a = arguments_of(p, lanes);
  if (lanes.item_capacity > 0) attend_windows(context, p, lanes, a);
  if (lanes.rows_max > kWindowRowsMax) attend_prompts(context, p, a);
}

}  // namespace tensorfold::ops::cuda
