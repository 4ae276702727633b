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
#include "ops/cuda/attention/short_code.cuh"
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
  float epsilon, inverse_dim;  // inverse_dim = 1 / head_dim
  int rows, heads, kv_heads, head_dim, rotary_half;
  Divisor by_slots;            // heads + kv_heads
  std::byte* pages;
  std::size_t page_bytes;
  std::byte* trees;
  std::size_t tree_bytes;
  __nv_bfloat16* q_out;
};

constexpr int kElements = kHeadDimMax / 32;  // of a lane

/// What a head's elements are multiplied by, as far as the lane needs it: nothing here waits for an earlier kernel.
struct HeadFactors {
  float norm[kElements];  // of elements 32 · j + lane
  float2 cos_sin[8];      // of elements 8 · lane + i; the first half's sines are negated

  __device__ HeadFactors(const float* norm_weight, const float2* rotation, int half, int head_dim, int lane) {
    const float* weights = whole(norm_weight + lane);
    const int normed = norm_weight != nullptr ? head_dim : 0;
#pragma unroll
    for (int j = 0; j < kElements; ++j) norm[j] = j * 32 + lane < normed ? __ldg(weights + j * 32) : 1.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int at = lane * 8 + i;
      cos_sin[i] = at < 2 * half ? __ldg(rotation + (at < half ? at : at - half)) : make_float2(1.0f, 0.0f);
      if (at < half) cos_sin[i].y = -cos_sin[i].y;
    }
  }
};

/// The lane's elements of a head; zeros beyond head_dim.
__device__ void load_head(const float* x, int head_dim, int lane, float (&v)[kElements]) {
  const float* elements = whole(x + lane);
#pragma unroll
  for (int j = 0; j < kElements; ++j) v[j] = j * 32 + lane < head_dim ? elements[j * 32] : 0.0f;
}

__device__ void norm_head(const PrepareArguments& a, const HeadFactors& factors, int lane, float (&v)[kElements]) {
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kElements; ++j) sum = __fmaf_rn(v[j], v[j], sum);
#pragma unroll 1
  for (int mask = 16; mask > 0; mask >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, mask));
  const float mean = __fmul_rn(sum, a.inverse_dim);
  const float inverse = __frcp_rn(__fsqrt_rn(__fadd_rn(mean, a.epsilon)));
#pragma unroll
  for (int j = 0; j < kElements; ++j) {
    if (j * 32 + lane < a.head_dim) v[j] = __fmul_rn(__fmul_rn(v[j], inverse), factors.norm[j]);
  }
}

/// The lane's chunk of 8 elements, after RoPE if `half` > 0, rounded. `shared` is the warp's.
__device__ uint4 rounded_chunk(const float (&v)[kElements], const HeadFactors& factors, int half, int lane, float* shared) {
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kElements; ++j) shared[j * 32 + lane] = v[j];
  __syncwarp();
  float chunk[8];
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(shared + lane * 8 + i);
    chunk[i] = four.x, chunk[i + 1] = four.y, chunk[i + 2] = four.z, chunk[i + 3] = four.w;
  }
  if (half > 0) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int at = lane * 8 + i;
      if (at >= 2 * half) continue;
      const float other = shared[at < half ? at + half : at - half];
      chunk[i] = __fmaf_rn(chunk[i], factors.cos_sin[i].x, __fmul_rn(other, factors.cos_sin[i].y));
    }
  }
  return make_uint4(bf16_pair(chunk[0], chunk[1]), bf16_pair(chunk[2], chunk[3]), bf16_pair(chunk[4], chunk[5]),
                    bf16_pair(chunk[6], chunk[7]));
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
  const int slots = a.heads + a.kv_heads, index = static_cast<int>(blockIdx.x) * kWarps + warp;
  if (index >= a.rows * slots) return wait_for_previous();
  const int row = a.by_slots.quotient(index), slot = a.by_slots.remainder(index, row);
  const int lane_index = pass_row_lane(a.lanes)[row];
  if (lane_index < 0) return wait_for_previous();  // padding
  const bool is_query = slot < a.heads;
  const int kv_head = slot - a.heads;
  const float2* cos_sin = nullptr;
  if (a.rotary_half > 0) {
    cos_sin = reinterpret_cast<const float2*>(a.cos_sin) +
              static_cast<std::int64_t>(pass_ids(a.rope_positions)[row]) * a.rotary_half;
  }
  const float* norm = is_query ? a.q_norm : a.k_norm;
  const HeadFactors factors(norm, cos_sin, a.rotary_half, a.head_dim, lane);
  KeyPlace place;
  if (!is_query && lane < head_blocks(a.head_dim) * 8) place = place_of(a, pass_lanes(a.lanes)[lane_index], row, kv_head, lane);
  wait_for_previous();

  // Queries, keys and values go the same way, so that its code is fetched once: a query in one turn, a value and then its key
  // in two.
  const float* x = a.qkv + row * a.stride;
  const std::int64_t kv_offset = static_cast<std::int64_t>(kv_head) * a.head_dim;
  float v[kElements], key[kElements];
  load_head(x + (is_query ? a.q_offset + slot * a.q_head_stride : a.v_offset + kv_offset), a.head_dim, lane, v);
  if (!is_query) load_head(x + a.k_offset + kv_offset, a.head_dim, lane, key);
  uint4 chunk, value = make_uint4(0, 0, 0, 0);
#pragma unroll 1
  for (bool is_value = !is_query;; is_value = false) {
    if (!is_value && norm != nullptr) norm_head(a, factors, lane, v);
    chunk = rounded_chunk(v, factors, is_value ? 0 : a.rotary_half, lane, heads[warp]);
    if (!is_value) break;
    value = chunk;
#pragma unroll
    for (int j = 0; j < kElements; ++j) v[j] = key[j];
  }
  if (is_query) {
    if (lane * 8 >= a.head_dim) return;
    *(reinterpret_cast<uint4*>(a.q_out + (static_cast<std::int64_t>(row) * a.heads + slot) * a.head_dim) + lane) = chunk;
    return;
  }
  if (!__all_sync(~0u, is_finite_chunk(value))) {
    value = make_uint4(0, 0, 0, 0);
    chunk = make_uint4(kNanPair, kNanPair, kNanPair, kNanPair);
  }
  if (place.key == nullptr) return;
  *reinterpret_cast<uint4*>(place.key) = chunk;
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
  a.inverse_dim = 1.0f / static_cast<float>(p.geometry.head_dim);
  a.rows = static_cast<int>(lanes.row_count);
  a.heads = p.heads;
  a.kv_heads = p.geometry.kv_heads;
  a.head_dim = p.geometry.head_dim;
  a.rotary_half = p.rope.rotary_dims / 2;
  a.by_slots = Divisor(a.heads + a.kv_heads);
  TF_ASSERT(Divisor::takes((lanes.row_count + 1) * (a.heads + a.kv_heads)));
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
