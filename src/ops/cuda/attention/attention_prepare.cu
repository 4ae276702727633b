// The step before attention (per-head norms, RoPE, rounding, the write of keys and values) and the move of an accepted
// tree's rows into the pages. Apart from attention's own files because they share the layout with it and nothing else.
//
// A warp takes one query head of a row, or one kv head's key and value. The norm's sum: element i goes to lane i mod 32,
// ascending, by fma; lanes add by butterfly 16, 8, 4, 2, 1.
//
// A value that isn't finite would reach rows that don't see it (0 x NaN), so none is ever written: its value becomes zeros
// and its key NaN, which makes every row that does see it NaN and leaves the others alone.
#include <cuda_bf16.h>

#include "base/assert.h"
#include "ops/cuda/attention/attention_math.cuh"
#include "ops/cuda/attention/page_layout.h"
#include "ops/cuda/cuda_operations.h"
#include "ops/cuda/launch.cuh"

namespace tensorfold::ops::cuda {
namespace {

constexpr int kWarps = 4;
constexpr std::uint32_t kNanPair = 0x7fc07fc0u;

struct PrepareArguments {
  LanesRef lanes;
  IdsRef rope_positions;
  const float* qkv;
  std::int64_t stride, q_offset, q_head_stride, k_offset, v_offset;
  const float* q_norm;
  const float* k_norm;
  const float* cos_sin;
  float epsilon;
  int rows, heads, kv_heads, head_dim, rotary_half;
  std::byte* pages;
  std::size_t page_bytes;
  std::byte* trees;
  std::size_t tree_bytes;
  __nv_bfloat16* q_out;
};

/// What a head's elements are multiplied by, as far as the lane needs it: nothing here waits for an earlier kernel.
struct HeadFactors {
  bool has_norm = false;
  float norm[kHeadDimMax / 32];  // of elements 32 · j + lane
  float2 cos_sin[8];             // of elements 8 · lane + i

  __device__ HeadFactors(const float* norm_weight, const float2* rotation, int half, int head_dim, int lane)
      : has_norm(norm_weight != nullptr) {
#pragma unroll
    for (int j = 0; j < kHeadDimMax / 32; ++j) {
      const int i = j * 32 + lane;
      norm[j] = has_norm && i < head_dim ? __ldg(norm_weight + i) : 1.0f;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int at = lane * 8 + i;
      cos_sin[i] = at < 2 * half ? __ldg(rotation + (at < half ? at : at - half)) : make_float2(1.0f, 0.0f);
    }
  }
};

/// A head's elements, normed if it has a norm, in the warp's shared memory. Zeros beyond head_dim.
__device__ void load_head(const float* x, const HeadFactors* factors, float epsilon, int head_dim, float* shared, int lane) {
  const bool has_norm = factors != nullptr && factors->has_norm;
  float v[kHeadDimMax / 32];
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kHeadDimMax / 32; ++j) {
    const int i = j * 32 + lane;
    v[j] = i < head_dim ? x[i] : 0.0f;
    sum = __fmaf_rn(v[j], v[j], sum);
  }
  float inverse = 1.0f;
  if (has_norm) {
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, mask));
    const float mean = __fmul_rn(sum, __fdiv_rn(1.0f, static_cast<float>(head_dim)));
    inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, epsilon)));
  }
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kHeadDimMax / 32; ++j) {
    const int i = j * 32 + lane;
    if (has_norm && i < head_dim) v[j] = __fmul_rn(__fmul_rn(v[j], inverse), factors->norm[j]);
    shared[i] = v[j];
  }
  __syncwarp();
}

/// Element i after RoPE.
__device__ float rotated(const float* shared, float2 cos_sin, int half, int i) {
  if (i < half) return __fmaf_rn(shared[i], cos_sin.x, -__fmul_rn(shared[i + half], cos_sin.y));
  if (i < 2 * half) return __fmaf_rn(shared[i], cos_sin.x, __fmul_rn(shared[i - half], cos_sin.y));
  return shared[i];
}

/// The lane's chunk of 8 elements, rounded; `half` 0: not rotated.
__device__ uint4 rounded_chunk(const float* shared, const HeadFactors& factors, int half, int lane) {
  uint4 chunk;
  std::uint32_t* words = reinterpret_cast<std::uint32_t*>(&chunk);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = lane * 8 + 2 * i;
    words[i] = bf16_pair(rotated(shared, factors.cos_sin[2 * i], half, at), rotated(shared, factors.cos_sin[2 * i + 1], half, at + 1));
  }
  return chunk;
}

__device__ bool is_finite_chunk(uint4 chunk) {
  const auto finite = [](std::uint32_t pair) {
    return (pair & 0x7f800000u) != 0x7f800000u && (pair & 0x7f80u) != 0x7f80u;
  };
  return finite(chunk.x) && finite(chunk.y) && finite(chunk.z) && finite(chunk.w);
}

/// Where the chunks of a row's key stand; its value is `value_distance` bytes further.
struct KeyPlace {
  std::byte* key = nullptr;  // null: nowhere
  std::size_t value_distance = 0;
};
__device__ KeyPlace place_of(const PrepareArguments& a, const DeviceLane& lane, int row, int kv_head, int chunk) {
  const int blocks = head_blocks(a.head_dim), at = row - lane.first_row;
  if (lane.parents >= 0) {
    return {a.trees + static_cast<std::size_t>(lane.slot) * a.tree_bytes + kv_head * tree_head_bytes(blocks) +
                at * tree_row_bytes(blocks) + chunk * 16,
            tree_part_bytes(blocks)};
  }
  const int position = lane.position + at;
  const std::int32_t page = (pass_words(a.lanes.header) + lane.pages)[position / kTileKeys];
  if (page < 0) return {};
  return {a.pages + static_cast<std::size_t>(page) * a.page_bytes + kv_head * page_head_bytes(blocks) +
              page_chunk_offset(position % kTileKeys, chunk),
          page_part_bytes(blocks)};
}

__global__ void __launch_bounds__(kWarps * 32) prepare_kernel(const __grid_constant__ PrepareArguments a) {
  __shared__ __align__(16) float heads[kWarps][kHeadDimMax];
  allow_next();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int slots = a.heads + a.kv_heads;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  if (index >= static_cast<std::int64_t>(a.rows) * slots) return wait_for_previous();
  const int row = static_cast<int>(index / slots), slot = static_cast<int>(index % slots);
  const int lane_index = pass_row_lane(a.lanes)[row];
  if (lane_index < 0) return wait_for_previous();  // padding
  float* shared = heads[warp];
  const float* x = a.qkv + row * a.stride;
  const float2* cos_sin = nullptr;
  if (a.rotary_half > 0) {
    cos_sin = reinterpret_cast<const float2*>(a.cos_sin) +
              static_cast<std::int64_t>(pass_ids(a.rope_positions)[row]) * a.rotary_half;
  }
  const HeadFactors factors(slot < a.heads ? a.q_norm : a.k_norm, cos_sin, a.rotary_half, a.head_dim, lane);
  if (slot < a.heads) {
    wait_for_previous();
    load_head(x + a.q_offset + slot * a.q_head_stride, &factors, a.epsilon, a.head_dim, shared, lane);
    if (lane * 8 >= a.head_dim) return;
    *(reinterpret_cast<uint4*>(a.q_out + (static_cast<std::int64_t>(row) * a.heads + slot) * a.head_dim) + lane) =
        rounded_chunk(shared, factors, a.rotary_half, lane);
    return;
  }
  const int kv_head = slot - a.heads;
  KeyPlace place;
  if (lane < head_blocks(a.head_dim) * 8) place = place_of(a, pass_lanes(a.lanes)[lane_index], row, kv_head, lane);
  wait_for_previous();
  load_head(x + a.v_offset + static_cast<std::int64_t>(kv_head) * a.head_dim, nullptr, 0.0f, a.head_dim, shared, lane);
  uint4 value = rounded_chunk(shared, factors, 0, lane);
  load_head(x + a.k_offset + static_cast<std::int64_t>(kv_head) * a.head_dim, &factors, a.epsilon, a.head_dim, shared, lane);
  uint4 key = rounded_chunk(shared, factors, a.rotary_half, lane);
  if (!__all_sync(~0u, is_finite_chunk(value))) {
    value = make_uint4(0, 0, 0, 0);
    key = make_uint4(kNanPair, kNanPair, kNanPair, kNanPair);
  }
  if (place.key == nullptr) return;
  *reinterpret_cast<uint4*>(place.key) = key;
  *reinterpret_cast<uint4*>(place.key + place.value_distance) = value;
}

struct ReplayArguments {
  LanesRef lanes;
  std::byte* pages;
  std::size_t page_bytes;
  const std::byte* trees;
  std::size_t tree_bytes;
  int kv_heads, blocks;
};

/// One CTA a lane and kv head.
__global__ void __launch_bounds__(128) replay_kernel(const __grid_constant__ ReplayArguments a) {
  allow_next();
  wait_for_previous();
  const int kv_head = static_cast<int>(blockIdx.x) % a.kv_heads;
  const DeviceLane& lane = pass_lanes(a.lanes)[blockIdx.x / a.kv_heads];
  if (lane.replay_tree == 0) return;
  const std::int32_t* words = pass_words(a.lanes.header);
  const std::byte* tree = a.trees + static_cast<std::size_t>(lane.slot) * a.tree_bytes + kv_head * tree_head_bytes(a.blocks);
  const int chunks = a.blocks * 8;
  for (int i = static_cast<int>(threadIdx.x); i < lane.replay_count * 2 * chunks; i += static_cast<int>(blockDim.x)) {
    const int chunk = i % chunks, part = i / chunks % 2, row = i / (2 * chunks);
    const int position = lane.position - lane.replay_count + row;
    const std::int32_t page = words[lane.pages + position / kTileKeys];
    if (page < 0) continue;  // slid out of the window meanwhile
    const std::byte* from = tree + part * tree_part_bytes(a.blocks) + words[lane.replay + row] * tree_row_bytes(a.blocks) + chunk * 16;
    std::byte* to = a.pages + static_cast<std::size_t>(page) * a.page_bytes + kv_head * page_head_bytes(a.blocks) +
                    part * page_part_bytes(a.blocks) + page_chunk_offset(position % kTileKeys, chunk);
    *reinterpret_cast<uint4*>(to) = __ldcg(reinterpret_cast<const uint4*>(from));
  }
}

void check_geometry(const KvGeometry& geometry) {
  TF_ASSERT(geometry.kv_heads > 0);
  TF_ASSERT(geometry.head_dim > 0 && geometry.head_dim % 8 == 0 && geometry.head_dim <= kHeadDimMax);
}

}  // namespace

std::size_t kv_page_bytes(const KvGeometry& geometry) {
  check_geometry(geometry);
  return static_cast<std::size_t>(geometry.kv_heads) * page_head_bytes(head_blocks(geometry.head_dim));
}

std::size_t kv_tree_bytes(const KvGeometry& geometry) {
  check_geometry(geometry);
  return static_cast<std::size_t>(geometry.kv_heads) * tree_head_bytes(head_blocks(geometry.head_dim));
}

void attention_prepare(CudaContext& context, const AttentionPrepareParams& p) {
  TF_ASSERT(p.pool.page_bytes >= kv_page_bytes(p.geometry) && p.pool.page_bytes % 16 == 0);
  TF_ASSERT(p.rope.rotary_dims % 2 == 0 && p.rope.rotary_dims <= p.geometry.head_dim);
  const Lanes lanes = context.lanes(p.lanes, p.lane_count);
  TF_ASSERT(!lanes.any_tree ||
            (p.pool.trees != nullptr && p.pool.tree_bytes >= kv_tree_bytes(p.geometry) && p.pool.tree_bytes % 16 == 0));
  if (lanes.row_count == 0) return;
  PrepareArguments a = {};
  a.lanes = lanes.ref;
  if (p.rope.rotary_dims > 0) a.rope_positions = context.ids(p.rope_positions, lanes.row_count);
  a.qkv = p.qkv;
  a.stride = p.stride;
  a.q_offset = p.q_offset;
  a.q_head_stride = p.q_head_stride;
  a.k_offset = p.k_offset;
  a.v_offset = p.v_offset;
  a.q_norm = p.q_norm;
  a.k_norm = p.k_norm;
  a.cos_sin = p.rope.cos_sin;
  a.epsilon = p.epsilon;
  a.rows = static_cast<int>(lanes.row_count);
  a.heads = p.heads;
  a.kv_heads = p.geometry.kv_heads;
  a.head_dim = p.geometry.head_dim;
  a.rotary_half = p.rope.rotary_dims / 2;
  a.pages = static_cast<std::byte*>(p.pool.pages);
  a.page_bytes = p.pool.page_bytes;
  a.trees = static_cast<std::byte*>(p.pool.trees);
  a.tree_bytes = p.pool.tree_bytes;
  a.q_out = reinterpret_cast<__nv_bfloat16*>(p.q_out);
  const std::int64_t warps = lanes.row_count * (a.heads + a.kv_heads);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>((warps + kWarps - 1) / kWarps));
  shape.block = dim3(kWarps * 32);
  launch(context, "attention_prepare", prepare_kernel, shape, a);
}

void attention_replay(CudaContext& context, const AttentionReplayParams& p) {
  const Lanes lanes = context.lanes(p.lanes, p.lane_count);
  if (!lanes.any_tree_replay) return;
  TF_ASSERT(p.pool.page_bytes >= kv_page_bytes(p.geometry) && p.pool.tree_bytes >= kv_tree_bytes(p.geometry));
  ReplayArguments a = {};
  a.lanes = lanes.ref;
  a.pages = static_cast<std::byte*>(p.pool.pages);
  a.page_bytes = p.pool.page_bytes;
  a.trees = static_cast<const std::byte*>(p.pool.trees);
  a.tree_bytes = p.pool.tree_bytes;
  a.kv_heads = p.geometry.kv_heads;
  a.blocks = head_blocks(p.geometry.head_dim);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(lanes.lane_count * a.kv_heads));
  shape.block = dim3(128);
  launch(context, "attention_replay", replay_kernel, shape, a);
}

}  // namespace tensorfold::ops::cuda
