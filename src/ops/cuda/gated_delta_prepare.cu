// The first launch of the Gated DeltaNet mixer: whatever of a row does not depend on the state (gated_delta_row.cuh). A warp
// takes one head of q, k or v (or 32 heads' gates) of one row after the other; rows are independent, so chunks of them lie side
// by side.
#include <algorithm>

#include "ops/cuda/gated_delta_row.cuh"

namespace tensorfold::ops::cuda::delta {
namespace {

constexpr int kWarps = 4;
constexpr int kLanePartsMax = 16;
constexpr int kRowChunk = 16;

/// How rows are shared out. Few rows: every lane's sequence (replayed rows, then the pass's) is cut into `lane_parts` parts.
/// Many: chunks of kRowChunk consecutive rows of the pass, wherever lanes begin; then the lanes' replayed rows in parts.
struct PrepareShape {
  std::int32_t row_items;   // chunks; 0: few rows
  std::int32_t lane_parts;
};

/// One row on its way: where it stands in its lane's sequence, and where its results go.
struct RowPlace {
  int lane_index;  // -1: none
  int at;
  std::int64_t working;
};

/// The rows of a warp, one after the other.
class RowCursor {
 public:
  __device__ RowCursor(const Params& p, const PrepareShape& shape) : p_(p) {
    const int item = static_cast<int>(blockIdx.x) - shape.row_items;
    if (item < 0) {
      next_ = static_cast<int>(blockIdx.x) * kRowChunk;
      end_ = min(next_ + kRowChunk, p.row_count);
      lane_index_ = -1;
      return;
    }
    lane_index_ = item / shape.lane_parts;
    const DeviceLane& lane = pass_lanes(p.lanes)[lane_index_];
    const int rows = lane.replay_count + (shape.row_items == 0 ? lane.row_count : 0);
    const int chunk = (rows + shape.lane_parts - 1) / shape.lane_parts;
    next_ = min(item % shape.lane_parts * chunk, rows);
    end_ = min(next_ + chunk, rows);
  }
  /// Whether the rows are consecutive ones of a chain; then which of the lane's sequence.
  __device__ bool is_chain(int& lane_index, int& first, int& count) const {
    count = end_ - next_;
    if (count == 0) return false;
    lane_index = lane_index_ >= 0 ? lane_index_ : pass_row_lane(p_.lanes)[next_];
    if (lane_index < 0) return false;
    const DeviceLane& lane = pass_lanes(p_.lanes)[lane_index];
    first = lane_index_ >= 0 ? next_ : lane.replay_count + next_ - lane.first_row;
    return lane.parents < 0 && first + count <= lane.replay_count + lane.row_count;
  }
  /// False: there are no more.
  __device__ bool take(RowPlace& place) {
    while (next_ < end_) {
      const int index = next_++;
      place.lane_index = lane_index_ >= 0 ? lane_index_ : pass_row_lane(p_.lanes)[index];
      if (place.lane_index < 0) continue;  // padding
      const DeviceLane& lane = pass_lanes(p_.lanes)[place.lane_index];
      place.at = lane_index_ >= 0 ? index : lane.replay_count + index - lane.first_row;
      place.working = working_row(p_, lane, place.lane_index, place.at);
      return true;
    }
    return false;
  }

 private:
  const Params& p_;
  int next_, end_;
  int lane_index_;  // -1: rows of the pass
};

template <int kBlocks>
__device__ __forceinline__ void store_head(const Params& p, const Head& head, std::int64_t working,
                                           const float4 (&y)[kBlocks], int thread) {
  if (head.kind == Head::kValue) {
    float* row = p.values + (working * p.geometry.v_heads + head.index) * p.v_padded();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int first = block * 128 + 4 * thread;
      if (first < p.v_padded()) *reinterpret_cast<float4*>(row + first) = y[block];
    }
    return;
  }
  const int which = head.kind == Head::kKey;
  store_key(p, head.kind, p.keys + ((working * p.geometry.k_heads + head.index) * 2 + which) * p.k_padded(), y, thread);
}

/// Four consecutive rows of a chain at a time: their inputs are on their way together, and a row is read once for all taps.
template <int kTaps>
__device__ void prepare_chain(const Params& p, const Head& head, const TapWeights<kTaps>& weights, const DeviceLane& lane,
                              int lane_index, int first, int count, int thread) {
  constexpr int kBatch = 4;
  const float* slot = slot_of(p, lane);
  const auto load = [&](int at) {
    if (at < -p.tail_rows) return float4{0.0f, 0.0f, 0.0f, 0.0f};
    return load_four(input_row(p, lane, slot, at) + head.first_channel, 4 * thread, head.width, p.vectors);
  };
  float4 x[kTaps - 1 + kBatch] = {};
  // What the slot holds is there already; the rest comes from the kernel before.
  const auto load_first = [&](bool of_slot) {
#pragma unroll
    for (int j = 0; j < kTaps - 1 + kBatch; ++j) {
      const int at = first - (kTaps - 1) + j;
      if (at < first + count && (at < lane.replay_count) == of_slot) x[j] = load(at);
    }
  };
  load_first(true);
  wait_for_previous();
  load_first(false);
  for (int done = 0; done < count; done += kBatch) {
    const int left = count - done;
    if (done > 0) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (i < left) x[kTaps - 1 + i] = load(first + done + i);
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (i >= left) break;
      float4 taps[kTaps];
#pragma unroll
      for (int j = 0; j < kTaps; ++j) taps[j] = x[i + j];
      float4 y[1] = {convolve(weights, taps)};
      store_head(p, head, working_row(p, lane, lane_index, first + done + i), y, thread);
    }
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) x[j] = x[j + kBatch];
  }
}

template <int kTaps, int kBlocks>
__device__ void prepare_head(const Params& p, const PrepareShape& shape, int unit, int thread) {
  const Head head = head_of(p, unit);
  TapWeights<kTaps> weights[kBlocks];
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) weights[block].load(p, head, block * 128 + 4 * thread);
  RowCursor rows(p, shape);
  if constexpr (kBlocks == 1) {
    int lane_index, first, count;
    if (rows.is_chain(lane_index, first, count)) {
      return prepare_chain(p, head, weights[0], pass_lanes(p.lanes)[lane_index], lane_index, first, count, thread);
    }
  }
  RowPlace place;
  bool waited = false;
  while (rows.take(place)) {
    const DeviceLane& lane = pass_lanes(p.lanes)[place.lane_index];
    const float* slot = slot_of(p, lane);
    const float* inputs[kTaps];
    bool of_this_pass[kTaps];
#pragma unroll
    for (int j = kTaps - 1, at = place.at; j >= 0; --j) {
      const bool exists = j >= kTaps - p.geometry.conv_kernel;
      inputs[j] = exists ? input_row(p, lane, slot, at) + head.first_channel : nullptr;
      of_this_pass[j] = at >= lane.replay_count;
      if (exists) at = row_before(p, lane, at);
    }
    float4 x[kBlocks][kTaps];
    const auto load = [&](bool of_pass) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int j = 0; j < kTaps; ++j) {
          if (inputs[j] == nullptr) {
            x[block][j] = {0.0f, 0.0f, 0.0f, 0.0f};
          } else if (of_this_pass[j] == of_pass) {
            x[block][j] = load_four(inputs[j], block * 128 + 4 * thread, head.width, p.vectors);
          }
        }
      }
    };
    load(false);
    if (!waited) wait_for_previous();
    waited = true;
    load(true);
    float4 y[kBlocks];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) y[block] = convolve(weights[block], x[block]);
    store_head(p, head, place.working, y, thread);
  }
  if (!waited) wait_for_previous();
}

__device__ void prepare_gates(const Params& p, const PrepareShape& shape, int head) {
  const int v_heads = p.geometry.v_heads;
  wait_for_previous();
  if (head >= v_heads) return;
  const float decay = p.decay[head], bias = p.dt_bias[head];
  RowCursor rows(p, shape);
  RowPlace place;
  while (rows.take(place)) {
    const DeviceLane& lane = pass_lanes(p.lanes)[place.lane_index];
    p.gates[place.working * v_heads + head] = gates_of(p, lane, slot_of(p, lane), place.at, head, decay, bias);
  }
}

template <int kTaps, int kBlocks>
__global__ void __launch_bounds__(kWarps * 32, kTaps * kBlocks == 4 ? 6 : 1) prepare_rows(
    const __grid_constant__ Params p, const __grid_constant__ PrepareShape shape) {
  allow_next();
  const int unit = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int thread = static_cast<int>(threadIdx.x) % 32;
  const int heads = 2 * p.geometry.k_heads + p.geometry.v_heads;
  if (unit < heads) {
    prepare_head<kTaps, kBlocks>(p, shape, unit, thread);
  } else {
    prepare_gates(p, shape, (unit - heads) * 32 + thread);
  }
}

}  // namespace

void prepare(CudaContext& context, const Params& p) {
  PrepareShape shape = {};
  if (p.row_count > 128) shape.row_items = (p.row_count + kRowChunk - 1) / kRowChunk;
  shape.lane_parts = kLanePartsMax;
  while (shape.lane_parts > 1 && shape.lane_parts * p.lane_count > 64) shape.lane_parts /= 2;
  const int units = 2 * p.geometry.k_heads + p.geometry.v_heads + (p.geometry.v_heads + 31) / 32;
  LaunchShape launch_shape;
  launch_shape.grid = dim3(static_cast<unsigned>(shape.row_items + p.lane_count * shape.lane_parts),
                           static_cast<unsigned>((units + kWarps - 1) / kWarps));
  launch_shape.block = kWarps * 32;
  const bool wide = std::max(p.k_padded(), p.v_padded()) > 128;
  const bool long_kernel = p.geometry.conv_kernel > 4;
  const auto kernel = wide ? (long_kernel ? prepare_rows<8, 2> : prepare_rows<4, 2>)
                           : (long_kernel ? prepare_rows<8, 1> : prepare_rows<4, 1>);
  launch(context, "the convolution of a Gated DeltaNet layer", kernel, launch_shape, p, shape);
}

}  // namespace tensorfold::ops::cuda::delta
