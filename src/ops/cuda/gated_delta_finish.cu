// The last launch of the Gated DeltaNet mixer, for rows whose outputs stand in the working rows: gated norm and rounding, one
// warp a head of a row.
#include "ops/cuda/gated_delta.cuh"

namespace tensorfold::ops::cuda::delta {
namespace {

constexpr int kWarps = 8;

__global__ void __launch_bounds__(kWarps * 32) finish_rows(const __grid_constant__ Params p, bool windows_are_finished) {
  allow_next();
  wait_for_previous();
  const int item = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int row = item / p.geometry.v_heads, head = item % p.geometry.v_heads;
  if (row >= p.row_count) return;
  const int lane_index = pass_row_lane(p.lanes)[row];
  if (lane_index < 0) return;  // padding
  if (windows_are_finished && pass_lanes(p.lanes)[lane_index].row_count <= kWindowRows) return;
  const std::int64_t at = (p.replay_rows() + row) * p.geometry.v_heads + head;
  const float* z = p.projected + row * p.stride + p.z_offset + static_cast<std::int64_t>(head) * p.geometry.v_dim;
  std::uint16_t* out = p.out + (static_cast<std::int64_t>(row) * p.geometry.v_heads + head) * p.geometry.v_dim;
  gated_norm<false>(p, p.values + at * p.v_padded(), z, p.norm_weight, out, static_cast<int>(threadIdx.x) % 32);
}

}  // namespace

void finish(CudaContext& context, const Params& p, bool windows_are_finished) {
  LaunchShape shape;
  const std::int64_t items = static_cast<std::int64_t>(p.row_count) * p.geometry.v_heads;
  shape.grid = static_cast<unsigned>((items + kWarps - 1) / kWarps);
  shape.block = kWarps * 32;
  launch(context, "the gated norm of a Gated DeltaNet layer", finish_rows, shape, p, windows_are_finished);
}

}  // namespace tensorfold::ops::cuda::delta
