// The scalar functions of the CUDA backend, one of each, so that a step has the same bits wherever it is fused: in a linear
// layer's end, in an expert, in a kernel of its own. fp32 throughout; exponentials and tanh are the CUDA math library's
// accurate ones, divisions round correctly.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/elementwise.h"

namespace tensorfold::ops::cuda {

__device__ __forceinline__ float exponential(float x) {
  return expf(x);
}

__device__ __forceinline__ float sigmoid(float x) {
  return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-x)));
}

__device__ __forceinline__ float silu(float x) {
  return __fmul_rn(x, sigmoid(x));
}

__device__ __forceinline__ float gelu_tanh(float x) {
  const float cube = __fmul_rn(__fmul_rn(x, x), x);
  const float inner = __fmul_rn(0.79788456080286535588f, __fmaf_rn(0.044715f, cube, x));
  return __fmul_rn(__fmul_rn(0.5f, x), __fadd_rn(1.0f, tanhf(inner)));
}

/// log(1 + exp(x)), x itself above 20.
__device__ __forceinline__ float softplus(float x) {
  return x > 20.0f ? x : log1pf(expf(x));
}

__device__ __forceinline__ float activate(ActivationKind kind, float x) {
  return kind == ActivationKind::kSilu ? silu(x) : gelu_tanh(x);
}

/// Nearest even; the one rounding of activations.
__device__ __forceinline__ std::uint16_t bf16_bits(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

__device__ __forceinline__ std::uint32_t bf16_pair(float low, float high) {
  return static_cast<std::uint32_t>(bf16_bits(low)) | static_cast<std::uint32_t>(bf16_bits(high)) << 16;
}

__device__ __forceinline__ float bf16_float(std::uint16_t bits) {
  return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}

}  // namespace tensorfold::ops::cuda
