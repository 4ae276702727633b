// The pass that a model runs before it serves, so that memory which grows with use has grown: as many rows as a pass may have,
// dealt out to lanes that begin at their prompts' start. Apart from the executor so that a test can hold the plan against
// plan_check without a GPU.
#pragma once

#include <cstdint>

#include "model/language_model.h"

namespace tensorfold {

/// `rows` rows dealt out evenly to `lanes` lanes (at most `rows`), lane i in slot 1 + i. Every row is tapped; `wants_hidden`: and its
/// hidden state is kept. Each lane's last row wants logits. Tables have widest_plan_pages() pages a lane, from page 1 on.
RoundPlan widest_plan(const ModelFacts& facts, std::int32_t lanes, std::int32_t rows, bool wants_hidden);

std::int32_t widest_plan_pages(std::int32_t lanes, std::int32_t rows);

}  // namespace tensorfold
