// Element-wise steps between linear layers.
//
// gated_activation: out = act(gate) · up in fp32, rounded once to bf16. silu(x) = x / (1 + exp(−x)) evaluated as
// x · sigmoid(x); gelu_tanh(x) = 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))). exp, tanh: the project's own fp32 polynomials
// (ops/cpu), the same on every path. soft_cap: y = cap · tanh(y / cap).
//
// CUDA: the functions of ops/cuda/activation.cuh, gelu_tanh as x·sigmoid(2u).
#pragma once

#include <cstdint>

#include "ops/types.h"

namespace tensorfold::ops {

enum class ActivationKind : std::uint8_t { kSilu, kGeluTanh };

struct GatedActivationParams {
  const float* gate_up = nullptr;  // [rows, 2·width]: gate first, then up
  std::int64_t rows = 0;
  std::int64_t width = 0;
  ActivationKind kind = ActivationKind::kSilu;
  Activation* out = nullptr;       // [rows, width]
};

/// out[r] = x[row_index[r]], rounded once to bf16: rows of the residual stream as inputs of a drafter's linear layer.
struct RoundRowsParams {
  const float* x = nullptr;                 // row stride x_stride
  std::int64_t x_stride = 0;
  const std::int32_t* row_index = nullptr;  // optional host array; null: row r
  std::int64_t rows = 0;
  std::int64_t width = 0;
  Activation* out = nullptr;                // row stride out_stride
  std::int64_t out_stride = 0;
};

struct SoftCapParams {
  float* values = nullptr;  // in place
  std::int64_t count = 0;
  float cap = 0.0f;         // > 0
};

}  // namespace tensorfold::ops
