// The arithmetic of a root-mean-square norm over one row (ops/norm.h), for the kernel of its own and for those that norm their
// input as they read it: what a row's sum of squares is shaped like, and what becomes of an element.
//
// The row belongs to norm_threads(width) threads, whoever plays them: thread t adds the squares of elements
// 4·(t + j·threads) .. + 3 for ascending j, fold_warp() adds 32 threads, and warps are added in ascending order.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#include "ops/cuda/activation.cuh"
#endif

namespace tensorfold::ops::cuda {

constexpr int kNormThreadsMax = 1024;
constexpr int kNormWarpsMax = kNormThreadsMax / 32;

inline int norm_threads(std::int64_t width) {
  if (width <= 1024) return 128;
  if (width <= 3072) return 256;
  return width <= 8192 ? 512 : kNormThreadsMax;
}

#if defined(__CUDACC__)

__device__ __forceinline__ float add_squares(const float4& v, float sum) {
  sum = __fmaf_rn(v.x, v.x, sum);
  sum = __fmaf_rn(v.y, v.y, sum);
  sum = __fmaf_rn(v.z, v.z, sum);
  return __fmaf_rn(v.w, v.w, sum);
}

__device__ __forceinline__ float fold_warp(float sum) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, offset));
  return sum;
}

/// What every element is multiplied by; `inverse_width` = 1 / width.
__device__ __forceinline__ float norm_factor(float sum, float inverse_width, float epsilon) {
  return inverse_root(__fmaf_rn(sum, inverse_width, epsilon));
}

/// Four elements, before their rounding to bf16.
__device__ __forceinline__ float4 normed(const float4& v, float factor) {
  return {__fmul_rn(v.x, factor), __fmul_rn(v.y, factor), __fmul_rn(v.z, factor), __fmul_rn(v.w, factor)};
}
__device__ __forceinline__ float4 weighted(const float4& y, const float4& weight) {
  return {__fmul_rn(y.x, weight.x), __fmul_rn(y.y, weight.y), __fmul_rn(y.z, weight.z), __fmul_rn(y.w, weight.w)};
}

#endif

}  // namespace tensorfold::ops::cuda
