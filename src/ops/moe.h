// Mixture of experts: routing, the chosen experts' feed-forward, and the combination, as one operation, because the plan
// that groups rows by expert is the backend's own (families-a.md 2.3, one-arithmetic.md rule 7).
//
// Per row: p = softmax(router_logits) in index order, fp32 (max, then exp by ascending index, sum in 16 virtual lanes);
// the top_k experts by (p descending, id ascending); weights = p_sel, divided by their sum in slot order when
// normalise_top_k. Expert output = down_e(act(gate_e x)·up_e x) fp32, each a linear (linear.h) with its own rounding of the
// intermediate to bf16. residual[row] = fma(weight_slot, expert_output, residual), slot 0 first; a shared expert's output
// last: residual = fma(sigmoid(shared_gate), shared_output, residual). A row whose router logits aren't finite gets NaN.
#pragma once

#include <cstdint>

#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/types.h"

namespace tensorfold::ops {

struct MoeParams {
  const Activation* x = nullptr;           // [rows, hidden]
  const float* router_logits = nullptr;    // [rows, experts], row stride router_stride
  std::int64_t router_stride = 0;          // >= experts
  std::int64_t rows = 0;
  std::int32_t experts = 0;
  std::int32_t top_k = 0;
  bool normalise_top_k = true;
  ActivationKind kind = ActivationKind::kSilu;
  const Linear* gate_up = nullptr;         // stack of experts: rows = 2·width (gate first), columns = hidden
  const Linear* down = nullptr;            // stack: rows = hidden, columns = width
  const float* shared_output = nullptr;    // [rows, hidden] or null
  /// The shared expert as layers, like gate_up and down of one expert: for backends that compute its output themselves
  /// (Backend::moe_runs_shared), with the bits of gated_linear() and linear(). Not looked at when shared_output is given.
  const Linear* shared_gate_up = nullptr;
  const Linear* shared_down = nullptr;
  const float* shared_gate = nullptr;      // [rows] gate logits, stride shared_gate_stride
  std::int64_t shared_gate_stride = 1;
  float* residual = nullptr;               // [rows, hidden], accumulated into
  /// Optional host output [rows, top_k]: the chosen experts, for tests and statistics.
  std::int32_t* chosen_experts = nullptr;
};

}  // namespace tensorfold::ops
