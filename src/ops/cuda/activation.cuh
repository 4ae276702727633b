// The transcendental functions of the CUDA backend's activations, gates and norms, in fp32. One function for every kernel:
// a fused epilogue, a separate step and the gates of a recurrence round alike because they call the same code.
//
// They are built on the approximating instructions ex2, rcp and rsqrt (deterministic; within 2 ulp) with the argument's
// rounding error carried along, so results are within 4 ulp of the true value, denormals flushed to zero, whatever nvcc's
// flags say. NaN stays NaN. They are not the CPU's polynomials: each backend has an arithmetic of its own
// (one-arithmetic.md).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/elementwise.h"

namespace tensorfold::ops::cuda {

__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float inverse_root(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Limits x to [low, high]; NaN stays.
__device__ __forceinline__ float clamp(float x, float low, float high) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(low));
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(y), "f"(high));
  return y;
}

/// exp(x); 0 below −87.4, and from 88.722 on the largest values stay finite (3.4e38).
__device__ __forceinline__ float exponential(float x) {
  constexpr float kLog2E = 1.44269502f, kLog2ERest = 1.925963e-8f, kLn2 = 0.693147182f;
  const float limited = clamp(x, -88.0f, 88.722f);
  const float scaled = __fmul_rn(limited, kLog2E);
  // What the product lost, and what kLog2E lacks.
  const float rest = __fmaf_rn(limited, kLog2ERest, __fmaf_rn(limited, kLog2E, -scaled));
  const float power = exp2_approximate(scaled);
  return __fmaf_rn(power, __fmul_rn(rest, kLn2), power);
}

__device__ __forceinline__ float sigmoid(float x) {
  return reciprocal(__fadd_rn(1.0f, exponential(-x)));
}

__device__ __forceinline__ float silu(float x) {
  return __fmul_rn(x, sigmoid(x));
}

/// 2u of gelu_tanh: 0.5·x·(1 + tanh(u)) = x·sigmoid(2u), which doesn't cancel for negative x.
__device__ __forceinline__ float gelu_tanh_argument(float x) {
  constexpr float kTwoRootTwoOverPi = 1.59576912f;
  const float cube = __fmul_rn(__fmul_rn(x, x), x);
  return __fmul_rn(kTwoRootTwoOverPi, __fmaf_rn(0.044715f, cube, x));
}

/// Odd polynomial below 0.625, so that small values keep their relative precision; 1 − 2 / (exp(2|x|) + 1) beyond.
__device__ __forceinline__ float hyperbolic_tangent(float x) {
  const float z = __fmul_rn(x, x);
  float p = 0.002147207473f;
  p = __fmaf_rn(p, z, -0.008182327674f);
  p = __fmaf_rn(p, z, 0.02170283301f);
  p = __fmaf_rn(p, z, -0.05394718096f);
  p = __fmaf_rn(p, z, 0.1333320959f);
  p = __fmaf_rn(p, z, -0.333333309f);
  const float small = __fmaf_rn(__fmul_rn(x, z), p, x);
  const float magnitude = fabsf(x);
  const float e = exponential(__fadd_rn(magnitude, magnitude));
  const float large = copysignf(__fmaf_rn(-2.0f, reciprocal(__fadd_rn(e, 1.0f)), 1.0f), x);
  return magnitude < 0.625f ? small : large;
}

/// log(1 + u) for u >= 0: log of the rounded sum, plus what the rounding lost.
__device__ __forceinline__ float log_one_plus(float u) {
  const float t = __fadd_rn(1.0f, u);
  const float lost = __fmul_rn(__fsub_rn(u, __fsub_rn(t, 1.0f)), reciprocal(t));
  const int exponent = (__float_as_int(t) - 0x3f3504f3) >> 23;  // t = 2^exponent · m, m in √½..√2
  const float f = __fsub_rn(__int_as_float(__float_as_int(t) - (exponent << 23)), 1.0f);
  const float k = static_cast<float>(exponent);
  float p = 0.06915593055f;
  p = __fmaf_rn(p, f, -0.1178989749f);
  p = __fmaf_rn(p, f, 0.1187292028f);
  p = __fmaf_rn(p, f, -0.123843296f);
  p = __fmaf_rn(p, f, 0.1421866388f);
  p = __fmaf_rn(p, f, -0.1666925212f);
  p = __fmaf_rn(p, f, 0.2000222632f);
  p = __fmaf_rn(p, f, -0.2499998657f);
  p = __fmaf_rn(p, f, 0.3333331045f);
  const float square = __fmul_rn(f, f);
  float tail = __fmul_rn(__fmul_rn(square, f), p);
  tail = __fmaf_rn(square, -0.5f, tail);
  tail = __fadd_rn(__fmaf_rn(k, -2.12194440e-4f, lost), tail);
  return __fmaf_rn(k, 0.693359375f, __fadd_rn(f, tail));
}

/// log(1 + exp(x)), linear above 20.
__device__ __forceinline__ float softplus(float x) {
  return x > 20.0f ? x : log_one_plus(exponential(x));
}

/// SiLU or gelu_tanh: both are x times a sigmoid, which is there once.
__device__ __forceinline__ float activate(ActivationKind kind, float x) {
  return __fmul_rn(x, sigmoid(kind == ActivationKind::kSilu ? x : gelu_tanh_argument(x)));
}

/// Nearest even; the one rounding of activations.
__device__ __forceinline__ std::uint16_t bf16_bits(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

__device__ __forceinline__ std::uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

__device__ __forceinline__ float bf16_float(std::uint16_t bits) {
  return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}

}  // namespace tensorfold::ops::cuda
