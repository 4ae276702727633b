// How many draft rows each decoding lane gets in a pass (engine.md 5.2, item 4). Every lane brings its drafts' chances
// of landing; the pass has a price by its number of rows; rows go where they are most likely to become tokens, and no
// further than expected tokens per second grow. A pure function: it sees numbers, not streams.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cost_model.h"

namespace tensorfold {

/// Drafts per lane, at most `extra_max` in all. `bids[i]`: per draft of lane i the chance that it is reached and lands;
/// its first n drafts are always a valid window, and its pending token goes in any case. Ties go to the earlier lane.
std::vector<std::int32_t> grant_draft_rows(const std::vector<const std::vector<double>*>& bids, std::int32_t extra_max,
                                           const CostModel& costs);

/// Best of (1 + expected tokens) / seconds over the first n rows, where `lanes` lanes draft alike.
double best_token_rate(const std::vector<double>& chances, std::int32_t lanes, const CostModel& costs);

}  // namespace tensorfold
