// The best few ids of a row of logits, in the one order that drafters and samplers share: value descending, id
// ascending.
#pragma once

#include <cstdint>

namespace tensorfold {

/// Writes the `count` best of `logits` [size], `count` <= size, to `ids` and `values`. A NaN counts as minus infinity.
void best_candidates(const float* logits, std::int64_t size, std::int32_t count, std::int32_t* ids, float* values);

}  // namespace tensorfold
