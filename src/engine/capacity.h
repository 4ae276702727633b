// How many lanes of how much context the caches hold: options and memory in, page counts out, before anything is
// allocated. What comes out is a promise: every lane can use the whole context at once.
#pragma once

#include <cstdint>
#include <vector>

#include "base/host_memory.h"
#include "engine/cache/prefix_budget.h"
#include "engine/engine.h"

namespace tensorfold {

struct Capacity {
  std::int32_t lanes = 0;
  std::int32_t context = 0;
  std::int32_t pass_rows = 0;             // most rows of one pass
  std::vector<std::int32_t> page_counts;  // per group: the reserved page, the lanes' and the kept prefixes'
  std::int32_t slot_count = 0;            // the reserved slot included
  std::int32_t window_rows = 1;           // widest window that a slot holds
  std::uint64_t cache_bytes = 0;          // of the lanes
  PrefixBudget prefix_budget;             // kept prefixes, beside what the lanes were promised
  bool context_was_reduced = false;  // below the model's own, because memory says so
};

/// Bytes of page and slot memory that one lane of `context` tokens needs.
std::uint64_t lane_bytes(const ModelFacts& facts, std::int32_t context, std::int32_t pass_rows);

/// Rows beyond one a stream whose logits one pass returns.
std::int32_t scored_rows_max(const ModelFacts& facts, std::int32_t pass_rows);

/// Throws Error(kInvalidArgument) for options out of range and Error(kResourceExhausted), with what would fit, for
/// explicit options that memory can't hold. `available` is used when the options name no cache size. Of memory that other
/// programs share the lanes get half; of a GPU's, whatever explicit options ask for, and three quarters otherwise.
Capacity plan_capacity(const ModelFacts& facts, const EngineOptions& options, MemoryAvailable available);

}  // namespace tensorfold
