// The pass that a model warms up with: valid for any shape, with every row there once. Only a GPU runs it.
#include "model/widest_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/limits.h"
#include "model/plan_check.h"

namespace tensorfold {
namespace {

ModelFacts facts_of(bool mixed) {
  ModelFacts facts;
  facts.vocabulary_size = 100;
  facts.pass_rows_max = 2048;
  CacheGroup group;
  facts.groups.push_back(group);
  if (!mixed) return facts;
  group.kind = CacheKind::kRecurrent;
  facts.groups.push_back(group);
  group.kind = CacheKind::kSliding;
  group.window = 100;
  facts.groups.push_back(group);
  group.kind = CacheKind::kFull;
  group.draft = true;
  facts.groups.push_back(group);
  return facts;
}

TEST(WidestPlan, IsValidInAnyShape) {
  for (const bool mixed : {false, true}) {
    const ModelFacts facts = facts_of(mixed);
    for (const std::int32_t lanes : {1, 2, 7, 64, 2048}) {
      for (const std::int32_t lane_rows : {1, 32, 33, 256, 2048}) {
        const std::int32_t most = std::min<std::int32_t>(2048, lanes * lane_rows);
        for (const std::int32_t rows : {most, std::max(lanes, most - lane_rows / 2)}) {
          const RoundPlan plan = widest_plan(facts, lanes, rows, true);
          PlanBounds bounds;
          bounds.page_counts.assign(facts.groups.size(), 1 + lanes * widest_plan_pages(lanes, rows));
          bounds.slot_count = 1 + lanes;
          bounds.window_rows = 1;
          bounds.rope_positions = (rows + lanes - 1) / lanes;
          check_plan(plan, facts, bounds);  // stops the process
          EXPECT_EQ(plan.rows.size(), static_cast<std::size_t>(rows));
          EXPECT_EQ(plan.lanes.size(), static_cast<std::size_t>(lanes));
          std::set<std::int32_t> slots, pages;
          for (const PlanLane& lane : plan.lanes) {
            EXPECT_FALSE(is_tree(plan, lane));
            EXPECT_TRUE(slots.insert(lane.slot).second);
            for (const std::int32_t page : lane.pages[0]) EXPECT_TRUE(page > 0 && pages.insert(page).second);
          }
          const auto wants_logits = [](const PlanRow& row) { return (row.flags & kRowWantsLogits) != 0; };
          EXPECT_EQ(static_cast<std::size_t>(std::count_if(plan.rows.begin(), plan.rows.end(), wants_logits)), plan.lanes.size());
        }
      }
    }
  }
}

}  // namespace
}  // namespace tensorfold
