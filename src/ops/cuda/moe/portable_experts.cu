// See portable_experts.h. A CTA computes 16 output rows for one item, a warp each K-segment, straight from global memory: no
// ring, no shared operand, nothing to tune. The outputs of gate and up go through memory as fp32.
#include "ops/cuda/moe/portable_experts.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "base/assert.h"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/instructions.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear/dequantise.cuh"
#include "ops/cuda/moe/routing.h"
#include "ops/cuda/moe/segment_sum.cuh"

namespace tensorfold::ops::cuda::experts {
namespace {

constexpr int kItemTiles = kPortableItemRows / 8;
constexpr unsigned kGridYMax = 65535;

/// A linear layer of every expert over the rows of its slots.
struct ExpertLinear {
  const std::uint16_t* x = nullptr;  // [.., columns] bf16
  std::int32_t slots_per_row = 1;    // slot s reads row s / slots_per_row
  float* y = nullptr;                // [slots, y_stride]
  std::int32_t y_stride = 0;
};

/// Columns `column` and the next one of a row, zero beyond its end.
__device__ __forceinline__ std::uint32_t load_pair(const std::uint16_t* row, int column, int columns, bool aligned) {
  if (aligned && column + 1 < columns) return *reinterpret_cast<const std::uint32_t*>(row + column);
  const std::uint32_t low = column < columns ? row[column] : 0u;
  const std::uint32_t high = column + 1 < columns ? row[column + 1] : 0u;
  return low | high << 16;
}

/// The rows of an item that a lane reads: token 8 · tile + g of each tile.
struct LaneRows {
  const std::uint16_t* rows[kItemTiles];
};

template <typename F, int step>
__device__ __forceinline__ void multiply_step(float (&sums)[kItemTiles][4], const HalfCodes<F>& codes,
                                              const HalfScales<F>& scales, const LaneRows& rows, int tiles, int column,
                                              int columns, bool aligned) {
  std::uint32_t a[4];
  fragment<F, step>(codes, scales, a);
  const int first = column + 16 * step + 2 * (threadIdx.x & 3);
#pragma unroll
  for (int tile = 0; tile < kItemTiles; ++tile) {
    if (tile >= tiles) break;
    mma(sums[tile], a, load_pair(rows.rows[tile], first, columns, aligned),
             load_pair(rows.rows[tile], first + 8, columns, aligned));
  }
}

template <typename F>
__device__ __forceinline__ void multiply_segment(float (&sums)[kItemTiles][4], const PackedPart& part,
                                                 const std::uint8_t* blocks, int segment, const LaneRows& rows, int tiles) {
  const int lane = threadIdx.x & 31;
  const bool aligned = part.columns % 2 == 0;
  const int end = min((segment + 1) * part.segment_blocks, part.k_blocks);
#pragma unroll 1
  for (int block = segment * part.segment_blocks; block < end; ++block) {
    const GlobalBlock source{blocks + static_cast<std::int64_t>(block) * part.block_bytes};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const HalfCodes<F> codes = load_codes<F>(source, half, lane);
      const HalfScales<F> scales = load_scales<F>(source, part, half, lane);
      const int column = block * kBlockColumns + half * 64;
      multiply_step<F, 0>(sums, codes, scales, rows, tiles, column, part.columns, aligned);
      multiply_step<F, 1>(sums, codes, scales, rows, tiles, column, part.columns, aligned);
      multiply_step<F, 2>(sums, codes, scales, rows, tiles, column, part.columns, aligned);
      multiply_step<F, 3>(sums, codes, scales, rows, tiles, column, part.columns, aligned);
    }
  }
}

template <typename F>
__global__ void __launch_bounds__(kSegmentsMax * 32)
    expert_linear(const PackedPart part, const ExpertLinear call, const ExpertPlan plan) {
  __shared__ float4 handed[kSegmentsMax][kItemTiles][32];
  allow_next();
  wait_for_previous();
  const int segment = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int tile = blockIdx.x;
  const int item_count = plan.item_counts[0];
  for (int index = blockIdx.y; index < item_count; index += gridDim.y) {
    const ExpertItem item = plan.items[0][index];
    const int tiles = (item.count + 7) / 8;
    LaneRows rows;
#pragma unroll
    for (int i = 0; i < kItemTiles; ++i) {
      const int row = 8 * i + g;
      const std::int32_t slot = plan.slots[item.begin + (row < item.count ? row : 0)];
      rows.rows[i] = call.x + static_cast<std::int64_t>(slot / call.slots_per_row) * part.columns;
    }
    float sums[kItemTiles][4] = {};
    multiply_segment<F>(sums, part,
                        part.blocks + item.expert * part.expert_bytes +
                            static_cast<std::int64_t>(tile) * part.k_blocks * part.block_bytes,
                        segment, rows, tiles);
#pragma unroll
    for (int i = 0; i < kItemTiles; ++i) {
      handed[segment][i][lane] = make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
    }
    __syncthreads();
    for (int i = segment; i < tiles; i += part.segments) {
      CarriedSegmentSum<4> total;
      for (int s = 0; s < part.segments; ++s) {
        const float4 v = handed[s][i][lane];
        float sum[4] = {v.x, v.y, v.z, v.w};
        total.add(s, part.segment_tree != 0, sum);
      }
      float result[4];
      total.finish(part.segments, part.segment_tree != 0, result);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int token = 8 * i + 2 * t + (k & 1);
        const int output = packed_row(part, tile, g + 8 * (k >> 1));
        if (token >= item.count || output >= part.rows) continue;
        call.y[static_cast<std::int64_t>(plan.slots[item.begin + token]) * call.y_stride + part.first_row + output] =
            result[k];
      }
    }
    __syncthreads();
  }
}

/// inner[slot][width] from gate_up[slot][2 · width] of the slots in the plan.
__global__ void __launch_bounds__(256) activate_slots(const RoutingInputs routing, const ExpertPlan plan,
                                                     const float* gate_up, std::int32_t width, ActivationKind kind,
                                                     std::uint16_t* inner) {
  allow_next();
  wait_for_previous();
  const std::int32_t column = blockIdx.x * 256 + threadIdx.x;
  if (column >= width) return;
  const std::int64_t slots = static_cast<std::int64_t>(live_rows(routing.pass, routing.rows)) * routing.top_k;
  for (std::int64_t slot = blockIdx.y; slot < slots; slot += gridDim.y) {
    if (plan.chosen[slot] == kUnrouted) continue;
    const float gate = gate_up[slot * 2 * width + column], up = gate_up[slot * 2 * width + width + column];
    inner[slot * width + column] = __bfloat16_as_ushort(__float2bfloat16_rn(activate(kind, gate) * up));
  }
}

unsigned grid_y(std::int64_t count) {
  return static_cast<unsigned>(std::clamp<std::int64_t>(count, 1, kGridYMax));
}

void run_linear(CudaContext& context, std::span<const PackedPart> parts, const ExpertLinear& call, const ExpertPlan& plan,
                std::int64_t items_max) {
  for (const PackedPart& part : parts) {
    LaunchShape shape;
    shape.grid = dim3(static_cast<unsigned>(part.tiles), grid_y(items_max));
    shape.block = static_cast<unsigned>(part.segments) * 32;
    visit_format(part, [&]<typename F>() {
      launch(context, "running experts", expert_linear<F>, shape, part, call, plan);
    });
  }
}

}  // namespace

void run_portable_experts(CudaContext& context, const PortableExperts& experts) {
  const RoutingInputs& routing = experts.routing;
  TF_ASSERT(routing.item_rows[0] == kPortableItemRows);
  const std::int64_t slots = static_cast<std::int64_t>(routing.rows) * routing.top_k;
  const std::int64_t items_max = item_capacity(slots, routing.experts, kPortableItemRows);
  const std::int64_t gate_up_floats = slots * 2 * experts.width, output_floats = slots * experts.hidden;
  // Down's outputs may lie over gate's and up's: they are read no more by then.
  auto* floats = static_cast<float*>(context.scratch(
      Scratch::kPartials, static_cast<std::size_t>(std::max(gate_up_floats, output_floats)) * sizeof(float)));
  auto* inner = static_cast<std::uint16_t*>(
      context.scratch(Scratch::kActivations, static_cast<std::size_t>(slots * experts.width * 2)));

  run_linear(context, experts.gate_up, {experts.x, routing.top_k, floats, 2 * experts.width}, experts.plan, items_max);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>((experts.width + 255) / 256), grid_y(slots));
  shape.block = 256;
  launch(context, "activating experts", activate_slots, shape, routing, experts.plan, floats, experts.width, experts.kind, inner);
  run_linear(context, experts.down, {inner, 1, floats, experts.hidden}, experts.plan, items_max);
  combine(context, routing, experts.plan, experts.target, floats);
}

}  // namespace tensorfold::ops::cuda::experts
