// Root-mean-square norms as launches of their own: one block a row, whose threads are those that the sum of squares is shaped
// for (norm_row.cuh), so that it has one shape whatever the batch.
#include <algorithm>

#include "base/assert.h"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/aligned.cuh"
#include "ops/cuda/cuda_operations.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/norm_row.cuh"

namespace tensorfold::ops::cuda {
namespace {

constexpr int kHeldMax = 4;  // groups of four elements that a thread keeps in registers

struct NormKernelParams {
  const float* x;
  std::int64_t x_stride;
  const float* weight;
  float epsilon;
  float inverse_width;  // 1 / width
  std::int32_t rows, width;
  std::uint16_t* out;
  std::int64_t out_stride;
  float* out_float;
  float* residual;  // rms_norm_add: the rounded norm is added here instead
  IdsRef row_index;
};

/// Elements 4·group .. + 3 of a row; zeros beyond the width. `kVectors`, here and below: all rows are 16-byte aligned and hold
/// whole groups. Apart from the other case because of its registers and because a launch of one row is bound by the fetch of code.
template <bool kVectors>
__device__ __forceinline__ float4 load_group(const float* row, int group, int width) {
  if constexpr (kVectors) {
    return *reinterpret_cast<const float4*>(row + 4 * group);
  } else {
    return load_four(row, 4 * group, width, false);
  }
}

__device__ __forceinline__ float block_sum(float sum, float* warps) {
  sum = fold_warp(sum);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  float total = warps[0];
  for (int w = 1; w < static_cast<int>(blockDim.x / 32); ++w) total = __fadd_rn(total, warps[w]);
  return total;
}

/// `residual`: what the row held there, where the norm is added to it.
template <bool kAdds, bool kVectors>
__device__ __forceinline__ void store_group(const NormKernelParams& p, int row, int group, const float (&y)[4],
                                            const float4& residual) {
  const int first = group * 4;
  const std::int64_t at = static_cast<std::int64_t>(row) * p.width + first;
  float sums[4];
  if constexpr (kAdds) {
    sums[0] = __fadd_rn(residual.x, bf16_float(bf16_bits(y[0])));
    sums[1] = __fadd_rn(residual.y, bf16_float(bf16_bits(y[1])));
    sums[2] = __fadd_rn(residual.z, bf16_float(bf16_bits(y[2])));
    sums[3] = __fadd_rn(residual.w, bf16_float(bf16_bits(y[3])));
  }
  if constexpr (kVectors) {
    if constexpr (kAdds) {
      *reinterpret_cast<float4*>(p.residual + at) = {sums[0], sums[1], sums[2], sums[3]};
    } else {
      if (p.out != nullptr) {
        *reinterpret_cast<uint2*>(p.out + row * p.out_stride + first) = {bf16_pair(y[0], y[1]), bf16_pair(y[2], y[3])};
      }
      if (p.out_float != nullptr) *reinterpret_cast<float4*>(p.out_float + at) = {y[0], y[1], y[2], y[3]};
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first + i >= p.width) return;
      if constexpr (kAdds) {
        p.residual[at + i] = sums[i];
      } else {
        if (p.out != nullptr) p.out[row * p.out_stride + first + i] = bf16_bits(y[i]);
        if (p.out_float != nullptr) p.out_float[at + i] = y[i];
      }
    }
  }
}

/// One row by one block, from row `source` of x; its weights already in registers as far as they fit there (kHeldMax groups a thread).
template <bool kAdds, bool kVectors>
__device__ __forceinline__ void norm_row(const NormKernelParams& p, int row, int source, const float4 (&weight)[kHeldMax],
                                         float* warps) {
  const int groups = (p.width + 3) / 4, threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const float* x = p.x + source * p.x_stride;
  const float* residual = p.residual + static_cast<std::int64_t>(row) * p.width;
  const auto added_to = [&](int group) {
    return kAdds ? load_group<kVectors>(residual, group, p.width) : float4{0.0f, 0.0f, 0.0f, 0.0f};
  };
  float4 held[kHeldMax], before[kHeldMax];
#pragma unroll
  for (int j = 0; j < kHeldMax; ++j) {
    if (thread + j * threads < groups) {
      held[j] = load_group<kVectors>(x, thread + j * threads, p.width);
      before[j] = added_to(thread + j * threads);
    }
  }
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kHeldMax; ++j) {
    if (thread + j * threads < groups) sum = add_squares(held[j], sum);
  }
  // Wider rows than any model's: short code rather than fast code.
#pragma unroll 1
  for (int group = thread + kHeldMax * threads; group < groups; group += threads) {
    sum = add_squares(load_group<kVectors>(x, group, p.width), sum);
  }
  const float factor = norm_factor(block_sum(sum, warps), p.inverse_width, p.epsilon);
  const auto finish = [&](int group, const float4& v, const float4& w, const float4& added) {
    float4 y = normed(v, factor);
    if (p.weight != nullptr) y = weighted(y, w);
    store_group<kAdds, kVectors>(p, row, group, {y.x, y.y, y.z, y.w}, added);
  };
#pragma unroll
  for (int j = 0; j < kHeldMax; ++j) {
    if (thread + j * threads < groups) finish(thread + j * threads, held[j], weight[j], before[j]);
  }
#pragma unroll 1
  for (int group = thread + kHeldMax * threads; group < groups; group += threads) {
    const float4 w = p.weight != nullptr ? load_group<kVectors>(p.weight, group, p.width) : float4{1, 1, 1, 1};
    finish(group, load_group<kVectors>(x, group, p.width), w, added_to(group));
  }
}

template <bool kAdds, bool kVectors>
__global__ void __launch_bounds__(kNormThreadsMax) norm_rows(const NormKernelParams p) {
  __shared__ float warps[2][kNormThreadsMax / 32];
  allow_next();
  const int groups = (p.width + 3) / 4, threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  float4 weight[kHeldMax];
#pragma unroll
  for (int j = 0; j < kHeldMax; ++j) {
    weight[j] = {1.0f, 1.0f, 1.0f, 1.0f};
    if (p.weight != nullptr && thread + j * threads < groups) {
      weight[j] = load_group<kVectors>(p.weight, thread + j * threads, p.width);
    }
  }
  const auto source_of = [&p](int row) { return p.row_index.header != nullptr && row < p.rows ? pass_ids(p.row_index)[row] : row; };
  int source = source_of(static_cast<int>(blockIdx.x));  // a pass's lists are there already
  wait_for_previous();
  int turn = 0;  // two places for partial sums, so that one barrier a row is enough
  for (int row = static_cast<int>(blockIdx.x); row < p.rows; row += static_cast<int>(gridDim.x), turn ^= 1) {
    norm_row<kAdds, kVectors>(p, row, source, weight, warps[turn]);
    source = source_of(row + static_cast<int>(gridDim.x));
  }
}

void run(CudaContext& context, std::int64_t rows, NormKernelParams& kernel) {
  if (rows == 0) return;
  TF_ASSERT(kernel.width > 0);
  const bool vectors = kernel.width % 4 == 0 && kernel.x_stride % 4 == 0 && kernel.out_stride % 4 == 0 &&
                       is_aligned(kernel.x, 16) && is_aligned(kernel.weight, 16) && is_aligned(kernel.out, 8) &&
                       is_aligned(kernel.out_float, 16) && is_aligned(kernel.residual, 16);
  kernel.rows = static_cast<std::int32_t>(rows);
  kernel.inverse_width = 1.0f / static_cast<float>(kernel.width);
  LaunchShape shape;
  // With many rows a block takes several, and reads the weights once.
  const int threads = norm_threads(kernel.width);
  shape.grid = static_cast<unsigned>(std::min<std::int64_t>(rows, context.facts().sm_count * (kNormThreadsMax / threads)));
  shape.block = static_cast<unsigned>(threads);
  const auto adds = vectors ? norm_rows<true, true> : norm_rows<true, false>;
  const auto plain = vectors ? norm_rows<false, true> : norm_rows<false, false>;
  launch(context, "a norm", kernel.residual != nullptr ? adds : plain, shape, kernel);
}

}  // namespace

void rms_norm(CudaContext& context, const RmsNormParams& params) {
  NormKernelParams kernel = {};
  kernel.x = params.x;
  kernel.x_stride = params.x_stride;
  kernel.weight = params.weight;
  kernel.epsilon = params.epsilon;
  kernel.width = static_cast<std::int32_t>(params.width);
  kernel.out = reinterpret_cast<std::uint16_t*>(params.out);
  kernel.out_stride = params.out_stride > 0 ? params.out_stride : params.width;
  kernel.out_float = params.out_float;
  kernel.row_index = context.ids(params.row_index, params.rows);
  run(context, params.rows, kernel);
}

void rms_norm_add(CudaContext& context, const RmsNormAddParams& params) {
  NormKernelParams kernel = {};
  kernel.x = params.x;
  kernel.x_stride = params.width;
  kernel.weight = params.weight;
  kernel.epsilon = params.epsilon;
  kernel.width = static_cast<std::int32_t>(params.width);
  kernel.residual = params.residual;
  run(context, params.rows, kernel);
}

}  // namespace tensorfold::ops::cuda
