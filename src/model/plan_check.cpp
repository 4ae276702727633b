#include "model/plan_check.h"

#include <algorithm>

#include "base/error.h"
#include "base/limits.h"

namespace tensorfold {
namespace {

/// Rows of one lane; returns the end of their positions.
std::int32_t check_rows(const RoundPlan& plan, std::int32_t lane_index, const ModelFacts& facts,
                        const PlanBounds& bounds) {
  const PlanLane& lane = plan.lanes[static_cast<std::size_t>(lane_index)];
  const bool tree = is_tree(plan, lane);
  TF_ASSERT(lane.commits || lane.row_count <= bounds.window_rows);
  TF_ASSERT(!tree || (!lane.commits && lane.row_count <= limits::kTreeRowsMax));
  std::int32_t last = lane.position;
  for (std::int32_t row = lane.first_row; row < lane.first_row + lane.row_count; ++row) {
    const PlanRow& each = plan.rows[static_cast<std::size_t>(row)];
    TF_ASSERT(each.lane == lane_index);
    if (row == lane.first_row) {
      TF_ASSERT(each.parent_row == -1 && each.sequence_index == lane.position);
    } else {
      TF_ASSERT(each.parent_row >= lane.first_row && each.parent_row < row);
      const PlanRow& parent = plan.rows[static_cast<std::size_t>(each.parent_row)];
      TF_ASSERT(each.sequence_index == parent.sequence_index + 1);
    }
    TF_ASSERT(each.embedding_row < 0 && each.adapter < 0);  // what facts() doesn't offer isn't planned
    TF_ASSERT(each.token >= 0 && each.token < facts.vocabulary_size);
    TF_ASSERT(each.rope_position[0] >= 0 && each.rope_position[0] < bounds.rope_positions);
    TF_ASSERT(each.rope_position[1] == each.rope_position[0] && each.rope_position[2] == each.rope_position[0]);
    last = std::max(last, each.sequence_index);
  }
  return last + 1;
}

void check_pages(const PlanLane& lane, std::int32_t end, const ModelFacts& facts, const PlanBounds& bounds) {
  TF_ASSERT(lane.pages.size() == facts.groups.size());
  for (std::size_t group = 0; group < facts.groups.size(); ++group) {
    if (facts.groups[group].kind == CacheKind::kRecurrent) continue;
    const PageTable& pages = lane.pages[group];
    TF_ASSERT(static_cast<std::int64_t>(pages.size()) * limits::kKvPageTokens >= end);
    for (const std::int32_t page : pages) TF_ASSERT(page >= -1 && page < bounds.page_counts[group]);
  }
}

}  // namespace

void check_plan(const RoundPlan& plan, const ModelFacts& facts, const PlanBounds& bounds) {
  TF_ASSERT(static_cast<std::int64_t>(plan.rows.size()) <= facts.pass_rows_max);
  std::int32_t next_row = 0;
  for (std::size_t index = 0; index < plan.lanes.size(); ++index) {
    const PlanLane& lane = plan.lanes[index];
    TF_ASSERT(lane.first_row == next_row && lane.row_count > 0);
    next_row += lane.row_count;
    TF_ASSERT(next_row <= static_cast<std::int32_t>(plan.rows.size()));
    TF_ASSERT(lane.slot >= 0 && lane.slot < bounds.slot_count);
    TF_ASSERT(lane.position >= static_cast<std::int32_t>(lane.replay_rows.size()));
    const std::int32_t end = check_rows(plan, static_cast<std::int32_t>(index), facts, bounds);
    TF_ASSERT(end <= bounds.rope_positions);
    check_pages(lane, end, facts, bounds);
  }
  TF_ASSERT(next_row == static_cast<std::int32_t>(plan.rows.size()));
}

}  // namespace tensorfold
