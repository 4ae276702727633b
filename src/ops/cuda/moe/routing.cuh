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

/// Softmax of a row of at most 32 · per_lane logits before its division by `sum`: powers[i] of a lane belongs to expert
/// lane + 32 · i, -1 where there is none. False: a logit isn't finite.
template <int per_lane>
__device__ __forceinline__ bool softmax_powers(const float* logits, int experts, float (&powers)[per_lane], float& sum) {
  const int lane = threadIdx.x & 31;
  bool finite = true;
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < per_lane; ++i) {
    const int expert = lane + 32 * i;
    powers[i] = expert < experts ? logits[expert] : -INFINITY;
    finite = finite && (expert >= experts || isfinite(powers[i]));
    largest = fmaxf(largest, powers[i]);
  }
  if (!__all_sync(kFullWarp, finite)) return false;
  largest = warp_max(largest);
  sum = 0.0f;
#pragma unroll
  for (int i = 0; i < per_lane; ++i) {
    const bool exists = lane + 32 * i < experts;
    powers[i] = exists ? exponential(powers[i] - largest) : -1.0f;
    if (exists) sum = sum + powers[i];
  }
  sum = warp_sum(sum);
  return true;
}

/// An expert that may be among the chosen, in shared memory.
struct RouteCandidate {
  float value;
  std::int32_t expert;
};
constexpr int kRouteCandidates = 32;  // of a row: one a lane

/// Lists all experts that can be among the top_k: as many lanes' largest powers are at least `limit`. Powers a little below it
/// may round to the same probability, so the list goes that far. Returns how many; 0: too many, or too small to tell.
template <int per_lane>
__device__ __forceinline__ int list_candidates(const float (&powers)[per_lane], int top_k, RouteCandidate* candidates) {
  constexpr float kRoundsAlike = 1.0f - 0x1p-20f, kLimitMin = 1e-30f;
  const int lane = threadIdx.x & 31;
  float largest = powers[0];
#pragma unroll
  for (int i = 1; i < per_lane; ++i) largest = fmaxf(largest, powers[i]);
  int rank = 0;
#pragma unroll 4  // not all: what a launch runs once is short (docs/decisions.md)
  for (int other = 0; other < 32; ++other) {
    const float value = __shfl_sync(kFullWarp, largest, other);
    if (value > largest || (value == largest && other < lane)) ++rank;
  }
  const unsigned holder = __ballot_sync(kFullWarp, rank == top_k - 1);
  if (holder == 0) return 0;
  float limit = __shfl_sync(kFullWarp, largest, __ffs(static_cast<int>(holder)) - 1);
  if (limit < kLimitMin) return 0;
  limit = limit * kRoundsAlike;
  int count = 0;
#pragma unroll
  for (int i = 0; i < per_lane; ++i) {
    const bool wanted = powers[i] >= limit;
    const unsigned lanes = __ballot_sync(kFullWarp, wanted);
    const int place = count + __popc(lanes & ((1u << lane) - 1u));
    if (wanted && place < kRouteCandidates) candidates[place] = {powers[i], lane + 32 * i};
    count += __popc(lanes);
  }
  __syncwarp();
  return count <= kRouteCandidates ? count : 0;
}

/// The top_k of `count` candidates, a lane each.
__device__ __forceinline__ void choose_candidates(const RoutingInputs& inputs, RouteCandidate* candidates, int count, float sum,
                                                  std::int32_t* chosen, float* weights) {
  const int lane = threadIdx.x & 31;
  RouteCandidate own = {-1.0f, INT32_MAX};
  if (lane < count) own = {__fdiv_rn(candidates[lane].value, sum), candidates[lane].expert};
  int slot = 0;
#pragma unroll 4
  for (int other = 0; other < count; ++other) {
    const float value = __shfl_sync(kFullWarp, own.value, other);
    const int expert = __shfl_sync(kFullWarp, own.expert, other);
    if (value > own.value || (value == own.value && expert < own.expert)) ++slot;
  }
  __syncwarp();
  if (lane < count) candidates[slot] = own;
  __syncwarp();
  float total = 0.0f;
#pragma unroll 4
  for (int i = 0; i < inputs.top_k; ++i) total = total + candidates[i].value;
  if (lane < inputs.top_k) {
    const RouteCandidate mine = candidates[lane];
    chosen[lane] = mine.expert;
    weights[lane] = inputs.normalise ? __fdiv_rn(mine.value, total) : mine.value;
  }
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

/// The top_k one after the other, whatever the row; rare, so a call.
template <int per_lane>
__device__ __noinline__ void choose_one_by_one(const RoutingInputs& inputs, const float (&powers)[per_lane], float all,
                                               std::int32_t* chosen, float* weights) {
  const int lane = threadIdx.x & 31;
  // 1 + the bits of the probability (they ascend as probabilities do), 0 where there is no expert.
  std::uint32_t keys[per_lane];
#pragma unroll
  for (int i = 0; i < per_lane; ++i) keys[i] = powers[i] < 0.0f ? 0u : 1u + __float_as_uint(__fdiv_rn(powers[i], all));
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
}

/// Writes the row's experts in the order of their slots and their weights. False: the row has none (kUnrouted, 0).
/// `candidates`: kRouteCandidates of this warp's own in shared memory.
template <int per_lane>
__device__ __forceinline__ bool route_row(const RoutingInputs& inputs, const float* logits, RouteCandidate* candidates,
                                          std::int32_t* chosen, float* weights) {
  const int lane = threadIdx.x & 31;
  float powers[per_lane], sum;
  if (!softmax_powers<per_lane>(logits, inputs.experts, powers, sum)) {
#pragma unroll 1
    for (int slot = lane; slot < inputs.top_k; slot += 32) chosen[slot] = kUnrouted, weights[slot] = 0.0f;
    return false;
  }
  const int count = list_candidates<per_lane>(powers, inputs.top_k, candidates);
  if (count > 0) {
    choose_candidates(inputs, candidates, count, sum, chosen, weights);
  } else {
    float copies[per_lane];  // what the call is handed lies in memory: nothing that the usual way needs
#pragma unroll
    for (int i = 0; i < per_lane; ++i) copies[i] = powers[i];
    choose_one_by_one<per_lane>(inputs, copies, sum, chosen, weights);
  }
  return true;
}

}  // namespace tensorfold::ops::cuda::experts
