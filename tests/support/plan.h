// Plans for tests that drive a LanguageModel directly: one lane whose page tables are simply 1, 2, 3, ...
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "base/limits.h"
#include "model/language_model.h"

namespace tensorfold::test {

inline std::int32_t pages_for(std::int32_t tokens) {
  return (tokens + limits::kKvPageTokens - 1) / limits::kKvPageTokens;
}

/// Allocates caches for one lane of `tokens` positions (pages 1.., slot 1).
inline void allocate_for_one_lane(LanguageModel& model, std::int32_t tokens) {
  std::vector<std::int32_t> pages;
  for (std::size_t i = 0; i < model.facts().groups.size(); ++i) pages.push_back(pages_for(tokens) + 1);
  model.allocate_caches(pages, 2, 16);
}

/// Rows [position, position + tokens.size()) of that lane.
inline RoundPlan one_lane_plan(const LanguageModel& model, std::span<const std::int32_t> tokens, std::int32_t position,
                               bool commits = true, std::vector<std::int32_t> replay_rows = {}) {
  RoundPlan plan;
  PlanLane lane;
  lane.slot = 1;
  lane.row_count = static_cast<std::int32_t>(tokens.size());
  lane.position = position;
  lane.commits = commits;
  lane.replay_rows = std::move(replay_rows);
  for (const auto& group : model.facts().groups) {
    PageTable table;
    if (group.kind != CacheKind::kRecurrent) {
      table.resize(static_cast<std::size_t>(pages_for(position + lane.row_count)));
      std::iota(table.begin(), table.end(), 1);
    }
    lane.pages.push_back(table);
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    PlanRow row;
    row.token = tokens[i];
    row.sequence_index = position + static_cast<std::int32_t>(i);
    row.rope_position.fill(row.sequence_index);
    row.parent_row = i == 0 ? -1 : static_cast<std::int32_t>(i) - 1;
    row.flags = kRowWantsLogits;
    plan.rows.push_back(row);
  }
  plan.lanes.push_back(std::move(lane));
  return plan;
}

}  // namespace tensorfold::test
