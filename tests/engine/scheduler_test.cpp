// The scheduler and the cost model, alone.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

namespace tensorfold {
namespace {

CostModel measured(double fixed_seconds, double seconds_per_row) {
  CostModel costs;
  for (const std::int32_t rows : {1, 4, 16, 64, 256}) costs.observe(rows, fixed_seconds + seconds_per_row * rows);
  return costs;
}

LaneWork decode_lane(std::int32_t lane, std::uint64_t last_served = 0) {
  LaneWork work;
  work.lane = lane;
  work.last_served = last_served;
  work.order = static_cast<std::uint64_t>(lane);
  return work;
}

LaneWork prompt_lane(std::int32_t lane, std::int32_t rows_left) {
  LaneWork work;
  work.lane = lane;
  work.prompt_rows_left = rows_left;
  work.order = static_cast<std::uint64_t>(lane);
  return work;
}

std::map<std::int32_t, std::int32_t> by_lane(const std::vector<Grant>& grants) {
  std::map<std::int32_t, std::int32_t> rows;
  for (const Grant& grant : grants) {
    EXPECT_GT(grant.rows, 0);
    EXPECT_TRUE(rows.emplace(grant.lane, grant.rows).second) << "a lane was granted twice";
  }
  return rows;
}

TEST(CostModel, InterpolatesAndGrowsStepByStep) {
  CostModel costs;
  EXPECT_EQ(costs.rows_within(0.25, 512), 32);  // nothing known yet
  costs.observe(32, 0.032);
  EXPECT_EQ(costs.rows_within(0.25, 512), 128);
  EXPECT_NEAR(costs.predict(64), 0.064, 1e-9);
  costs.observe(128, 0.064);
  EXPECT_NEAR(costs.predict(80), 0.048, 1e-9);
  EXPECT_EQ(costs.rows_within(0.25, 512), 500);
  EXPECT_EQ(costs.rows_within(0.048, 512), 80);
  EXPECT_EQ(costs.rows_within(0.0, 512), 1);
}

TEST(CostModel, ForgetsAnAccident) {
  CostModel costs;
  costs.observe(64, 30.0);  // the machine was suspended
  for (int i = 0; i < 300; ++i) costs.observe(4, 0.004);
  EXPECT_EQ(costs.rows_within(0.25, 512), 32);
}

// A prompt grows long: every pass costs more than the last, and what passes cost at its beginning says nothing any more.
TEST(CostModel, FollowsWhatGrowsDearer) {
  for (const double growth : {1.0, 1.003, 1.01}) {
    CostModel costs;
    double seconds_per_row = 0.0005;
    int above = 0;
    for (int pass = 0; pass < 300; ++pass) {
      const std::int32_t rows = costs.rows_within(0.2, 512);
      const double seconds = 0.01 + seconds_per_row * rows;
      above += seconds > 0.25 ? 1 : 0;
      costs.observe(rows, seconds);
      seconds_per_row *= growth;
      if (pass % 100 == 99) seconds_per_row *= 1.5;  // something else begins to run
    }
    EXPECT_LE(above, 12) << growth;
  }
}

TEST(Scheduler, DecodingLanesAlwaysGoAndPromptsFillTheTime) {
  Scheduler scheduler({512, 512, 0.25}, 0);
  const CostModel costs = measured(0.0, 0.002);  // 125 rows in 250 ms, 75 of them where others wait
  const auto rows = by_lane(scheduler.schedule({prompt_lane(0, 1000), decode_lane(1), decode_lane(2)}, costs, costs));
  EXPECT_EQ(rows.at(1), 1);
  EXPECT_EQ(rows.at(2), 1);
  EXPECT_NEAR(rows.at(0), 73, 3);
  EXPECT_NEAR(by_lane(scheduler.schedule({prompt_lane(0, 1000)}, costs, costs)).at(0), 125, 3);
}

TEST(Scheduler, ASlowModelStillReadsPrompts) {
  Scheduler scheduler({512, 512, 0.25}, 0);
  const auto rows =
      by_lane(scheduler.schedule({prompt_lane(0, 1000), decode_lane(1)}, measured(2.0, 0.5), CostModel()));
  EXPECT_EQ(rows.at(0), 1);
  EXPECT_EQ(rows.at(1), 1);
}

TEST(Scheduler, ShortestFirstForegroundFirstAndNobodyStarves) {
  Scheduler scheduler({64, 64, 10.0}, 0);
  const CostModel costs = measured(0.0, 0.0001);
  LaneWork background = prompt_lane(0, 10);
  background.background = true;
  const auto order = scheduler.schedule({background, prompt_lane(1, 60), prompt_lane(2, 30)}, costs, costs);
  ASSERT_EQ(order.size(), 2u);
  EXPECT_EQ(order[0].lane, 2);
  EXPECT_EQ(order[0].rows, 30);
  EXPECT_EQ(order[1].lane, 1);
  EXPECT_EQ(order[1].rows, 34);

  // A long prompt among short ones that never cease: it is served at least every ninth pass.
  LaneWork longest = prompt_lane(7, 100000);
  int waited = 0, worst = 0, served = 0;
  for (int pass = 0; pass < 200; ++pass) {
    longest.times_passed_over = waited;
    const auto rows = by_lane(scheduler.schedule({prompt_lane(1, 64), prompt_lane(2, 64), longest}, costs, costs));
    if (rows.count(7) != 0) {
      waited = 0;
      ++served;
    } else {
      worst = std::max(worst, ++waited);
    }
  }
  EXPECT_EQ(worst, 8);
  EXPECT_GT(served, 20);
}

TEST(Scheduler, MoreDecodingLanesThanRowsTakeTurns) {
  Scheduler scheduler({10, 10, 1.0}, 0);
  std::vector<LaneWork> lanes;
  for (std::int32_t lane = 0; lane < 24; ++lane) lanes.push_back(decode_lane(lane));
  std::map<std::int32_t, int> turns;
  std::uint64_t services = 0;
  for (int pass = 0; pass < 24; ++pass) {
    for (const Grant& grant : scheduler.schedule(lanes, CostModel(), CostModel())) {
      lanes[static_cast<std::size_t>(grant.lane)].last_served = ++services;
      ++turns[grant.lane];
    }
  }
  for (std::int32_t lane = 0; lane < 24; ++lane) EXPECT_EQ(turns[lane], 10) << lane;
}

TEST(Scheduler, AFullHouseOfDecodingLanesLeavesPromptsSomeRows) {
  for (const std::int32_t pass_rows : {1, 2, 8, 64}) {
    Scheduler scheduler({pass_rows, pass_rows, 1.0}, 0);
    std::vector<LaneWork> lanes;
    for (std::int32_t lane = 0; lane < 100; ++lane) lanes.push_back(decode_lane(lane));
    lanes.push_back(prompt_lane(100, 500));
    lanes.back().times_passed_over = 8;
    const auto rows = by_lane(scheduler.schedule(lanes, measured(0.0, 0.001), CostModel()));
    EXPECT_EQ(rows.count(100), 1u) << pass_rows;
    int total = 0;
    for (const auto& [lane, count] : rows) total += count;
    EXPECT_LE(total, pass_rows);
  }
}

TEST(Scheduler, DraftsGoAsFarAsTheyPayAndLeavePromptsHalfOfThePass) {
  LaneWork copying = decode_lane(0), plain = decode_lane(1);
  for (int i = 0; i < 100; ++i) copying.draft_chances.push_back(0.97);
  const CostModel costs = measured(0.001, 0.001), window_costs = measured(0.02, 0.0005);
  Scheduler wide({512, 512, 0.25}, 0);
  auto rows = by_lane(wide.schedule({copying, plain}, costs, window_costs));
  EXPECT_EQ(rows.at(0), 101);
  EXPECT_EQ(rows.at(1), 1);
  Scheduler bounded({512, 512, 0.041}, 0);  // 40 rows
  rows = by_lane(bounded.schedule({copying, plain}, costs, window_costs));
  EXPECT_NEAR(rows.at(0), 39, 1);
  rows = by_lane(bounded.schedule({copying, plain, prompt_lane(2, 1000)}, costs, window_costs));
  EXPECT_NEAR(rows.at(0), 11, 1);  // half of what a pass beside a prompt may take
  EXPECT_NEAR(rows.at(2), 11, 1);
  // Prompt rows are cheap, rows with logits aren't: the pass keeps its time all the same.
  rows = by_lane(bounded.schedule({copying, plain}, measured(0.0, 0.0001), measured(0.009, 0.001)));
  EXPECT_NEAR(rows.at(0), 31, 1);
  Scheduler scored({512, 6, 0.25}, 0);  // logits of six rows beyond one a stream fit
  EXPECT_EQ(by_lane(scored.schedule({copying, plain}, costs, window_costs)).at(0), 7);
  EXPECT_EQ(by_lane(wide.schedule({copying, plain}, costs, measured(0.0, 0.01))).at(0), 1);  // rows as dear as passes
}

TEST(Scheduler, ScoredRowsShareABoundedBuffer) {
  Scheduler scheduler({512, 20, 10.0}, 0);
  LaneWork one = prompt_lane(0, 100), two = prompt_lane(1, 200);
  one.wants_every_row = two.wants_every_row = true;
  const auto rows = by_lane(scheduler.schedule({one, two, prompt_lane(2, 90)}, measured(0.0, 0.0001), CostModel()));
  EXPECT_EQ(rows.at(2), 90);
  EXPECT_EQ(rows.at(0), 20);
  EXPECT_EQ(rows.count(1), 0u);
}

TEST(Scheduler, RandomSchedulesStayWithinTheLimits) {
  Scheduler scheduler({33, 9, 1.0}, 77);
  for (int pass = 0; pass < 2000; ++pass) {
    std::vector<LaneWork> lanes;
    for (std::int32_t lane = 0; lane < pass % 19 + 1; ++lane) {
      lanes.push_back(lane % 3 == 0 ? decode_lane(lane) : prompt_lane(lane, 1 + pass % 40));
      lanes.back().wants_every_row = lane % 2 == 0;
    }
    int total = 0, scored = 0;
    const auto rows = by_lane(scheduler.schedule(lanes, CostModel(), CostModel()));
    EXPECT_FALSE(rows.empty());
    for (const auto& [lane, count] : rows) {
      const LaneWork& work = lanes[static_cast<std::size_t>(lane)];
      EXPECT_LE(count, work.prompt_rows_left == 0 ? 1 : work.prompt_rows_left);
      total += count;
      if (work.wants_every_row && work.prompt_rows_left > 0) scored += count;
    }
    EXPECT_LE(total, 33);
    EXPECT_LE(scored, 9);
  }
}

}  // namespace
}  // namespace tensorfold
