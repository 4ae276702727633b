// The linear kernels for every GPU from sm_80 on, every format and every row count: the fallback where no faster kernel goes,
// and the second opinion of the tests.
//
//   narrow  up to 16 rows of x a CTA: one tile of 16 output rows, one warp a K-segment, sums meet in shared memory.
//   wide    64 rows of x a CTA: four tiles, one a warp, which walks the segments in order; x goes through shared memory.
//
// Weights are read from global memory straight into registers, half a block (64 columns) ahead.
#pragma once

#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear/dequantise.cuh"
#include "ops/cuda/linear/mma.cuh"

namespace tensorfold::ops::cuda {

struct PortableArguments {
  PackedPart part;
  const __nv_bfloat16* x;
  IdsRef row_index;
  std::int32_t pairs_aligned;  // two neighbouring columns can be read as one word
  std::int32_t runs_aligned;   // eight can
  LinearOutput out;
};

namespace detail {

constexpr int kHalfColumns = 64;  // of a block

/// One lane's weights of half a block: what the next steps need, on its way while those before are used.
template <typename F>
struct HalfBlock {
  HalfCodes<F> codes;
  HalfScales<F> scales;
  __device__ __forceinline__ void load(const PackedPart& part, int tile, int half, int lane) {
    const std::int64_t block = static_cast<std::int64_t>(tile) * part.k_blocks + half / 2;
    const GlobalBlock from{part.blocks + block * part.block_bytes};
    codes = load_codes<F>(from, half & 1, lane);
    scales = load_scales<F>(from, part, half & 1, lane);
  }
};

/// Row `token` of the call in x; rows beyond it read the last one.
__device__ __forceinline__ const __nv_bfloat16* input_row(const PortableArguments& a, int token) {
  token = min(token, a.out.rows - 1);
  const std::int64_t row = a.row_index.header != nullptr ? pass_ids(a.row_index)[token] : token;
  return a.x + row * a.part.columns;
}

template <typename F, int step, int token_tiles>
__device__ __forceinline__ void narrow_step(const PortableArguments& a, const HalfBlock<F>& weights,
                                            const __nv_bfloat16* const (&rows)[token_tiles], int k,
                                            float (&sums)[token_tiles][4]) {
  std::uint32_t fragment_words[4];
  fragment<F, step>(weights.codes, weights.scales, fragment_words);
#pragma unroll
  for (int i = 0; i < token_tiles; ++i) {
    const std::uint32_t b0 = input_pair(rows[i], k + 16 * step, a.part.columns, a.pairs_aligned);
    const std::uint32_t b1 = input_pair(rows[i], k + 16 * step + 8, a.part.columns, a.pairs_aligned);
    mma(sums[i], fragment_words, b0, b1);
  }
}

}  // namespace detail

/// Grid: tiles, groups of 8 · token_tiles rows. Block: a warp a segment.
template <typename F, int token_tiles>
__global__ void __launch_bounds__(32 * kSegmentsMax) narrow_linear_kernel(const __grid_constant__ PortableArguments a) {
  __shared__ float4 pieces[kSegmentsMax][token_tiles][32];
  const PackedPart& part = a.part;
  const int lane = threadIdx.x % 32, segment = threadIdx.x / 32;
  const int tile = blockIdx.x, first_token = blockIdx.y * (8 * token_tiles);
  const int first_half = 2 * segment * part.segment_blocks;
  const int end_half = min(2 * (segment + 1) * part.segment_blocks, 2 * part.k_blocks);
  detail::HalfBlock<F> weights;
  weights.load(part, tile, first_half, lane);
  allow_next();
  wait_for_previous();
  const __nv_bfloat16* rows[token_tiles];
#pragma unroll
  for (int i = 0; i < token_tiles; ++i) rows[i] = detail::input_row(a, first_token + 8 * i + lane / 4);
  float sums[token_tiles][4] = {};
#pragma unroll 1
  for (int half = first_half; half < end_half; ++half) {
    detail::HalfBlock<F> next = weights;
    if (half + 1 < end_half) next.load(part, tile, half + 1, lane);
    const int k = half * detail::kHalfColumns + 2 * (lane % 4);
    detail::narrow_step<F, 0>(a, weights, rows, k, sums);
    detail::narrow_step<F, 1>(a, weights, rows, k, sums);
    detail::narrow_step<F, 2>(a, weights, rows, k, sums);
    detail::narrow_step<F, 3>(a, weights, rows, k, sums);
    weights = next;
  }
#pragma unroll
  for (int i = 0; i < token_tiles; ++i) {
    pieces[segment][i][lane] = make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
  }
  __syncthreads();
  for (int i = segment; i < token_tiles; i += part.segments) {
    SegmentSum<4> sum;
    for (int s = 0; s < part.segments; ++s) {
      const float4 piece = pieces[s][i][lane];
      const float values[4] = {piece.x, piece.y, piece.z, piece.w};
      sum.add(values, s, part.segment_tree != 0);
    }
    float total[4];
    sum.finish(part.segments, part.segment_tree != 0, total);
    TileOutput(a.out, part, tile, first_token + 8 * i, lane).store(total);
  }
}

// --- wide ------------------------------------------------------------------------------------------------------------

constexpr int kWideTokens = 64;
constexpr int kWideTokenTiles = kWideTokens / 8;
constexpr int kWideWarps = 4;
constexpr int kWideStages = 3;

namespace detail {

// x of half a block: [token][64 columns], 16-byte chunk c of token m at c ^ (m & 7), so that ldmatrix meets no conflicts.
constexpr int kStageBytes = kWideTokens * kHalfColumns * 2;

/// Starts the copy of x's columns [64 · half, + 64) of the CTA's tokens.
__device__ __forceinline__ void stage_input(const PortableArguments& a, const __nv_bfloat16* const* rows,
                                            std::uint32_t stage, int half) {
  for (int chunk = threadIdx.x; chunk < kWideTokens * 8; chunk += 32 * kWideWarps) {
    const int token = chunk / 8, column = half * kHalfColumns + chunk % 8 * 8;
    const std::uint32_t to = stage + token * 128 + ((chunk % 8 ^ token % 8) << 4);
    const __nv_bfloat16* from = rows[token];
    if (a.runs_aligned) {
      copy_16_padded(to, column < a.part.columns ? from + column : from, column < a.part.columns ? 16 : 0);
      continue;
    }
    std::uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = input_pair(from, column + 2 * i, a.part.columns, a.pairs_aligned);
    store_shared_16(to, make_uint4(words[0], words[1], words[2], words[3]));
  }
}

template <typename F, int step>
__device__ __forceinline__ void wide_step(const HalfBlock<F>& weights, std::uint32_t stage, int lane,
                                          float (&sums)[kWideTokenTiles][4]) {
  std::uint32_t fragment_words[4];
  fragment<F, step>(weights.codes, weights.scales, fragment_words);
#pragma unroll
  for (int pair = 0; pair < kWideTokenTiles / 2; ++pair) {
    // Four matrices: tokens 0..7 and 8..15 of the pair, k 0..7 and 8..15 of the step.
    const int token = 16 * pair + (lane >> 4) * 8 + lane % 8;
    const int chunk = 2 * step + (lane >> 3 & 1);
    std::uint32_t b[4];
    load_matrices(stage + token * 128 + ((chunk ^ token % 8) << 4), b);
    mma(sums[2 * pair], fragment_words, b[0], b[1]);
    mma(sums[2 * pair + 1], fragment_words, b[2], b[3]);
  }
}

}  // namespace detail

/// Grid: groups of 64 output rows, groups of 64 rows of x.
template <typename F>
__global__ void __launch_bounds__(32 * kWideWarps) wide_linear_kernel(const __grid_constant__ PortableArguments a) {
  __shared__ __align__(128) std::uint8_t stages[kWideStages][detail::kStageBytes];
  __shared__ const __nv_bfloat16* rows[kWideTokens];
  const PackedPart& part = a.part;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int tile = blockIdx.x * kWideWarps + warp, first_token = blockIdx.y * kWideTokens;
  const bool has_tile = tile < part.tiles;  // the others only copy x
  const int halves = 2 * part.k_blocks;
  const std::uint32_t stages_address = shared_address(stages);
  detail::HalfBlock<F> weights;
  if (has_tile) weights.load(part, tile, 0, lane);
  allow_next();
  wait_for_previous();
  if (threadIdx.x < kWideTokens) rows[threadIdx.x] = detail::input_row(a, first_token + threadIdx.x);
  __syncthreads();
  for (int half = 0; half < kWideStages - 1; ++half) {
    if (half < halves) detail::stage_input(a, rows, stages_address + half * detail::kStageBytes, half);
    commit_copies();
  }
  float sums[kWideTokenTiles][4] = {};
  SegmentSum<4> totals[kWideTokenTiles];
  const int segment_halves = 2 * part.segment_blocks;
#pragma unroll 1
  for (int half = 0; half < halves; ++half) {
    wait_copies<kWideStages - 2>();
    __syncthreads();
    const int ahead = half + kWideStages - 1;
    if (ahead < halves) {
      detail::stage_input(a, rows, stages_address + ahead % kWideStages * detail::kStageBytes, ahead);
    }
    commit_copies();
    if (!has_tile) continue;
    detail::HalfBlock<F> next = weights;
    if (half + 1 < halves) next.load(part, tile, half + 1, lane);
    const std::uint32_t stage = stages_address + half % kWideStages * detail::kStageBytes;
    detail::wide_step<F, 0>(weights, stage, lane, sums);
    detail::wide_step<F, 1>(weights, stage, lane, sums);
    detail::wide_step<F, 2>(weights, stage, lane, sums);
    detail::wide_step<F, 3>(weights, stage, lane, sums);
    weights = next;
    if ((half + 1) % segment_halves != 0 && half + 1 != halves) continue;
#pragma unroll
    for (int i = 0; i < kWideTokenTiles; ++i) {
      totals[i].add(sums[i], half / segment_halves, part.segment_tree != 0);
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[i][j] = 0.0f;
    }
  }
  if (!has_tile) return;
#pragma unroll
  for (int i = 0; i < kWideTokenTiles; ++i) {
    float total[4];
    totals[i].finish(part.segments, part.segment_tree != 0, total);
    TileOutput(a.out, part, tile, first_token + 8 * i, lane).store(total);
  }
}

}  // namespace tensorfold::ops::cuda
