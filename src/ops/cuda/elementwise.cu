// Element-wise steps and the block convolution: every element from its own inputs, so any launch shape gives the same bits.
#include <algorithm>

#include "base/assert.h"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/aligned.cuh"
#include "ops/cuda/cuda_operations.h"
#include "ops/cuda/launch.cuh"

namespace tensorfold::ops::cuda {
namespace {

constexpr int kThreads = 256;

struct ActivationKernelParams {
  const float* gate_up;
  std::uint16_t* out;
  std::int32_t width;
  ActivationKind kind;
  bool vectors;
};

__device__ __forceinline__ float gated(ActivationKind kind, float gate, float up) {
  return __fmul_rn(activate(kind, gate), up);
}

// A row a y-block; four elements a thread.
__global__ void __launch_bounds__(kThreads) activate_rows(const ActivationKernelParams p) {
  allow_next();
  wait_for_previous();
  const std::int64_t row = blockIdx.y;
  const int first = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) * 4;
  const float* gate = p.gate_up + row * 2 * p.width;
  const float* up = gate + p.width;
  std::uint16_t* out = p.out + row * p.width;
  if (p.vectors && first + 4 <= p.width) {
    const float4 g = *reinterpret_cast<const float4*>(gate + first), u = *reinterpret_cast<const float4*>(up + first);
    *reinterpret_cast<uint2*>(out + first) = {bf16_pair(gated(p.kind, g.x, u.x), gated(p.kind, g.y, u.y)),
                                              bf16_pair(gated(p.kind, g.z, u.z), gated(p.kind, g.w, u.w))};
    return;
  }
  for (int i = first; i < min(first + 4, p.width); ++i) out[i] = bf16_bits(gated(p.kind, gate[i], up[i]));
}

__global__ void __launch_bounds__(kThreads) cap_values(float* values, std::int64_t count, float cap) {
  allow_next();
  wait_for_previous();
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    values[i] = __fmul_rn(cap, hyperbolic_tangent(__fdiv_rn(values[i], cap)));
  }
}

struct RoundKernelParams {
  const float* x;
  std::int64_t x_stride;
  IdsRef row_index;
  std::int32_t width;
  std::uint16_t* out;
  std::int64_t out_stride;
};

__global__ void __launch_bounds__(kThreads) round_elements(const RoundKernelParams p) {
  allow_next();
  wait_for_previous();
  const std::int64_t row = blockIdx.y;
  const int column = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (column >= p.width) return;
  const std::int64_t source = p.row_index.header != nullptr ? pass_ids(p.row_index)[row] : row;
  p.out[row * p.out_stride + column] = bf16_bits(p.x[source * p.x_stride + column]);
}

struct ConvolutionKernelParams {
  BlockConvolutionParams p;
  IdsRef block_starts;
};

__global__ void __launch_bounds__(kThreads) convolve_blocks(const ConvolutionKernelParams params) {
  allow_next();
  wait_for_previous();
  const BlockConvolutionParams& p = params.p;
  const std::int64_t row = blockIdx.y;
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= p.width) return;
  const std::int32_t* starts = pass_ids(params.block_starts);
  bool is_first = false;
  for (int block = 0; block < p.block_count; ++block) is_first |= starts[block] == row;
  const std::int64_t groups = p.width / p.group_size, group = c / p.group_size;
  const float* dynamic = p.dynamic + row * p.dynamic_stride;
  float sum = __fmul_rn(__fadd_rn(p.base[c], dynamic[group]), p.y[row * p.width + c]);
  if (!is_first) {
    sum = __fmaf_rn(__fadd_rn(p.base[p.width + c], dynamic[groups + group]), p.y[(row - 1) * p.width + c], sum);
  }
  const std::int64_t at = row * p.width + c;
  if (p.residual != nullptr) {
    p.residual[at] = __fadd_rn(p.residual[at], sum);
  } else {
    reinterpret_cast<std::uint16_t*>(p.out)[at] = bf16_bits(sum);
  }
}

LaunchShape shape_of(std::int64_t columns, std::int64_t rows) {
  LaunchShape shape;
  TF_ASSERT(rows <= 65'535);
  shape.grid = dim3(static_cast<unsigned>((columns + kThreads - 1) / kThreads), static_cast<unsigned>(rows));
  shape.block = kThreads;
  return shape;
}

}  // namespace

void gated_activation(CudaContext& context, const GatedActivationParams& params) {
  if (params.rows == 0) return;
  ActivationKernelParams kernel = {};
  kernel.gate_up = params.gate_up;
  kernel.out = reinterpret_cast<std::uint16_t*>(params.out);
  kernel.width = static_cast<std::int32_t>(params.width);
  kernel.kind = params.kind;
  kernel.vectors = params.width % 4 == 0 && is_aligned(params.gate_up, 16) && is_aligned(params.out, 8);
  launch(context, "an activation", activate_rows, shape_of((params.width + 3) / 4, params.rows), kernel);
}

void soft_cap(CudaContext& context, const SoftCapParams& params) {
  if (params.count == 0) return;
  LaunchShape shape;
  shape.grid = static_cast<unsigned>(std::min<std::int64_t>((params.count + kThreads - 1) / kThreads,
                                                            context.facts().sm_count * 8ll));
  shape.block = kThreads;
  launch(context, "a soft cap", cap_values, shape, params.values, params.count, params.cap);
}

void round_rows(CudaContext& context, const RoundRowsParams& params) {
  if (params.rows == 0) return;
  RoundKernelParams kernel = {};
  kernel.x = params.x;
  kernel.x_stride = params.x_stride;
  kernel.row_index = context.ids(params.row_index, params.rows);
  kernel.width = static_cast<std::int32_t>(params.width);
  kernel.out = reinterpret_cast<std::uint16_t*>(params.out);
  kernel.out_stride = params.out_stride;
  launch(context, "rounding rows", round_elements, shape_of(params.width, params.rows), kernel);
}

void block_convolution(CudaContext& context, const BlockConvolutionParams& params) {
  if (params.rows == 0) return;
  TF_ASSERT(params.group_size > 0 && params.width % params.group_size == 0 && params.block_count > 0);
  ConvolutionKernelParams kernel = {params, context.ids(params.block_starts, params.block_count)};
  launch(context, "a block convolution", convolve_blocks, shape_of(params.width, params.rows), kernel);
}

}  // namespace tensorfold::ops::cuda
