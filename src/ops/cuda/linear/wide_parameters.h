// What the wide kernels are launched with, shared by host and device.
#pragma once

#include <cstdint>

#include "ops/cuda/instructions.cuh"
#include "ops/cuda/linear/mma.cuh"
#include "ops/cuda/linear/packed_linear.h"
#include "ops/cuda/linear/wide.h"

namespace tensorfold::ops::cuda {

constexpr int kWarpgroupTiles = 4;     // packed tiles of a warpgroup: one a warp
constexpr int kTreeHalf = 4;           // segments of half a tree

struct WideParameters {
  PackedPart part;
  LinearOutput out;
  std::int32_t cluster = 1;          // CTAs, 1 or 2, that compute neighbouring rows of the weights and share activations
  std::int32_t token_tiles = 0;
  std::int32_t items = 0;            // tiles of the output, each of a cluster
  std::int32_t item_units = 0;       // parts of an item that different CTAs may compute: segments, or halves of a tree
  std::int32_t stages = 0;
  std::int32_t stage_bytes = 0;
  std::int32_t read_once = 0;        // every weight is read by one CTA
  void* partials = nullptr;          // sums on their way from CTA to CTA
  std::int32_t* counters = nullptr;  // zero before and after
};

/// Registers of a thread that a launch of a kernel for up to `groups_max` consumer warpgroups brings.
constexpr int wide_launch_registers(int groups_max) {
  return 65536 / ((groups_max + 1) * kWarpgroupThreads) / 8 * 8;
}

/// Warpgroups of a CTA that registers suffice for; `lean`: the format is four bits with small bf16 scales.
constexpr int wide_groups_max(int tokens, SumMode mode, bool lean) {
  if (mode == SumMode::kSplit) return tokens >= 128 ? 3 : lean ? 5 : 4;
  return tokens >= 128 ? 2 : tokens == 64 ? 3 : 4;
}

}  // namespace tensorfold::ops::cuda
