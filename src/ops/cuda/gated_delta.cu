// Gated DeltaNet between its projections (ops/gated_delta.h), in three launches: inputs (convolution, norms and gates of every
// row, all rows at once), scan (the recurrence, token after token, state in registers) and outputs (gated norm, and what the
// slot keeps). Replayed rows are rows like any other, so that what a window promised and what its replay does are the
// same bits.
//
// Slot: state [v_heads, v_dim, k_dim], the tail [conv_kernel - 1, channels], then window rows [channels, b, a], all fp32.
// Scan arithmetic: a column of the state (one v) belongs to eight lanes of a warp; lane r holds keys 64·i + 8·r .. + 7 (k_dim a
// multiple of 64) or a run of k_dim / 8; products go to two chains by parity of the place, the chains are added, then the
// lanes by butterfly 1, 2, 4 (one-arithmetic.md, rule 6). q and k are bf16 after their norms; everything else is fp32.
#include <cstdint>

#include "base/assert.h"
#include "base/limits.h"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/cuda_operations.h"
#include "ops/cuda/launch.cuh"

namespace tensorfold::ops::cuda {
namespace {

constexpr int kInputThreads = 128;
constexpr int kScanWarps = 4;
constexpr int kLanesOfColumn = 8;
constexpr int kScanColumns = kScanWarps * 32 / kLanesOfColumn;  // of v, a block
constexpr int kBatchRows = 16;  // rows whose inputs are in shared memory at a time; two batches take turns
constexpr int kKeysMax = 256;
constexpr int kTapsMax = 8;

std::int64_t round_up_4(std::int64_t value) {
  return (value + 3) / 4 * 4;
}

/// Shapes and places, the same on host and device.
struct DeltaShape {
  std::int32_t k_heads, v_heads, k_dim, v_dim, taps, channels;
  std::int32_t window_rows;     // that fit a slot
  std::int64_t tail, window, window_stride;  // floats from the slot's start; of a window row
};

DeltaShape shape_of(const GatedDeltaGeometry& g, std::size_t slot_bytes) {
  TF_ASSERT(g.k_heads > 0 && g.v_heads % g.k_heads == 0 && g.conv_kernel >= 2 && g.conv_kernel <= kTapsMax);
  TF_ASSERT(g.k_dim > 0 && g.k_dim % 8 == 0 && g.k_dim <= kKeysMax && g.v_dim > 0 && g.v_dim % 4 == 0);
  DeltaShape s = {};
  s.k_heads = g.k_heads;
  s.v_heads = g.v_heads;
  s.k_dim = g.k_dim;
  s.v_dim = g.v_dim;
  s.taps = g.conv_kernel;
  s.channels = static_cast<std::int32_t>(g.conv_channels());
  s.tail = static_cast<std::int64_t>(g.v_heads) * g.k_dim * g.v_dim;
  s.window = round_up_4(s.tail + static_cast<std::int64_t>(g.conv_kernel - 1) * s.channels);
  s.window_stride = round_up_4(s.channels + 2ll * g.v_heads);
  const std::int64_t floats = static_cast<std::int64_t>(slot_bytes / sizeof(float));
  if (floats > s.window) s.window_rows = static_cast<std::int32_t>((floats - s.window) / s.window_stride);
  return s;
}

/// What the inputs kernel leaves for the scan, and the scan for the outputs. Row w of these is a work row: replayed row i of
/// lane l is l · window_rows + i, row r of the pass lanes · window_rows + r.
struct DeltaScratch {
  std::uint16_t* q;  // [work rows, k_heads, k_dim]
  std::uint16_t* k;
  float* v;          // [work rows, v_heads, v_dim]
  float2* gates;     // [work rows, v_heads]: exp(g), beta
  float* o;          // [pass rows, v_heads, v_dim]
};

struct DeltaKernelParams {
  DeltaShape shape;
  GatedDeltaParams p;
  LanesRef lanes;
  DeltaScratch scratch;
  std::int32_t lane_count, rows;
};

__device__ __forceinline__ float* slot_of(const DeltaKernelParams& d, const DeviceLane& lane) {
  return reinterpret_cast<float*>(static_cast<std::uint8_t*>(d.p.slots) + static_cast<std::size_t>(lane.slot) * d.p.slot_bytes);
}

/// A row of a lane on its path: replayed rows count from -replay_count to -1, committed ones before them from the tail.
__device__ __forceinline__ int previous_row(const DeltaKernelParams& d, const DeviceLane& lane, int row) {
  if (row < 0 || lane.parents < 0) return row - 1;
  return pass_words(d.lanes.header)[lane.parents + row];  // -1: the last of those before
}

/// The convolution's input of such a row.
__device__ __forceinline__ const float* input_of(const DeltaKernelParams& d, const DeviceLane& lane, const float* slot,
                                                 int row) {
  if (row >= 0) return d.p.projected + (lane.first_row + row) * d.p.stride + d.p.qkv_offset;
  const int replayed = row + lane.replay_count;
  if (replayed >= 0) {
    const int window_row = pass_words(d.lanes.header)[lane.replay + replayed];
    return slot + d.shape.window + window_row * d.shape.window_stride;
  }
  return slot + d.shape.tail + static_cast<std::int64_t>(replayed + d.shape.taps - 1) * d.shape.channels;
}

/// Which lane and row a work row is; false: none.
__device__ __forceinline__ bool find_work(const DeltaKernelParams& d, int work, int& lane_index, int& row) {
  const int replay_slots = d.lane_count * d.shape.window_rows;
  const DeviceLane* lanes = pass_lanes(d.lanes);
  if (work < replay_slots) {
    lane_index = work / d.shape.window_rows;
    const int i = work % d.shape.window_rows;
    row = i - lanes[lane_index].replay_count;
    return i < lanes[lane_index].replay_count;
  }
  lane_index = pass_row_lane(d.lanes)[work - replay_slots];
  if (lane_index < 0) return false;
  row = work - replay_slots - lanes[lane_index].first_row;
  return true;
}

__device__ void write_gates(const DeltaKernelParams& d, const DeviceLane& lane, const float* input, int row, int work) {
  const float* b = input + d.shape.channels;
  const float* a = b + d.shape.v_heads;
  if (row >= 0) {
    const float* projected = d.p.projected + (lane.first_row + row) * d.p.stride;
    b = projected + d.p.b_offset;
    a = projected + d.p.a_offset;
  }
  for (int head = static_cast<int>(threadIdx.x); head < d.shape.v_heads; head += kInputThreads) {
    const float g = __fmul_rn(d.p.decay[head], softplus(__fadd_rn(a[head], d.p.dt_bias[head])));
    d.scratch.gates[static_cast<std::int64_t>(work) * d.shape.v_heads + head] = {exponential(g), sigmoid(b[head])};
  }
}

// Block (work row, head of q, k or v; the last one: gates).
__global__ void __launch_bounds__(kInputThreads) delta_inputs(const DeltaKernelParams d) {
  __shared__ float warps[kInputThreads / 32];
  allow_next();
  wait_for_previous();
  const DeltaShape& s = d.shape;
  const int work = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  int lane_index, row;
  if (!find_work(d, work, lane_index, row)) return;
  const DeviceLane lane = pass_lanes(d.lanes)[lane_index];
  const float* slot = slot_of(d, lane);
  const int keys = 2 * s.k_heads;
  if (head == keys + s.v_heads) return write_gates(d, lane, input_of(d, lane, slot, row), row, work);

  const float* inputs[kTapsMax];
  int at = row;
  for (int tap = s.taps - 1; tap >= 0; --tap) {
    inputs[tap] = input_of(d, lane, slot, at);
    at = previous_row(d, lane, at);
  }
  const bool is_value = head >= keys;
  const int width = is_value ? s.v_dim : s.k_dim;
  const int channel = is_value ? keys * s.k_dim + (head - keys) * s.v_dim : head * s.k_dim;
  float held[kKeysMax / kInputThreads];
  float sum = 0.0f;
  for (int i = 0; i < (width + kInputThreads - 1) / kInputThreads; ++i) {
    const int element = i * kInputThreads + thread;
    if (element >= width) continue;
    const float* weight = d.p.conv_weight + static_cast<std::int64_t>(channel + element) * s.taps;
    float c = 0.0f;
    for (int tap = 0; tap < s.taps; ++tap) c = __fmaf_rn(weight[tap], inputs[tap][channel + element], c);
    c = silu(c);
    if (is_value) {
      d.scratch.v[(static_cast<std::int64_t>(work) * s.v_heads + head - keys) * s.v_dim + element] = c;
      continue;
    }
    held[i & 1] = c;
    sum = __fmaf_rn(c, c, sum);
  }
  if (is_value) return;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, offset));
  if (thread % 32 == 0) warps[thread / 32] = sum;
  __syncthreads();
  sum = __fadd_rn(__fadd_rn(__fadd_rn(warps[0], warps[1]), warps[2]), warps[3]);
  float factor = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(sum, 1e-6f)));
  const bool is_query = head < s.k_heads;
  const float scale = __fdiv_rn(1.0f, __fsqrt_rn(static_cast<float>(s.k_dim)));
  std::uint16_t* out = (is_query ? d.scratch.q : d.scratch.k) +
                       (static_cast<std::int64_t>(work) * s.k_heads + head % s.k_heads) * s.k_dim;
  for (int i = 0; i < (width + kInputThreads - 1) / kInputThreads; ++i) {
    const int element = i * kInputThreads + thread;
    if (element >= width) continue;
    float y = __fmul_rn(held[i & 1], factor);
    if (is_query) y = __fmul_rn(y, scale);
    out[element] = bf16_bits(y);
  }
}

template <int kBytes>
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(global), "n"(kBytes) : "memory");
}

/// The inputs of a batch of rows. Keys lie in 16-byte pieces of eight.
struct ScanBatch {
  std::uint16_t q[kBatchRows][kKeysMax], k[kBatchRows][kKeysMax];
  float v[kBatchRows][kScanColumns];
  float2 gates[kBatchRows];
};

/// One block: kScanColumns columns of one head of one lane. kKeys = keys a lane holds (k_dim / 8, rounded up to a power of two).
template <int kKeys>
class Scan {
 public:
  __device__ Scan(const DeltaKernelParams& d, ScanBatch* batches)
      : d_(d), batches_(batches), lane_(pass_lanes(d.lanes)[blockIdx.y]), slot_(slot_of(d, lane_)) {
    const int slices = (d.shape.v_dim + kScanColumns - 1) / kScanColumns;
    head_ = static_cast<int>(blockIdx.x) / slices;
    first_column_ = static_cast<int>(blockIdx.x) % slices * kScanColumns;
    r_ = static_cast<int>(threadIdx.x) % kLanesOfColumn;
    own_ = static_cast<int>(threadIdx.x) / kLanesOfColumn;
    column_ = first_column_ + own_;
  }

  __device__ void run() {
    const int total = lane_.replay_count + lane_.row_count;
    if (total == 0) return;
    float state[kKeys];
    load_state(state);
    stage(0, total);
    for (int first = 0; first < total; first += kBatchRows) {
      if (first + kBatchRows < total) stage(first + kBatchRows, total);
      else asm volatile("cp.async.commit_group;" ::: "memory");
      asm volatile("cp.async.wait_group 1;" ::: "memory");
      __syncthreads();
      const ScanBatch& batch = batches_[first / kBatchRows & 1];
      const int count = min(kBatchRows, total - first);
      for (int i = 0; i < count; ++i) {
        if (first + i == lane_.replay_count && first + i > 0 && !lane_.commits) store_state(state);
        step(batch, i, first + i - lane_.replay_count, state);
      }
      __syncthreads();
    }
    const bool only_replayed = lane_.row_count == 0;
    if (lane_.commits || only_replayed) store_state(state);
  }

  /// A tree: the state after each row is kept, as rows start from their parent's.
  __device__ void run_tree() {
    float state[kKeys], kept[limits::kTreeRowsMax][kKeys];
    load_state(state);
    const int total = lane_.replay_count + lane_.row_count;
    const std::int32_t* parents = pass_words(d_.lanes.header) + lane_.parents;
    for (int first = 0; first < total; first += kBatchRows) {
      __syncthreads();
      stage(first, total);
      asm volatile("cp.async.wait_group 0;" ::: "memory");
      __syncthreads();
      const ScanBatch& batch = batches_[first / kBatchRows & 1];
      for (int i = 0; i < min(kBatchRows, total - first); ++i) {
        const int row = first + i - lane_.replay_count;
        if (row == 0 && lane_.replay_count > 0) store_state(state);
        if (row > 0) {
          for (int j = 0; j < kKeys; ++j) state[j] = kept[parents[row]][j];
        }
        step(batch, i, row, state);
        if (row >= 0) {
          for (int j = 0; j < kKeys; ++j) kept[row][j] = state[j];
        }
      }
    }
  }

 private:
  /// Key held at place `i` of this lane.
  __device__ __forceinline__ int key_of(int i) const {
    if constexpr (kKeys >= 8) return i / 8 * 64 + r_ * 8 + i % 8;
    return r_ * kKeys + i;
  }
  __device__ __forceinline__ float* column_state() const {
    return slot_ + (static_cast<std::int64_t>(head_) * d_.shape.v_dim + column_) * d_.shape.k_dim;
  }

  __device__ void load_state(float (&state)[kKeys]) const {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      state[i] = column_ < d_.shape.v_dim && key_of(i) < d_.shape.k_dim ? column_state()[key_of(i)] : 0.0f;
    }
  }
  __device__ void store_state(const float (&state)[kKeys]) const {
    if (column_ >= d_.shape.v_dim) return;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      if (key_of(i) < d_.shape.k_dim) column_state()[key_of(i)] = state[i];
    }
  }

  __device__ __forceinline__ std::int64_t work_of(int index) const {
    if (index < lane_.replay_count) return static_cast<std::int64_t>(blockIdx.y) * d_.shape.window_rows + index;
    return static_cast<std::int64_t>(d_.lane_count) * d_.shape.window_rows + lane_.first_row + index - lane_.replay_count;
  }

  __device__ void stage(int first, int total) const {
    const DeltaShape& s = d_.shape;
    ScanBatch& batch = batches_[first / kBatchRows & 1];
    const int count = min(kBatchRows, total - first), key_head = head_ / (s.v_heads / s.k_heads);
    const int pieces = s.k_dim / 8, thread = static_cast<int>(threadIdx.x), threads = kScanWarps * 32;
    for (int e = thread; e < count * pieces; e += threads) {
      const int row = e / pieces, piece = e % pieces * 8;
      const std::int64_t from = (work_of(first + row) * s.k_heads + key_head) * s.k_dim + piece;
      copy_async<16>(&batch.q[row][piece], d_.scratch.q + from);
      copy_async<16>(&batch.k[row][piece], d_.scratch.k + from);
    }
    const int columns = min(kScanColumns, s.v_dim - first_column_) / 4;
    for (int e = thread; e < count * columns; e += threads) {
      const int row = e / columns, column = e % columns * 4;
      copy_async<16>(&batch.v[row][column],
                     d_.scratch.v + (work_of(first + row) * s.v_heads + head_) * s.v_dim + first_column_ + column);
    }
    for (int row = thread; row < count; row += threads) {
      copy_async<8>(&batch.gates[row], d_.scratch.gates + work_of(first + row) * s.v_heads + head_);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  __device__ __forceinline__ void load_keys(const std::uint16_t* row, float (&keys)[kKeys]) const {
    if constexpr (kKeys >= 8) {
#pragma unroll
      for (int i = 0; i < kKeys; i += 8) {
        if (key_of(i) < d_.shape.k_dim) {
          const uint4 x = *reinterpret_cast<const uint4*>(row + key_of(i));
          const std::uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            keys[i + 2 * j] = __uint_as_float(words[j] << 16);
            keys[i + 2 * j + 1] = __uint_as_float(words[j] & 0xffff0000u);
          }
        } else {
#pragma unroll
          for (int j = 0; j < 8; ++j) keys[i + j] = 0.0f;
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < kKeys; ++i) keys[i] = key_of(i) < d_.shape.k_dim ? bf16_float(row[key_of(i)]) : 0.0f;
    }
  }

  __device__ __forceinline__ static float add_lanes(float sum) {
#pragma unroll
    for (int offset = 1; offset < kLanesOfColumn; offset *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, offset));
    return sum;
  }

  /// One token; `row` < 0: a replayed one, whose output nobody wants.
  __device__ __forceinline__ void step(const ScanBatch& batch, int i, int row, float (&state)[kKeys]) const {
    const float2 gates = batch.gates[i];
    float keys[kKeys], chains[2] = {0.0f, 0.0f};
    load_keys(batch.k[i], keys);
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      state[j] = __fmul_rn(state[j], gates.x);
      chains[j % 2] = __fmaf_rn(keys[j], state[j], chains[j % 2]);
    }
    const float memory = add_lanes(__fadd_rn(chains[0], chains[1]));
    const float v = column_ < d_.shape.v_dim ? batch.v[i][own_] : 0.0f;
    const float delta = __fmul_rn(gates.y, __fsub_rn(v, memory));
    float queries[kKeys];
    load_keys(batch.q[i], queries);
    chains[0] = chains[1] = 0.0f;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      state[j] = __fmaf_rn(keys[j], delta, state[j]);
      chains[j % 2] = __fmaf_rn(queries[j], state[j], chains[j % 2]);
    }
    if (row < 0) return;
    const float o = add_lanes(__fadd_rn(chains[0], chains[1]));
    if (r_ == 0 && column_ < d_.shape.v_dim) {
      d_.scratch.o[(static_cast<std::int64_t>(lane_.first_row + row) * d_.shape.v_heads + head_) * d_.shape.v_dim + column_] = o;
    }
  }

  const DeltaKernelParams& d_;
  ScanBatch* batches_;
  const DeviceLane lane_;
  float* slot_;
  int head_, first_column_, r_, own_, column_;
};

template <int kKeys, bool kTrees>
__global__ void __launch_bounds__(kScanWarps * 32) delta_scan(const DeltaKernelParams d) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  allow_next();
  wait_for_previous();
  Scan<kKeys> scan(d, reinterpret_cast<ScanBatch*>(memory));
  if constexpr (kTrees) {
    if (pass_lanes(d.lanes)[blockIdx.y].parents >= 0) return scan.run_tree();
  }
  scan.run();
}

/// A row's head: gated norm of its output.
__device__ void write_output(const DeltaKernelParams& d, int row, int head) {
  __shared__ float warps[kInputThreads / 32];
  const DeltaShape& s = d.shape;
  const std::int64_t at = (static_cast<std::int64_t>(row) * s.v_heads + head) * s.v_dim;
  const float* o = d.scratch.o + at;
  const float* z = d.p.projected + row * d.p.stride + d.p.z_offset + static_cast<std::int64_t>(head) * s.v_dim;
  float sum = 0.0f;
  for (int i = static_cast<int>(threadIdx.x); i < s.v_dim; i += kInputThreads) sum = __fmaf_rn(o[i], o[i], sum);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, offset));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = __fadd_rn(__fadd_rn(__fadd_rn(warps[0], warps[1]), warps[2]), warps[3]);
  const float mean = __fmul_rn(sum, __fdiv_rn(1.0f, static_cast<float>(s.v_dim)));
  const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, d.p.epsilon)));
  for (int i = static_cast<int>(threadIdx.x); i < s.v_dim; i += kInputThreads) {
    const float gate = d.p.sigmoid_gate ? sigmoid(z[i]) : silu(z[i]);
    const float y = __fmul_rn(__fmul_rn(__fmul_rn(o[i], inverse), d.p.norm_weight[i]), gate);
    reinterpret_cast<std::uint16_t*>(d.p.out)[at + i] = bf16_bits(y);
  }
}

/// What a lane's slot keeps of some channels: the tail after the last committed row, then the window. A thread owns its
/// channels, so that it may read the old tail and window before it overwrites them.
__device__ void keep_inputs(const DeltaKernelParams& d, int lane_index, int part, int parts) {
  const DeltaShape& s = d.shape;
  const DeviceLane lane = pass_lanes(d.lanes)[lane_index];
  float* slot = slot_of(d, lane);
  const int committed = lane.commits ? lane.replay_count + lane.row_count : lane.replay_count;
  const int first = part * kInputThreads + static_cast<int>(threadIdx.x), stride = parts * kInputThreads;
  for (int channel = first; channel < s.channels; channel += stride) {
    if (committed > 0) {
      float tail[kTapsMax - 1];
      for (int j = 0; j < s.taps - 1; ++j) {
        tail[j] = input_of(d, lane, slot, committed - lane.replay_count - (s.taps - 1) + j)[channel];
      }
      for (int j = 0; j < s.taps - 1; ++j) slot[s.tail + static_cast<std::int64_t>(j) * s.channels + channel] = tail[j];
    }
    if (lane.commits) continue;
    for (int row = 0; row < lane.row_count; ++row) {
      slot[s.window + row * s.window_stride + channel] =
          d.p.projected[(lane.first_row + row) * d.p.stride + d.p.qkv_offset + channel];
    }
  }
  if (lane.commits) return;
  for (int e = first; e < lane.row_count * s.v_heads; e += stride) {
    const int row = e / s.v_heads, head = e % s.v_heads;
    const float* projected = d.p.projected + (lane.first_row + row) * d.p.stride;
    float* kept = slot + s.window + row * s.window_stride + s.channels;
    kept[head] = projected[d.p.b_offset + head];
    kept[s.v_heads + head] = projected[d.p.a_offset + head];
  }
}

__global__ void __launch_bounds__(kInputThreads) delta_outputs(const DeltaKernelParams d, int parts) {
  allow_next();
  wait_for_previous();
  const int outputs = d.rows * d.shape.v_heads, block = static_cast<int>(blockIdx.x);
  if (block >= outputs) return keep_inputs(d, (block - outputs) / parts, (block - outputs) % parts, parts);
  const int row = block / d.shape.v_heads;
  if (pass_row_lane(d.lanes)[row] >= 0) write_output(d, row, block % d.shape.v_heads);
}

DeltaScratch scratch_of(CudaContext& context, const DeltaShape& s, std::int64_t work_rows, std::int64_t rows) {
  const auto round = [](std::int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const std::int64_t keys = round(work_rows * s.k_heads * s.k_dim * 2), values = round(work_rows * s.v_heads * s.v_dim * 4);
  const std::int64_t gates = round(work_rows * s.v_heads * 8), outputs = round(rows * s.v_heads * s.v_dim * 4);
  auto* memory = static_cast<std::uint8_t*>(
      context.scratch(Scratch::kActivations, static_cast<std::size_t>(2 * keys + values + gates + outputs)));
  DeltaScratch result = {};
  result.q = reinterpret_cast<std::uint16_t*>(memory);
  result.k = reinterpret_cast<std::uint16_t*>(memory + keys);
  result.v = reinterpret_cast<float*>(memory + 2 * keys);
  result.gates = reinterpret_cast<float2*>(memory + 2 * keys + values);
  result.o = reinterpret_cast<float*>(memory + 2 * keys + values + gates);
  return result;
}

template <int kKeys>
void launch_scan(CudaContext& context, const LaunchShape& shape, const DeltaKernelParams& d, bool any_tree) {
  launch(context, "the delta rule", any_tree ? delta_scan<kKeys, true> : delta_scan<kKeys, false>, shape, d);
}

void run(CudaContext& context, const GatedDeltaParams& params, const Lanes& lanes) {
  const std::int64_t rows = lanes.row_count;
  DeltaKernelParams d = {};
  d.shape = shape_of(params.geometry, params.slot_bytes);
  const DeltaShape& s = d.shape;
  d.p = params;
  d.lanes = lanes.ref;
  d.lane_count = lanes.lane_count;
  d.rows = static_cast<std::int32_t>(rows);
  const std::int64_t work_rows = static_cast<std::int64_t>(d.lane_count) * s.window_rows + rows;
  d.scratch = scratch_of(context, s, work_rows, rows);

  LaunchShape inputs;
  inputs.grid = dim3(static_cast<unsigned>(work_rows), static_cast<unsigned>(2 * s.k_heads + s.v_heads + 1));
  inputs.block = kInputThreads;
  launch(context, "inputs of the delta rule", delta_inputs, inputs, d);
  LaunchShape scan;
  const std::int32_t slices = (s.v_dim + kScanColumns - 1) / kScanColumns;
  scan.grid = dim3(static_cast<unsigned>(s.v_heads * slices), static_cast<unsigned>(d.lane_count));
  scan.block = kScanWarps * 32;
  scan.shared_bytes = 2 * sizeof(ScanBatch);
  const int keys = (s.k_dim + 7) / 8;
  if (keys <= 1) {
    launch_scan<1>(context, scan, d, lanes.any_tree);
  } else if (keys <= 2) {
    launch_scan<2>(context, scan, d, lanes.any_tree);
  } else if (keys <= 4) {
    launch_scan<4>(context, scan, d, lanes.any_tree);
  } else if (keys <= 8) {
    launch_scan<8>(context, scan, d, lanes.any_tree);
  } else if (keys <= 16) {
    launch_scan<16>(context, scan, d, lanes.any_tree);
  } else {
    launch_scan<32>(context, scan, d, lanes.any_tree);
  }
  LaunchShape outputs;
  const int parts = static_cast<int>((s.channels + 1023) / 1024);
  outputs.grid = static_cast<unsigned>(rows * s.v_heads + static_cast<std::int64_t>(d.lane_count) * parts);
  outputs.block = kInputThreads;
  launch(context, "outputs of the delta rule", delta_outputs, outputs, d, parts);
}

}  // namespace

std::size_t gated_delta_state_bytes(const GatedDeltaGeometry& geometry) {
  return static_cast<std::size_t>(shape_of(geometry, 0).window) * sizeof(float);
}

std::size_t gated_delta_window_row_bytes(const GatedDeltaGeometry& geometry) {
  return static_cast<std::size_t>(shape_of(geometry, 0).window_stride) * sizeof(float);
}

void gated_delta(CudaContext& context, const GatedDeltaParams& params) {
  if (params.lane_count == 0) return;
  run(context, params, context.lanes(params.lanes, params.lane_count));
}

void gated_delta_settle(CudaContext& context, const GatedDeltaSettleParams& params) {
  if (params.replay_count == 0) return;
  GatedDeltaParams pass;
  pass.geometry = params.geometry;
  pass.conv_weight = params.conv_weight;
  pass.decay = params.decay;
  pass.dt_bias = params.dt_bias;
  pass.slots = params.slots;
  pass.slot_bytes = params.slot_bytes;
  LaneSpan lane;
  lane.slot = params.slot;
  lane.replay_rows = params.replay_rows;
  lane.replay_count = params.replay_count;
  run(context, pass, context.lanes(&lane, 1));
}

}  // namespace tensorfold::ops::cuda
