// The input of a decode layer that is a norm not run yet (LinearParams::norm): every CTA norms the rows itself while it stages
// x, which saves a launch and its latency. The bits are norm_rows()'s (norm_row.cuh): the CTA's threads play the threads that
// a row's sum of squares is shaped for, and keep what those would read in shared memory, so few registers are needed however
// many of them one has to play. The rows come by the copy engine, at a barrier of their own: asynchronous copies of 16 bytes would be
// awaited behind the weights' prefetch, and loads into registers would be unrolled code that runs once, which costs a cold kernel more
// than it does itself.
//
// Each CTA reads whole rows but writes the columns that it multiplies. Nothing of it waits for another CTA.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/cuda/norm_row.cuh"
#if defined(__CUDACC__)
#include "ops/cuda/instructions.cuh"
#endif

namespace tensorfold::ops::cuda {

/// Rows of fp32, aligned to 16 bytes as is `weight`; the width is the layer's K, a multiple of 4.
struct NormedInput {
  const float* x;                  // null: the layer's input is there
  const float* weight;             // [K]
  __nv_bfloat16* kept;             // null, or [rows, K]: where the normed rows are written for others
  std::int64_t x_stride;
  float epsilon, inverse_width;    // 1 / K
  std::int32_t threads;            // norm_threads(K)
  // Offsets in shared memory.
  std::uint32_t rows_at, weight_at, sums_at, arrived_at;
};

/// Bytes of shared memory for `rows` rows of `columns`; `share`: columns that a CTA multiplies.
constexpr std::uint32_t normed_rows_bytes(int rows, int columns) {
  return static_cast<std::uint32_t>(rows * columns * 4);
}
constexpr std::uint32_t normed_weight_bytes(int share) {
  return static_cast<std::uint32_t>(share * 4);
}
constexpr std::uint32_t normed_sums_bytes(int rows) {
  return static_cast<std::uint32_t>(rows * kNormWarpsMax * 4);
}

#if defined(__CUDACC__)

namespace decode {

/// The threads that a row's sum of squares is shaped for, as this thread plays them: a lane of whole warps.
struct NormPlayer {
  int lane, warp, warps, groups, threads;
  __device__ __forceinline__ NormPlayer(const NormedInput& norm, int columns)
      : lane(threadIdx.x),
        warp(threadIdx.y + blockDim.y * threadIdx.z),
        warps(blockDim.y * blockDim.z),
        groups(columns / 4),
        threads(norm.threads) {}
};

/// Columns [first, end) of K in fours, a thread of the CTA some of them: always the same ones.
template <typename Visit>
__device__ __forceinline__ void each_four(const NormPlayer& player, int first, int end, Visit&& visit) {
#pragma unroll 1
  for (int column = first + 4 * (player.lane + 32 * player.warp); column < end; column += 4 * 32 * player.warps) visit(column);
}

/// The weights of the CTA's columns [first, end) of K; before wait_for_previous(), as they are constants. A thread reads those
/// that it wrote.
__device__ __forceinline__ void copy_norm_weights(const NormedInput& norm, std::uint32_t shared, int columns, int first, int end) {
  each_four(NormPlayer(norm, columns), first, min(end, columns), [&](int column) {
    store_shared_16(shared + norm.weight_at + (column - first) * 4, __ldg(reinterpret_cast<const uint4*>(norm.weight + column)));
  });
}

/// Asks for the rows, by one thread that has initialised the barrier.
__device__ __forceinline__ void ask_rows(const NormedInput& norm, std::uint32_t shared, int columns, int rows) {
  const int row_bytes = columns * 4;
  barrier_expect(shared + norm.arrived_at, rows * row_bytes);
#pragma unroll 1
  for (int m = 0; m < rows; ++m) {
    copy_bulk(shared + norm.rows_at + m * row_bytes, norm.x + m * norm.x_stride, row_bytes, shared + norm.arrived_at);
  }
}

/// The squares of the rows in shared memory, added by virtual warps.
__device__ __forceinline__ void add_row_squares(const NormedInput& norm, const NormPlayer& player, std::uint32_t shared, int columns,
                                                int rows) {
#pragma unroll 1
  for (int m = 0; m < rows; ++m) {
    const std::uint32_t row = shared + norm.rows_at + m * columns * 4;
#pragma unroll 1
    for (int played = player.warp; played < player.threads / 32; played += player.warps) {
      float sum = 0.0f;
#pragma unroll 1
      for (int group = 32 * played + player.lane; group < player.groups; group += player.threads) {
        float v[4];
        load_shared_16(row + group * 16, v);
        sum = add_squares({v[0], v[1], v[2], v[3]}, sum);
      }
      sum = fold_warp(sum);
      if (player.lane == 0) store_shared_4(shared + norm.sums_at + (m * kNormWarpsMax + played) * 4, sum);
    }
  }
}

/// Where x lies in shared memory: [64 columns][row][128 bytes], 16-byte chunk c of row m at c ^ (m & 7).
struct InputTile {
  std::uint32_t address;
  std::int32_t rows;
  std::int32_t first_column, columns;  // of K, that this CTA holds; columns is a multiple of 128
  /// Of 16 bytes.
  __device__ __forceinline__ std::uint32_t chunk_address(int chunk, int m) const {
    return address + ((chunk >> 3) * rows + m) * 128 + (((chunk & 7) ^ (m & 7)) << 4);
  }
};

/// x of the CTA's columns, zero beyond K; `keeps`: this CTA writes its columns of norm.kept as well. After ask_rows(), whose
/// barrier every thread knows. Returns before other threads' writes are visible.
__device__ __forceinline__ void stage_normed(const NormedInput& norm, std::uint32_t shared, const InputTile& tile, int columns,
                                             bool keeps) {
  const NormPlayer player(norm, columns);
  barrier_wait(shared + norm.arrived_at, 0);
  add_row_squares(norm, player, shared, columns, tile.rows);
  __syncthreads();
  const int end = min(tile.first_column + tile.columns, columns);
#pragma unroll 1
  for (int m = 0; m < tile.rows; ++m) {
    const std::uint32_t sums = shared + norm.sums_at + m * kNormWarpsMax * 4;
    float total = load_shared_4(sums);
#pragma unroll 4
    for (int played = 1; played < player.threads / 32; ++played) total = __fadd_rn(total, load_shared_4(sums + 4 * played));
    const float factor = norm_factor(total, norm.inverse_width, norm.epsilon);
    const std::uint32_t row = shared + norm.rows_at + m * columns * 4;
    each_four(player, tile.first_column, end, [&](int column) {
      float v[4], w[4];
      load_shared_16(row + column * 4, v);
      load_shared_16(shared + norm.weight_at + (column - tile.first_column) * 4, w);
      const float4 y = weighted(normed({v[0], v[1], v[2], v[3]}, factor), {w[0], w[1], w[2], w[3]});
      const uint2 pairs = make_uint2(bf16_pair(y.x, y.y), bf16_pair(y.z, y.w));
      store_shared_8(tile.chunk_address((column - tile.first_column) >> 3, m) + (column & 4) * 2, pairs);
      if (keeps) *reinterpret_cast<uint2*>(norm.kept + static_cast<std::int64_t>(m) * columns + column) = pairs;
    });
    each_four(player, end, tile.first_column + tile.columns, [&](int column) {
      store_shared_8(tile.chunk_address((column - tile.first_column) >> 3, m) + (column & 4) * 2, make_uint2(0, 0));
    });
  }
}

}  // namespace decode

#endif

}  // namespace tensorfold::ops::cuda
