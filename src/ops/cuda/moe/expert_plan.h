// Which rows go to which experts, as kernels hand it to one another: plain structs in device memory, shared by host and
// device. A *slot* is one choice of one row: row · top_k + place among the row's choices. Slots are ordered by expert, so
// that an expert's weights are read once for all its rows; an *item* is a run of slots that one tile of the product holds.
// The boundary is here because every way to run the experts starts from this plan and none knows how it was made.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/limits.h"
#include "ops/cuda/pass_data.h"

namespace tensorfold::ops::cuda {

struct ExpertItem {
  std::int32_t expert;
  std::int32_t begin;     // first of its places in ExpertPlan::slots
  std::int32_t count;     // 1 to the list's item_rows
  std::int32_t reserved;
};

/// Device memory (Scratch::kPlan). Rows that belong to no lane and rows without finite logits have no place in it.
struct ExpertPlan {
  std::int32_t* chosen = nullptr;     // [rows · top_k]: the slot's expert, kUnrouted where the row has none
  float* weights = nullptr;           // [rows · top_k]
  std::int32_t* slots = nullptr;      // slots by ascending expert, in any order within one
  ExpertItem* items[2] = {};          // two lists: gate and up may want longer items than down
  std::int32_t* item_counts = nullptr;  // [2]
};

constexpr std::int32_t kUnrouted = -1;
constexpr int kTopKMax = static_cast<int>(limits::kExpertsPerTokenMax);

/// What routing reads and makes.
struct RoutingInputs {
  const float* logits = nullptr;      // [rows, experts], row stride logits_stride
  std::int64_t logits_stride = 0;
  const PassHeader* pass = nullptr;   // null: every row holds a token
  std::int32_t rows = 0;
  std::int32_t experts = 0;
  std::int32_t top_k = 0;
  std::int32_t normalise = 0;
  std::int32_t item_rows[2] = {};     // most rows of an item, a multiple of 8; 0: no such list
};

/// Most items that `slots` slots can make.
constexpr std::int64_t item_capacity(std::int64_t slots, std::int64_t experts, std::int64_t item_rows) {
  const std::int64_t full = experts + slots / item_rows;
  return full < slots ? full : slots;
}

/// Where a row's result goes.
struct CombineTarget {
  float* residual = nullptr;             // [rows, hidden]
  const float* shared_output = nullptr;  // [rows, hidden] or null
  const float* shared_gate = nullptr;
  std::int64_t shared_gate_stride = 0;
  std::int32_t hidden = 0;
};

#if defined(__CUDACC__)
__device__ __forceinline__ std::int32_t live_rows(const PassHeader* pass, std::int32_t rows) {
  return pass == nullptr ? rows : min(rows, pass->rows);
}
#endif

}  // namespace tensorfold::ops::cuda
