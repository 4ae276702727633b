// Which kernels a pass's attention is made of. Windows (lanes of up to kWindowRowsMax rows): one launch that leaves a partial
// result for every segment, one that folds them; where those results would take too much memory, both for a slice of them after
// the other. Prompts: one launch in which each CTA walks its rows' segments. A pass
// that has both gets both. The choice depends on counts and capacities that hold for every replay of a captured pass.
#include <cuda_runtime.h>

#include <algorithm>

#include "base/assert.h"
#include "ops/cuda/attention/attention_fold.cuh"
#include "ops/cuda/attention/attention_kernels.h"
#include "ops/cuda/attention/attention_work.cuh"
#include "ops/cuda/cuda_operations.h"
#include "ops/cuda/kernel_facts.h"

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
  a.by_heads = Divisor(a.heads);
  a.by_kv_heads = Divisor(a.kv_heads);
  a.by_group = Divisor(a.group);
  TF_ASSERT(Divisor::takes(lanes.row_count * a.heads));  // a group is not more than the heads
  return a;
}

/// Launches the kernel on `units` CTAs.
void launch_units(CudaContext& context, const KernelChoice& choice, const AttentionArguments& a, std::int64_t units) {
  if (choice.launch_registers > 0) {
    TF_ASSERT(kernel_registers(context.facts(), reinterpret_cast<const void*>(choice.kernel)) >= choice.launch_registers);
  }
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(units));
  shape.block = dim3(static_cast<unsigned>(choice.threads));
  shape.shared_bytes = choice.shared_bytes;
  launch(context, "attention", choice.kernel, shape, a);
}

/// As many CTAs of the kernel as run at once.
std::int64_t ctas_at_once(const CudaContext& context, const KernelChoice& choice) {
  const DeviceFacts& facts = context.facts();
  const int resident = resident_ctas(facts, reinterpret_cast<const void*>(choice.kernel), choice.threads, choice.shared_bytes);
  TF_ASSERT(resident > 0);
  return static_cast<std::int64_t>(resident) * facts.sm_count;
}

KernelChoice window_kernel(const CudaContext& context, const Lanes& lanes, int blocks, int kv_heads, int packed_rows) {
  const DeviceFacts& facts = context.facts();
  if (lanes.any_tree) return mma_tree_kernel(blocks, packed_rows, facts.shared_bytes_max);
  if (facts.hopper) {
    // wgmma is the faster one at every width, but for short heads where many CTAs of one warp hide their latencies better.
    const bool few_items = lanes.item_capacity * kv_heads <= 2ll * facts.sm_count;
    if (blocks > 1 || packed_rows > 16 || few_items) {
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

/// Scratch memory for partial results of as many partial rows at a time as its bound admits, whatever the pass.
class PartialSlices {
 public:
  /// `fold_ctas` of a slice's fold.
  PartialSlices(CudaContext& context, const AttentionArguments& a, int blocks, std::int64_t partial_rows, std::int64_t fold_ctas) {
    const std::int64_t output_bytes = static_cast<std::int64_t>(a.heads) * blocks * kBlockDims * static_cast<std::int64_t>(sizeof(float));
    const std::int64_t state_bytes = static_cast<std::int64_t>(a.heads) * static_cast<std::int64_t>(sizeof(float2));
    all_ = partial_rows;
    rows_ = std::clamp<std::int64_t>(context.facts().attention_partial_bytes_max / (output_bytes + state_bytes), 1, partial_rows);
    const bool carries = rows_ < all_;
    // An item belongs to the slice in which it begins, so the last one may reach beyond.
    const std::int64_t held = rows_ + (carries ? kWindowRowsMax - 1 : 0), carried = carries ? fold_ctas : 0;
    const std::int64_t parts[] = {held * output_bytes, held * state_bytes, carried * static_cast<std::int64_t>(sizeof(float2)),
                                  carried * kBlockDims * static_cast<std::int64_t>(sizeof(float))};
    auto* memory = static_cast<std::byte*>(
        context.scratch(Scratch::kPartials, static_cast<std::size_t>(parts[0] + parts[1] + parts[2] + parts[3])));
    outputs_ = reinterpret_cast<float*>(memory);
    states_ = reinterpret_cast<float2*>(memory + parts[0]);
    if (!carries) return;
    carried_states_ = reinterpret_cast<float2*>(memory + parts[0] + parts[1]);
    carried_outputs_ = reinterpret_cast<float*>(memory + parts[0] + parts[1] + parts[2]);
  }
  std::int64_t count() const { return (all_ + rows_ - 1) / rows_; }
  void set(AttentionArguments& a, std::int64_t slice) const {
    a.slice_begin = slice * rows_;
    a.slice_end = a.slice_begin + rows_;
    a.partial_outputs = outputs_;
    a.partial_states = states_;
    a.carried_states = carried_states_;
    a.carried_outputs = carried_outputs_;
  }

 private:
  std::int64_t all_ = 0, rows_ = 0;  // partial rows, and those of a slice
  float* outputs_ = nullptr;
  float2* states_ = nullptr;
  float2* carried_states_ = nullptr;
  float* carried_outputs_ = nullptr;
};

void attend_windows(CudaContext& context, const AttentionParams& p, const Lanes& lanes, AttentionArguments a) {
  const int blocks = head_blocks(a.head_dim);
  const int packed_rows = std::min(lanes.rows_max, kWindowRowsMax) * a.group;
  const KernelChoice choice = window_kernel(context, lanes, blocks, a.kv_heads, packed_rows);
  a.unit_rows = choice.unit_rows;
  a.row_blocks = (packed_rows + choice.unit_rows - 1) / choice.unit_rows;
  a.by_row_blocks = Divisor(a.row_blocks);
  TF_ASSERT(Divisor::takes(lanes.item_capacity * a.kv_heads * a.row_blocks));
  const std::int64_t ctas = std::min(lanes.item_capacity * a.kv_heads * a.row_blocks, ctas_at_once(context, choice));
  const RowRange rows = window_rows(p, lanes);
  LaunchShape fold_shape;
  fold_shape.grid = dim3(static_cast<unsigned>((rows.end - rows.begin) * a.heads * blocks));
  fold_shape.block = dim3(kFoldThreads);
  TF_ASSERT(Divisor::takes(fold_shape.grid.x));
  const PartialSlices slices(context, a, blocks, lanes.partial_row_capacity, fold_shape.grid.x);
  for (std::int64_t slice = 0; slice < slices.count(); ++slice) {
    slices.set(a, slice);
    launch_units(context, choice, a, ctas);
    launch(context, "attention's fold", attention_fold_kernel, fold_shape, a, static_cast<int>(rows.begin), Divisor(blocks));
  }
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
  launch_units(context, choice, a, units);  // one each: a CTA that ends makes room for the next unit, whatever its length
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
