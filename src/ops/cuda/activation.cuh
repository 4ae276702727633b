// PLACEHOLDER until branch cuda-rows is merged.
#pragma once
#include "ops/elementwise.h"
namespace tensorfold::ops::cuda {
__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ float sigmoid(float x) { return __fdiv_rn(1.0f, 1.0f + expf(-x)); }
__device__ __forceinline__ float activate(ActivationKind kind, float x) {
  if (kind == ActivationKind::kSilu) return x * sigmoid(x);
  const float inner = 0.7978845608f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1.0f + tanhf(inner));
}
}  // namespace tensorfold::ops::cuda
