// The parts of drafting alone: the row grant, the depth rule, windows cut by a rule, the copy index, costs of windows.
#include <gtest/gtest.h>

#include <random>

#include "engine/draft/copy_source.h"
#include "engine/draft/depth_rule.h"
#include "engine/draft/draft_account.h"
#include "engine/draft/draft_window.h"
#include "engine/draft/row_grant.h"
#include "scripted_rule.h"

namespace tensorfold {
namespace {

using testing::ScriptedRule;

CostModel measured(double fixed_seconds, double seconds_per_row, std::int32_t rows_max = 64) {
  CostModel costs(CostModel::Unknown::kOptimistic);
  for (int i = 0; i < 4; ++i) {
    for (std::int32_t rows = 1; rows <= rows_max; ++rows) costs.observe(rows, fixed_seconds + seconds_per_row * rows);
  }
  return costs;
}

std::vector<double> chain(double chance, std::size_t count) {
  std::vector<double> chances;
  double reached = 1.0;
  for (std::size_t i = 0; i < count; ++i) chances.push_back(reached *= chance);
  return chances;
}

TEST(WindowCosts, UnknownWidthsAreTried) {
  CostModel costs(CostModel::Unknown::kOptimistic);
  costs.observe(1, 0.010);
  EXPECT_LT(costs.predict(8), 0.0125);
  costs.observe(8, 0.500);  // a slow moment: hardly believed
  EXPECT_LT(costs.predict(8), 0.030);
  costs.observe(8, 0.016);
  EXPECT_NEAR(costs.predict(8), 0.016, 1e-9);
  for (int i = 0; i < 40; ++i) costs.observe(8, 0.080);  // and yet it moves
  EXPECT_NEAR(costs.predict(8), 0.080, 0.002);
  costs.observe(9, 0.020);  // a faster wide pass: the narrower one was disturbed
  EXPECT_LE(costs.predict(8), 0.020);
}

TEST(RowGrant, RowsGoWhereTheyLandAndNoFurtherThanTheyPay) {
  const CostModel cheap = measured(1.0, 0.01);
  const std::vector<double> sure = chain(0.95, 15), doubtful = chain(0.3, 15), none;
  auto rows = grant_draft_rows({&sure, &doubtful, &none}, 1000, cheap);
  EXPECT_EQ(rows[0], 15);
  EXPECT_GT(rows[1], 0);
  EXPECT_LT(rows[1], 15);
  EXPECT_EQ(rows[2], 0);
  // Rows as dear as passes: nothing pays.
  rows = grant_draft_rows({&sure, &doubtful, &none}, 1000, measured(0.0, 1.0));
  EXPECT_EQ(rows, (std::vector<std::int32_t>{0, 0, 0}));
  // A budget goes to the likelier rows first.
  rows = grant_draft_rows({&doubtful, &sure}, 4, cheap);
  EXPECT_EQ(rows, (std::vector<std::int32_t>{0, 4}));
  rows = grant_draft_rows({&sure, &sure}, 7, cheap);
  EXPECT_EQ(rows, (std::vector<std::int32_t>{4, 3}));
  EXPECT_EQ(grant_draft_rows({&sure}, 0, cheap)[0], 0);
  EXPECT_EQ(grant_draft_rows({&sure}, -3, cheap)[0], 0);
}

TEST(RowGrant, TheBestPointIsTheBestOfAll) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    const CostModel costs = measured(0.5 + 0.01 * static_cast<double>(random() % 100), 0.02 + 0.002 * (random() % 50));
    const std::vector<double> chances = chain(0.3 + 0.0069 * (random() % 100), 15);
    double best = 1.05 / costs.predict(1), expected = 1.0;  // with the guard
    std::int32_t best_rows = 0;
    for (std::int32_t n = 1; n <= 15; ++n) {
      expected += chances[static_cast<std::size_t>(n) - 1];
      if (expected / costs.predict(1 + n) > best) {
        best = expected / costs.predict(1 + n);
        best_rows = n;
      }
    }
    ASSERT_EQ(grant_draft_rows({&chances}, 15, costs)[0], best_rows) << trial;
  }
}

TEST(DepthRule, LearnsHowDeepPays) {
  const CostModel costs = measured(1.0, 0.05);
  DepthRule rule(0.5);
  const auto window = [&rule](std::int32_t fed, std::int32_t landed) {
    rule.begin_window();
    for (std::int32_t depth = 0; depth < fed && depth <= landed; ++depth) {
      rule.observe_draft(depth, 0.7, depth < landed);
      rule.observe_level(depth, depth < landed);
    }
  };
  for (int i = 0; i < 60; ++i) window(6, 6);
  EXPECT_GT(rule.level_chance(3), 0.9);
  EXPECT_GT(rule.chance(3, 0.7), 0.9);  // it is better than it thinks
  EXPECT_GE(rule.depth_to_ask(15, 1, {0.0, 0.05}, costs).depth, 6);
  for (int i = 0; i < 60; ++i) window(6, 1);
  EXPECT_LT(rule.chance(1, 0.7), 0.3);
  std::int32_t deepest = 0;
  for (int i = 0; i < 7; ++i) deepest = std::max(deepest, rule.depth_to_ask(15, 1, {0.0, 0.05}, costs).depth);
  EXPECT_LE(deepest, 3);
  for (int i = 0; i < 60; ++i) window(3, 0);
  for (int i = 0; i < 400; ++i) ASSERT_EQ(rule.depth_to_ask(15, 1, {0.2, 0.05}, costs).depth, 0);
  EXPECT_EQ(rule.depth_to_ask(0, 1, {}, costs).depth, 0);
}

TEST(DepthRule, AStreamBeginsWithWhatEarlierOnesMet) {
  const CostModel costs = measured(1.0, 0.05);
  DepthRule history(0.7);
  EXPECT_GT(DepthRule::begin_with(history).depth_to_ask(15, 1, {0.2, 0.05}, costs).depth, 0);
  const auto windows = [](DepthRule& rule, int count, bool landed) {
    for (int i = 0; i < count; ++i) {
      rule.begin_window();
      rule.observe_draft(0, 0.7, landed);
      rule.observe_level(0, landed);
    }
  };
  windows(history, 60, false);
  DepthRule rule = DepthRule::begin_with(history);
  EXPECT_LT(rule.level_chance(0), 0.2);
  EXPECT_LT(rule.chance(0, 0.7), 0.3);
  EXPECT_EQ(rule.depth_to_ask(1, 1, {0.2, 0.05}, costs).depth, 0);
  windows(rule, 12, true);  // and yet this one is different
  EXPECT_EQ(rule.depth_to_ask(1, 1, {0.2, 0.05}, costs).depth, 1);
}

TEST(DraftAccount, WhatDoesntPayIsTriedForItsShareOfTheTime) {
  constexpr double kPass = 0.001, kPrice = 0.0006;
  DraftAccount account;
  account.earn(0.0, 0.0);  // no pass was measured yet
  EXPECT_GT(account.balance(), 1.0);
  int tries = 0;
  const auto rounds = [&](int count, bool lands) {
    const int before = tries;
    for (int i = 0; i < count; ++i) {
      account.earn(kPass, kPass);
      if (account.balance() < kPrice) continue;
      account.charge(lands ? kPrice - kPass : kPrice);
      ++tries;
    }
    return tries - before;
  };
  rounds(100, false);  // the allowance of the first time
  const int missed = rounds(10000, false);
  EXPECT_LE(missed * kPrice, 1.01 * DraftAccount::kShare * 10000 * kPass);
  EXPECT_GE(missed * kPrice, 0.9 * DraftAccount::kShare * 10000 * kPass);
  rounds(200, true);
  EXPECT_EQ(rounds(100, true), 100);  // what lands pays for itself
  EXPECT_LE(rounds(100, false), 28);  // a change for the worse is noticed
  account.charge(1000.0);
  account.charge(-0.0047);
  EXPECT_GE(account.balance(), 0.0);  // debts have an end
}

std::vector<DraftNode> chain_of(const std::vector<std::int32_t>& tokens) {
  std::vector<DraftNode> nodes;
  for (const std::int32_t token : tokens) {
    nodes.push_back({token, static_cast<std::int32_t>(nodes.size()) - 1, 0.5});
  }
  return nodes;
}

std::vector<std::int32_t> tokens_of(const std::vector<DraftNode>& nodes) {
  std::vector<std::int32_t> tokens;
  for (const DraftNode& node : nodes) tokens.push_back(node.token);
  return tokens;
}

TEST(DraftWindow, WhatARuleExcludesIsCutWithAllThatFollows) {
  const auto go_on = [](const std::vector<std::int32_t>&) { return PathRule::Verdict::kContinue; };
  std::vector<DraftNode> nodes = chain_of({1, 2, 3, 4});
  cut_proposal(nodes, nullptr, {3}, 61);
  EXPECT_EQ(tokens_of(nodes), (std::vector<std::int32_t>{1, 2}));  // nothing is fed after the end
  // A tree: -1 → 5 → 6, 5 → 7 → 8, -1 → 9.
  const std::vector<DraftNode> tree{{5, -1, 0.5}, {6, 0, 0.5}, {7, 0, 0.5}, {8, 2, 0.5}, {9, -1, 0.5}};
  EXPECT_TRUE(is_tree(tree, 5));
  EXPECT_FALSE(is_tree(tree, 2));
  EXPECT_EQ(node_depths(tree), (std::vector<std::int32_t>{0, 1, 1, 2, 0}));
  nodes = tree;
  ScriptedRule mask(go_on, {}, {5, 7, 8, 9});
  cut_proposal(nodes, &mask, {}, 61);
  EXPECT_EQ(tokens_of(nodes), (std::vector<std::int32_t>{5, 7, 8, 9}));
  EXPECT_EQ(nodes[1].parent, 0);
  EXPECT_EQ(nodes[2].parent, 1);
  EXPECT_EQ(nodes[3].parent, -1);
  nodes = tree;
  ScriptedRule forced(go_on, {5, 7}, {});
  cut_proposal(nodes, &forced, {}, 61);
  EXPECT_EQ(tokens_of(nodes), (std::vector<std::int32_t>{5, 7, 8}));
  nodes = tree;
  ScriptedRule stops(
      [](const std::vector<std::int32_t>& path) {
        return path.back() == 7 ? PathRule::Verdict::kStop : PathRule::Verdict::kContinue;
      },
      {}, {});
  cut_proposal(nodes, &stops, {}, 61);
  EXPECT_EQ(tokens_of(nodes), (std::vector<std::int32_t>{5, 6, 9}));
  EXPECT_EQ(tokens_of(forced_nodes(forced, {}, 10, 61)), (std::vector<std::int32_t>{5, 7}));
  EXPECT_EQ(tokens_of(forced_nodes(forced, {7}, 10, 61)), (std::vector<std::int32_t>{5}));
  EXPECT_TRUE(forced_nodes(forced, {}, 0, 61).empty());
}

TEST(CopyIndex, FindsTheLongestAndLatestPlace) {
  CopyIndex index;
  EXPECT_EQ(index.find({}).end, -1);
  EXPECT_EQ(index.find({1, 2}).end, -1);
  std::vector<std::int32_t> text{1, 2, 3, 4, 5, 9, 3, 4, 5, 8, 2, 3, 4, 5};
  CopyIndex::Match match = index.find(text);
  EXPECT_EQ(match.end, 4);  // "2 3 4 5", not the later "3 4 5"
  EXPECT_EQ(match.length, 4);
  text.insert(text.end(), {7, 3, 4, 5});
  match = index.find(text);
  EXPECT_EQ(match.end, 13);  // of equals, the latest
  EXPECT_EQ(match.length, 3);
  EXPECT_EQ(index.find({9, 9, 9, 9}).end, 2);  // another text: a fresh index; places may overlap
}

TEST(CopyIndex, EqualsASearchOfTheWholeText) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 30; ++trial) {
    CopyIndex index;
    std::vector<std::int32_t> text;
    for (int i = 0; i < 300; ++i) {
      text.push_back(static_cast<std::int32_t>(random() % 3));
      if (i % (1 + trial % 4) != 0) continue;
      std::int32_t best = 0, end = -1;
      for (std::int32_t place = static_cast<std::int32_t>(text.size()) - 2; place >= 2; --place) {
        std::int32_t length = 0;
        while (length < 64 && length <= place &&
               text[static_cast<std::size_t>(place - length)] ==
                   text[text.size() - 1 - static_cast<std::size_t>(length)]) {
          ++length;
        }
        if (length > best) best = length, end = place;
      }
      const CopyIndex::Match match = index.find(text);
      // Among many short places only the latest are looked at.
      if (best < 3) {
        ASSERT_EQ(match.end, -1);
      } else if (match.end != end) {
        ASSERT_GE(match.length, 3);
        ASSERT_LE(match.length, best);
        for (std::int32_t i2 = 0; i2 < match.length; ++i2) {
          ASSERT_EQ(text[static_cast<std::size_t>(match.end - i2)],
                    text[text.size() - 1 - static_cast<std::size_t>(i2)]);
        }
      }
    }
  }
}

TEST(CopySource, WidensWhileCopiesLandAndFallsSilentWhereTheyDont) {
  CopySource source;
  std::vector<std::int32_t> context;
  for (std::int32_t i = 0; i < 500; ++i) context.push_back(i % 250);
  const SamplingRule sampling;
  const std::string owner;
  DraftStream stream;
  stream.context = &context;
  stream.sampling = &sampling;
  stream.owner = &owner;
  const std::unique_ptr<DraftState> state = source.open(stream);
  stream.state = state.get();
  const auto ask = [&](std::int32_t depth_max) {
    std::vector<DraftRequest> batch(1);
    batch[0].stream = stream;
    batch[0].depth_max = batch[0].nodes_max = depth_max;
    source.propose(batch);
    EXPECT_EQ(proposal_fault(batch[0], 1000), "");
    return batch[0].proposal;
  };
  const auto all = [](std::size_t count) {
    std::vector<std::int32_t> landed;
    for (std::size_t i = 0; i < count; ++i) landed.push_back(static_cast<std::int32_t>(i));
    return landed;
  };
  std::vector<std::size_t> widths;
  double chance = 0.0;
  for (int round = 0; round < 6; ++round) {
    const DraftProposal proposal = ask(127);
    EXPECT_EQ(proposal.match_length, 64);
    EXPECT_EQ(proposal.nodes[0].token, context[context.size() - 250]);
    EXPECT_GE(proposal.nodes[0].chance, chance);
    chance = proposal.nodes[0].chance;
    widths.push_back(proposal.nodes.size());
    source.observe(stream, proposal, static_cast<std::int32_t>(proposal.nodes.size()), all(proposal.nodes.size()));
  }
  EXPECT_EQ(widths, (std::vector<std::size_t>{7, 15, 31, 63, 127, 127}));
  EXPECT_EQ(ask(9).nodes.size(), 9u);
  for (int miss = 0; miss < 4; ++miss) {
    const DraftProposal proposal = ask(127);
    source.observe(stream, proposal, 7, {});
    if (miss == 0) {
      EXPECT_EQ(ask(127).nodes.size(), 7u);
    }
  }
  int silent = 0;
  while (ask(127).nodes.empty() && silent < 100) ++silent;
  EXPECT_EQ(silent, 16);
}

}  // namespace
}  // namespace tensorfold
