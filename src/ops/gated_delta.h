// The Gated DeltaNet mixer between its projections: causal convolution, gates, L2 norms, delta-rule recurrence, gated norm
// (families-a.md 1.3, steps 2-7). One operation, because its state is committed late as a whole.
//
// A lane's slot (backend-defined layout, slot_bytes apart) holds, in its first gated_delta_state_bytes, the recurrent state
// S [v_heads, k_dim, v_dim] fp32 and the convolution tail (last conv_kernel − 1 pre-convolution rows, fp32); then the inputs
// of one window (what a replay needs), gated_delta_window_row_bytes a row, as many rows as fit. A slot whose state is zeroed
// stands before the first token.
//
// Per lane: first the accepted rows of the kept window (LaneSpan::replay_rows) are replayed into state and tail; then the
// pass's rows run in order. When the span commits, state and tail are written after its last row; otherwise they keep the
// value after the replay, and the rows' inputs become the slot's window. A row's bits don't depend on which happened.
// In a tree (LaneSpan::parents) a row starts from the state after its parent, and its convolution reads its own path.
//
// Arithmetic per row (fp32): c = Σ_j w[:, j]·X[t − K + 1 + j], taps ascending by fma from 0, then silu; q, k, v split; value
// head j reads key head j / (v_heads / k_heads); beta = sigmoid(b); g = −exp(A_log)·softplus(a + dt_bias) (softplus linear
// above 20; −exp(A_log) precomputed by the loader as `decay`); q, k scaled by 1/sqrt(Σx² + 1e-6) (16 virtual lanes, norm.h)
// and q by k_dim^−½; S *= exp(g); m = Sᵀk; δ = beta·(v − m); S += k·δᵀ by fma; o = Sᵀq (updated S); sums over k_dim ascending in 16
// virtual lanes (k index mod 16), folded 8,4,2,1. y = (o · rsqrt(mean(o²) + epsilon)) · norm_weight · silu(z), rounded once
// to bf16.
//
// CUDA: q and k are rounded to bf16 after their norms (one-arithmetic.md, rule 3); v, gates, states and outputs stay fp32. Sums
// over k_dim: k is cut into blocks of 8, block b belongs to lane b mod 8; a lane adds its products by fma, blocks ascending, k of
// even index to one chain and of odd index to another, adds the two chains, and lanes fold by butterfly 1, 2, 4. Norms over a
// head (q, k, o): 32 lanes, lane l takes elements 4·l .. + 3 of every 128, ascending by fma; butterfly 1, 2, 4, 8, 16.
#pragma once

#include <cstdint>

#include "ops/types.h"

namespace tensorfold::ops {

struct GatedDeltaGeometry {
  std::int32_t k_heads = 0;
  std::int32_t v_heads = 0;     // a multiple of k_heads
  std::int32_t k_dim = 0;
  std::int32_t v_dim = 0;
  std::int32_t conv_kernel = 0;  // taps, 2 to 8
  std::int64_t conv_channels() const { return 2ll * k_heads * k_dim + static_cast<std::int64_t>(v_heads) * v_dim; }
};

/// A lane without rows that commits (row_count 0) is settled: what is pending in its slot is replayed, and the state is the
/// canonical one. Then only geometry, weights of the recurrence, slots and lanes are read.
struct GatedDeltaParams {
  GatedDeltaGeometry geometry;
  /// Output of the fused projection, [rows, stride] fp32: q|k|v channels at qkv_offset, z (v_heads·v_dim) at z_offset,
  /// b and a (v_heads each) at b_offset and a_offset.
  const float* projected = nullptr;
  std::int64_t stride = 0;
  std::int64_t qkv_offset = 0, z_offset = 0, b_offset = 0, a_offset = 0;
  const float* conv_weight = nullptr;  // [channels, conv_kernel]
  const float* decay = nullptr;        // [v_heads] = −exp(A_log)
  const float* dt_bias = nullptr;      // [v_heads]
  const float* norm_weight = nullptr;  // [v_dim]
  float epsilon = 0.0f;
  bool sigmoid_gate = false;           // output gate sigmoid(z) instead of silu(z)
  void* slots = nullptr;               // slot s at slots + s · slot_bytes
  std::size_t slot_bytes = 0;
  const LaneSpan* lanes = nullptr;
  std::int32_t lane_count = 0;
  Activation* out = nullptr;           // [rows, v_heads · v_dim]
};

}  // namespace tensorfold::ops
