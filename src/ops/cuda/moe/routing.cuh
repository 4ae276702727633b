// A row's choice of experts, by one warp: the arithmetic of moe.h on this backend, in one place for the kernels that route
// (routing.cu for many rows, the window kernel for few). Expert i of the softmax belongs to lane i mod 32; a lane adds
// ascending, lanes are added by the butterfly 16, 8, 4, 2, 1.
#pragma once

#include <cstdint>

#include "ops/cuda/activation.cuh"
#include "ops/cuda/moe/expert_plan.h"

namespace tensorfold::ops::cuda::experts {

constexpr unsigned kFullWarp = 0xffffffffu;

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, distance));
  }
  return value;
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value = value + __shfl_xor_sync(kFullWarp, value, distance);
  return value;
}

/// Softmax of a row of at most 32 · per_lane logits: keys[i] of a lane is 1 + the bits of the probability of expert
/// lane + 32 · i (they ascend as probabilities do), 0 where there is none. False: a logit isn't finite.
template <int per_lane>
__device__ __forceinline__ bool softmax_keys(const float* logits, int experts, std::uint32_t (&keys)[per_lane]) {
  const int lane = threadIdx.x & 31;
  float values[per_lane];
  bool finite = true;
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < per_lane; ++i) {
    const int expert = lane + 32 * i;
    values[i] = expert < experts ? logits[expert] : -INFINITY;
    finite = finite && (expert >= experts || isfinite(values[i]));
    largest = fmaxf(largest, values[i]);
  }
  if (!__all_sync(kFullWarp, finite)) return false;
  largest = warp_max(largest);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < per_lane; ++i) {
    if (lane + 32 * i < experts) {
      values[i] = exponential(values[i] - largest);
      sum = sum + values[i];
    }
  }
  sum = warp_sum(sum);
#pragma unroll
  for (int i = 0; i < per_lane; ++i) {
    keys[i] = lane + 32 * i < experts ? 1u + __float_as_uint(__fdiv_rn(values[i], sum)) : 0u;
  }
  return true;
}

/// The largest key, and the first place that holds it: a tree, because a row's choice waits for this once a slot.
template <int per_lane>
__device__ __forceinline__ std::uint32_t largest_key(const std::uint32_t (&keys)[per_lane], int& place) {
  std::uint32_t best[per_lane];
  int places[per_lane];
#pragma unroll
  for (int i = 0; i < per_lane; ++i) best[i] = keys[i], places[i] = i;
#pragma unroll
  for (int distance = 1; distance < per_lane; distance *= 2) {
#pragma unroll
    for (int i = 0; i + distance < per_lane; i += 2 * distance) {
      if (best[i + distance] > best[i]) best[i] = best[i + distance], places[i] = places[i + distance];
    }
  }
  place = places[0];
  return best[0];
}

/// Writes the row's experts in the order of their slots and their weights. False: the row has none (kUnrouted, 0).
template <int per_lane>
__device__ __forceinline__ bool route_row(const RoutingInputs& inputs, const float* logits, std::int32_t* chosen,
                                          float* weights) {
  const int lane = threadIdx.x & 31;
  std::uint32_t keys[per_lane];
  if (!softmax_keys<per_lane>(logits, inputs.experts, keys)) {
    for (int slot = lane; slot < inputs.top_k; slot += 32) chosen[slot] = kUnrouted, weights[slot] = 0.0f;
    return false;
  }
  std::int32_t slot_expert[kTopKMax / 32] = {};
  float slot_weight[kTopKMax / 32] = {};
  float sum = 0.0f;
  for (int slot = 0; slot < inputs.top_k; ++slot) {
    int best = 0;
    const std::uint32_t best_key = largest_key(keys, best);
    const std::uint32_t key = __reduce_max_sync(kFullWarp, best_key);
    const unsigned candidate = best_key == key ? static_cast<unsigned>(lane + 32 * best) : 0xffffffffu;
    const unsigned expert = __reduce_min_sync(kFullWarp, candidate);
    if (candidate == expert) {
#pragma unroll
      for (int i = 0; i < per_lane; ++i) {
        if (i == best) keys[i] = 0;
      }
    }
    const float probability = __uint_as_float(key - 1u);
    sum = sum + probability;
#pragma unroll
    for (int part = 0; part < kTopKMax / 32; ++part) {
      if (slot == lane + 32 * part) {
        slot_expert[part] = static_cast<std::int32_t>(expert);
        slot_weight[part] = probability;
      }
    }
  }
#pragma unroll
  for (int part = 0; part < kTopKMax / 32; ++part) {
    const int slot = lane + 32 * part;
    if (slot < inputs.top_k) {
      chosen[slot] = slot_expert[part];
      weights[slot] = inputs.normalise ? __fdiv_rn(slot_weight[part], sum) : slot_weight[part];
    }
  }
  return true;
}

}  // namespace tensorfold::ops::cuda::experts
