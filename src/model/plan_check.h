// What a plan must satisfy before any work: everything that an operation would otherwise read or write out of bounds,
// or compute from the wrong rows. A plan that fails is a fault of the engine, so the process stops.
#pragma once

#include <cstdint>
#include <vector>

#include "model/language_model.h"

namespace tensorfold {

/// What allocate_caches has set.
struct PlanBounds {
  std::vector<std::int32_t> page_counts;
  std::int32_t slot_count = 0;
  std::int32_t window_rows = 0;
  std::int32_t rope_positions = 0;
};

void check_plan(const RoundPlan& plan, const ModelFacts& facts, const PlanBounds& bounds);

}  // namespace tensorfold
