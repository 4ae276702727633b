// See widest_plan.h.
#include "model/widest_plan.h"

#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/limits.h"

namespace tensorfold {
namespace {

void add_lane(RoundPlan& plan, const ModelFacts& facts, std::int32_t rows, std::int32_t pages, bool wants_hidden) {
  const auto index = static_cast<std::int32_t>(plan.lanes.size());
  PlanLane lane;
  lane.slot = 1 + index;
  lane.first_row = static_cast<std::int32_t>(plan.rows.size());
  lane.row_count = rows;
  for (const CacheGroup& group : facts.groups) {
    PageTable table(group.kind == CacheKind::kRecurrent ? 0 : static_cast<std::size_t>(pages));
    std::iota(table.begin(), table.end(), 1 + index * pages);
    lane.pages.push_back(std::move(table));
  }
  for (std::int32_t row = 0; row < rows; ++row) {
    PlanRow each;
    each.lane = index;
    each.sequence_index = row;
    each.rope_position.fill(row);
    each.parent_row = row == 0 ? -1 : lane.first_row + row - 1;
    each.flags = (wants_hidden ? kRowWantsHidden : 0u) | kRowIsTapped | (row + 1 == rows ? kRowWantsLogits : 0u);
    plan.rows.push_back(each);
  }
  plan.lanes.push_back(std::move(lane));
}

}  // namespace

RoundPlan widest_plan(const ModelFacts& facts, std::int32_t lanes, std::int32_t rows, bool wants_hidden) {
  TF_ASSERT(lanes > 0 && lanes <= rows);
  RoundPlan plan;
  const std::int32_t pages = widest_plan_pages(lanes, rows);
  for (std::int32_t lane = 0; lane < lanes; ++lane) {
    add_lane(plan, facts, rows / lanes + (lane < rows % lanes ? 1 : 0), pages, wants_hidden);
  }
  return plan;
}

std::int32_t widest_plan_pages(std::int32_t lanes, std::int32_t rows) {
  const std::int32_t lane_rows = (rows + lanes - 1) / lanes;
  return (lane_rows + limits::kKvPageTokens - 1) / limits::kKvPageTokens;
}

}  // namespace tensorfold
