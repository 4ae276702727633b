// What the kernels of the Gated DeltaNet mixer share: the layouts of slots and working rows, where a row's inputs lie, and
// the arithmetic of one step. Whatever kernel runs a row calls these functions, so its bits are the same.
//
// A pass is up to four launches:
//   gated_delta_row.cuh      what the first of them, and windows of few heads, make of a row
//   gated_delta_prepare.cu   convolution, L2 norms and gates of every row, pass rows and replayed rows in parallel -> working rows
//   gated_delta_prompt.cu    the recurrence of lanes with more than kWindowRows rows
//   gated_delta_window.cu    the recurrence of all other lanes, with their gated norm; and every lane's new tail and window
//   gated_delta_finish.cu    the gated norm of rows that the window kernel has not finished
// A round of windows takes the first and the third alone, one of few heads the third (prepares_rows).
//
// Slot, fp32:  state | tail [conv_kernel - 1][channels] | window [rows][channels, then b, then a].
// State: [v_heads][column group of 4][part of 4 elements][32 threads][4]: the registers of the warp that owns the four columns,
// so that a warp reads and writes whole lines. Thread t of a warp holds elements of column t / 8 of its group; its lane
// r = t % 8 holds k = (8·block + r)·8 + i for i in 0..7 and ascending blocks ("8 lanes", gated_delta.h). k_dim counts as 64, 128
// or 256; what lies beyond it is zero and stays zero.
//
// Working rows (scratch): keys [row][k_head][q, k][padded k_dim] bf16, values [row][v_head][padded v_dim] fp32, gates
// [row][v_head] (growth, beta). First the replayed rows, replay_capacity a lane, then the pass's rows.
//
// Nothing of a slot, and no list of lanes, changes while a pass runs except by this operation's own launches: passes begin with
// a kernel that waits for whatever ran before (pass_fetch.cu). So slots may be read before wait_for_previous().
#pragma once

#include <cstdint>

#include "ops/cuda/activation.cuh"
#include "ops/cuda/aligned.cuh"
#include "ops/cuda/cuda_context.h"
#include "ops/cuda/instructions.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/gated_delta.h"

namespace tensorfold::ops::cuda::delta {

constexpr int kColumnsPerWarp = 4;
constexpr int kLanesPerColumn = 8;
constexpr int kWindowRows = 16;        // lanes of more rows are the prompt kernel's; trees never are (limits::kTreeRowsMax)

/// Everything a launch needs; offsets in floats unless they are named otherwise.
struct Params {
  GatedDeltaGeometry geometry;
  std::int32_t channels;
  std::int32_t tail_rows;              // conv_kernel - 1
  std::int32_t lane_elements;          // state elements of a thread: 8, 16 or 32
  std::int32_t column_groups;          // of four columns, a head
  std::int64_t tail, window, window_stride;

  LanesRef lanes;
  std::int32_t lane_count;
  std::int32_t row_count;              // of the pass, with padding
  std::int32_t replay_capacity;        // replayed rows of a lane

  const float* projected;
  std::int64_t stride, qkv_offset, z_offset, b_offset, a_offset;
  const float* conv_weight;
  const float* decay;
  const float* dt_bias;
  const float* norm_weight;
  float epsilon;
  float inverse_width;                 // 1 / v_dim
  float query_scale;                   // k_dim^-1/2
  bool sigmoid_gate;
  bool vectors;                        // heads of every row begin at multiples of 16 bytes, and so do the weights
  char* slots;
  std::int64_t slot_bytes;
  std::uint16_t* out;

  std::uint16_t* keys;
  float* values;
  float2* gates;

  __host__ __device__ int k_padded() const { return kLanesPerColumn * lane_elements; }
  __host__ __device__ int v_padded() const { return kColumnsPerWarp * column_groups; }
  __host__ __device__ int group_floats() const { return 32 * lane_elements; }
  __host__ __device__ std::int64_t replay_rows() const {
    return static_cast<std::int64_t>(lane_count) * replay_capacity;
  }
};

#if defined(__CUDACC__)

__device__ __forceinline__ float* slot_of(const Params& p, const DeviceLane& lane) {
  return reinterpret_cast<float*>(p.slots + lane.slot * p.slot_bytes);
}

// --- A lane's sequence: index -tail_rows .. -1 is its tail, 0 .. replay_count - 1 the replayed rows, then the pass's rows.

__device__ __forceinline__ std::int64_t working_row(const Params& p, const DeviceLane& lane, int lane_index, int at) {
  return at < lane.replay_count
             ? static_cast<std::int64_t>(lane_index) * p.replay_capacity + at
             : p.replay_rows() + lane.first_row + at - lane.replay_count;
}

/// Convolution inputs (q | k | v) of a row of the sequence.
__device__ __forceinline__ const float* input_row(const Params& p, const DeviceLane& lane, const float* slot, int at) {
  if (at >= lane.replay_count) {
    return p.projected + static_cast<std::int64_t>(lane.first_row + at - lane.replay_count) * p.stride + p.qkv_offset;
  }
  if (at < 0) return slot + p.tail + static_cast<std::int64_t>(p.tail_rows + at) * p.channels;
  return slot + p.window + pass_words(p.lanes.header)[lane.replay + at] * p.window_stride;
}

/// The row that precedes `at` on its path.
__device__ __forceinline__ int row_before(const Params& p, const DeviceLane& lane, int at) {
  if (lane.parents < 0 || at <= lane.replay_count) return at - 1;
  return lane.replay_count + pass_words(p.lanes.header)[lane.parents + at - lane.replay_count];
}

// --- The recurrence, one column a thread's eight lanes.

__device__ __forceinline__ float low_half(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_half(std::uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

/// A thread's elements of a q or k row in shared memory.
template <int kElements>
__device__ __forceinline__ void load_keys(const std::uint16_t* row, int r, float (&x)[kElements]) {
#pragma unroll
  for (int block = 0; block < kElements / 8; ++block) {
    const uint4 words = *reinterpret_cast<const uint4*>(row + (block * kLanesPerColumn + r) * 8);
    const std::uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[block * 8 + 2 * i] = low_half(pairs[i]);
      x[block * 8 + 2 * i + 1] = high_half(pairs[i]);
    }
  }
}

/// Adds the column's eight lanes; all of them get the sum.
__device__ __forceinline__ float add_lanes(float x) {
#pragma unroll
  for (int offset = 1; offset < kLanesPerColumn; offset *= 2) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, offset));
  return x;
}

/// S *= growth; delta = beta·(v - Sᵀk); S += k·delta.
template <int kElements>
__device__ __forceinline__ void advance(float (&state)[kElements], const float (&k)[kElements], float2 gates, float v) {
  float even = 0.0f, odd = 0.0f;
#pragma unroll
  for (int i = 0; i < kElements; i += 2) {
    state[i] = __fmul_rn(state[i], gates.x);
    even = __fmaf_rn(k[i], state[i], even);
    state[i + 1] = __fmul_rn(state[i + 1], gates.x);
    odd = __fmaf_rn(k[i + 1], state[i + 1], odd);
  }
  const float memory = add_lanes(__fadd_rn(even, odd));
  const float change = __fmul_rn(gates.y, __fsub_rn(v, memory));
#pragma unroll
  for (int i = 0; i < kElements; ++i) state[i] = __fmaf_rn(k[i], change, state[i]);
}

/// This lane's share of Sᵀq; the lanes have yet to be added.
template <int kElements>
__device__ __forceinline__ float output_share(const float (&state)[kElements], const float (&q)[kElements]) {
  float even = 0.0f, odd = 0.0f;
#pragma unroll
  for (int i = 0; i < kElements; i += 2) {
    even = __fmaf_rn(q[i], state[i], even);
    odd = __fmaf_rn(q[i + 1], state[i + 1], odd);
  }
  return __fadd_rn(even, odd);
}

__device__ __forceinline__ float* state_of(const Params& p, float* slot, int head, int group) {
  return slot + static_cast<std::int64_t>(head * p.column_groups + group) * p.group_floats();
}

/// From and to a warp's part of a slot, past the first-level cache: each byte is touched once.
template <int kElements>
__device__ __forceinline__ void load_state(const float* group, int thread, float (&state)[kElements]) {
#pragma unroll
  for (int part = 0; part < kElements / 4; ++part) {
    const float4 x = __ldcg(reinterpret_cast<const float4*>(group) + part * 32 + thread);
    state[4 * part] = x.x;
    state[4 * part + 1] = x.y;
    state[4 * part + 2] = x.z;
    state[4 * part + 3] = x.w;
  }
}
template <int kElements>
__device__ __forceinline__ void store_state(float* group, int thread, const float (&state)[kElements]) {
#pragma unroll
  for (int part = 0; part < kElements / 4; ++part) {
    __stcg(reinterpret_cast<float4*>(group) + part * 32 + thread,
           make_float4(state[4 * part], state[4 * part + 1], state[4 * part + 2], state[4 * part + 3]));
  }
}

// --- Sums over a head's width, one warp: thread l takes elements 4·l .. + 3 of every 128.

__device__ __forceinline__ float add_squares(float sum, const float4& x) {
  sum = __fmaf_rn(x.x, x.x, sum);
  sum = __fmaf_rn(x.y, x.y, sum);
  sum = __fmaf_rn(x.z, x.z, sum);
  return __fmaf_rn(x.w, x.w, sum);
}

__device__ __forceinline__ float add_warp(float x) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, offset));
  return x;
}

/// y = ((o · inverse root of the mean square) · weight) · gate(z), rounded once; by one warp. `o` is padded with zeros; where
/// kPadded says so, z and the weight may be read beyond their width, too (what comes of it is not written).
template <bool kPadded>
__device__ __forceinline__ void gated_norm(const Params& p, const float* o, const float* z, const float* weight,
                                           std::uint16_t* out, int thread) {
  const int v_dim = p.geometry.v_dim;
  const auto load = [&](const float* row, int c) {
    return kPadded ? *reinterpret_cast<const float4*>(row + c) : load_four(row, c, v_dim, p.vectors);
  };
  float sum = 0.0f;
#pragma unroll(kPadded ? 1 : 2)
  for (int c = 4 * thread; c < v_dim; c += 128) sum = add_squares(sum, *reinterpret_cast<const float4*>(o + c));
  const float mean = __fmul_rn(add_warp(sum), p.inverse_width);
  const float inverse = inverse_root(__fadd_rn(mean, p.epsilon));
#pragma unroll 1
  for (int c = 4 * thread; c < v_dim; c += 128) {
    const float4 x = *reinterpret_cast<const float4*>(o + c), w = load(weight, c), gate = load(z, c);
    const auto finish = [&](float value, float scale, float g) {
      const float s = sigmoid(g), activated = p.sigmoid_gate ? s : __fmul_rn(g, s);  // the latter is silu
      return __fmul_rn(__fmul_rn(__fmul_rn(value, inverse), scale), activated);
    };
    const float y[4] = {finish(x.x, w.x, gate.x), finish(x.y, w.y, gate.y), finish(x.z, w.z, gate.z),
                        finish(x.w, w.w, gate.w)};
    if (p.vectors) {
      *reinterpret_cast<uint2*>(out + c) = {bf16_pair(y[0], y[1]), bf16_pair(y[2], y[3])};
      continue;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (c + i < v_dim) out[c + i] = bf16_bits(y[i]);
    }
  }
}

// --- Copies into shared memory that a thread doesn't wait for.

template <int kBytes>
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
  if constexpr (kBytes == 16) {
    copy_16(shared_address(shared), global);
  } else {
    copy_small<kBytes>(shared_address(shared), global);
  }
}

#endif

// --- The launches; each returns after it is queued.

void prepare(CudaContext& context, const Params& p);
void run_prompts(CudaContext& context, const Params& p);
/// Whether a pass of these lanes takes the window launch alone, which then prepares its rows.
bool prepares_rows(const CudaContext& context, const Params& p, const Lanes& lanes);
/// True: rows of windows are finished. False: finish() has to do them, too.
bool run_windows(CudaContext& context, const Params& p, const Lanes& lanes, bool prepares);
void finish(CudaContext& context, const Params& p, bool windows_are_finished);

}  // namespace tensorfold::ops::cuda::delta
