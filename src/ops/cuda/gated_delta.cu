// Gated DeltaNet on the host's side: where things stand in a slot and in scratch memory, and which launches a pass takes.
// The kernels, and what they share, are described in gated_delta.cuh.
#include <cmath>

#include "base/assert.h"
#include "ops/cuda/aligned.cuh"
#include "ops/cuda/cuda_operations.h"
#include "ops/cuda/gated_delta.cuh"

namespace tensorfold::ops::cuda {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// The slot's layout.
delta::Params with_layout(const GatedDeltaGeometry& g) {
  TF_ASSERT(g.k_heads > 0 && g.v_heads > 0 && g.v_heads % g.k_heads == 0);
  TF_ASSERT(g.conv_kernel >= 2 && g.conv_kernel <= 8);
  TF_ASSERT(g.k_dim > 0 && g.k_dim <= kGatedDeltaDimensionMax && g.v_dim > 0 && g.v_dim <= kGatedDeltaDimensionMax);
  delta::Params p = {};
  p.geometry = g;
  p.channels = static_cast<std::int32_t>(g.conv_channels());
  p.tail_rows = g.conv_kernel - 1;
  p.lane_elements = g.k_dim <= 64 ? 8 : g.k_dim <= 128 ? 16 : 32;
  p.column_groups = (g.v_dim + delta::kColumnsPerWarp - 1) / delta::kColumnsPerWarp;
  p.tail = static_cast<std::int64_t>(g.v_heads) * p.column_groups * p.group_floats();
  p.window = round_up(p.tail + static_cast<std::int64_t>(p.tail_rows) * p.channels, 16);
  p.window_stride = round_up(p.channels + 2ll * g.v_heads, 16);
  return p;
}

void set_inputs(delta::Params& p, const GatedDeltaParams& params) {
  const GatedDeltaGeometry& g = params.geometry;
  p.projected = params.projected;
  p.stride = params.stride;
  p.qkv_offset = params.qkv_offset;
  p.z_offset = params.z_offset;
  p.b_offset = params.b_offset;
  p.a_offset = params.a_offset;
  p.conv_weight = params.conv_weight;
  p.decay = params.decay;
  p.dt_bias = params.dt_bias;
  p.norm_weight = params.norm_weight;
  p.epsilon = params.epsilon;
  p.inverse_width = 1.0f / static_cast<float>(g.v_dim);
  p.query_scale = 1.0f / sqrtf(static_cast<float>(g.k_dim));
  p.sigmoid_gate = params.sigmoid_gate;
  p.slots = static_cast<char*>(params.slots);
  p.slot_bytes = static_cast<std::int64_t>(params.slot_bytes);
  p.out = reinterpret_cast<std::uint16_t*>(params.out);
  p.vectors = g.k_dim % 4 == 0 && g.v_dim % 4 == 0 && params.stride % 4 == 0 && params.qkv_offset % 4 == 0 &&
              params.z_offset % 4 == 0 && is_aligned(params.projected, 16) && is_aligned(params.norm_weight, 16) &&
              is_aligned(params.out, 8) && is_aligned(params.conv_weight, 16);
}

/// Bytes of a working row.
struct WorkRow {
  std::int64_t keys, values, gates;
  explicit WorkRow(const delta::Params& p)
      : keys(p.geometry.k_heads * 2 * p.k_padded() * 2), values(p.geometry.v_heads * p.v_padded() * 4), gates(p.geometry.v_heads * 8) {}
};

/// Working rows in scratch memory.
void set_working_rows(CudaContext& context, delta::Params& p) {
  const WorkRow row(p);
  const std::int64_t rows = p.replay_rows() + p.row_count;
  const std::int64_t keys = round_up(rows * row.keys, 256), values = round_up(rows * row.values, 256), gates = rows * row.gates;
  char* memory = static_cast<char*>(context.scratch(Scratch::kActivations, static_cast<std::size_t>(keys + values + gates)));
  p.keys = reinterpret_cast<std::uint16_t*>(memory);
  p.values = reinterpret_cast<float*>(memory + keys);
  p.gates = reinterpret_cast<float2*>(memory + keys + values);
}

void check_lanes(const delta::Params& p, const GatedDeltaParams& params) {
  TF_ASSERT(is_aligned(params.slots, 16) && params.slot_bytes % 16 == 0);
  TF_ASSERT(p.slot_bytes >= p.window * 4);
  for (std::int32_t index = 0; index < params.lane_count; ++index) {
    const LaneSpan& lane = params.lanes[index];
    TF_ASSERT(lane.commits || lane.row_count <= p.replay_capacity);
    TF_ASSERT(lane.replay_count <= p.replay_capacity);
    TF_ASSERT(lane.parents == nullptr || lane.row_count <= delta::kWindowRows);
  }
}

}  // namespace

std::size_t gated_delta_state_bytes(const GatedDeltaGeometry& geometry) {
  return static_cast<std::size_t>(with_layout(geometry).window) * sizeof(float);
}

std::size_t gated_delta_window_row_bytes(const GatedDeltaGeometry& geometry) {
  return static_cast<std::size_t>(with_layout(geometry).window_stride) * sizeof(float);
}

std::size_t gated_delta_work_row_bytes(const GatedDeltaGeometry& geometry) {
  const WorkRow row(with_layout(geometry));
  return static_cast<std::size_t>(row.keys + row.values + row.gates);
}

void gated_delta(CudaContext& context, const GatedDeltaParams& params) {
  if (params.lane_count == 0) return;
  delta::Params p = with_layout(params.geometry);
  set_inputs(p, params);
  p.replay_capacity = static_cast<std::int32_t>((p.slot_bytes / 4 - p.window) / p.window_stride);
  check_lanes(p, params);
  const Lanes lanes = context.lanes(params.lanes, params.lane_count);
  p.lanes = lanes.ref;
  p.lane_count = lanes.lane_count;
  p.row_count = static_cast<std::int32_t>(lanes.row_count);
  const bool has_prompts = lanes.rows_max > delta::kWindowRows;
  const bool prepares = !has_prompts && delta::prepares_rows(context, p, lanes);
  if (!prepares) {
    set_working_rows(context, p);
    delta::prepare(context, p);
  }
  if (has_prompts) delta::run_prompts(context, p);
  const bool windows_are_finished = delta::run_windows(context, p, lanes, prepares);
  if (p.row_count > 0 && (has_prompts || !windows_are_finished)) delta::finish(context, p, windows_are_finished);
}

}  // namespace tensorfold::ops::cuda
