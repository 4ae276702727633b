// Windows through whole models: every row of a tree, of every golden checkpoint and backend, has the logits of its path
// run as a plain sequence, bit for bit; accepted paths carry on from replay or settle; wide chains do, too; and a
// settled stream survives a copy through host memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <random>

#include "checkpoint/checkpoint.h"
#include "model/load.h"
#include "ops/random_trees.h"
#include "support/golden_case.h"
#include "support/model_backend.h"

namespace tensorfold {
namespace {

constexpr int kLanes = 3;
constexpr int kLength = 200;  // positions of a lane
constexpr int kWideRows = 100;

/// A model with kLanes lanes, whose pages and slots start as NaN (slots' state zeroed, as when they are handed out).
class Lanes {
 public:
  struct Window {
    int lane = 0;
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t> parents;  // empty: a chain
    bool commits = true;
  };

  explicit Lanes(std::unique_ptr<LanguageModel> model) : model_(std::move(model)) {
    const auto& groups = model_->facts().groups;
    model_->allocate_caches(std::vector<std::int32_t>(groups.size(), 1 + kLanes * kPages), kLanes + 1, 128);
    for (std::size_t group = 0; group < groups.size(); ++group) {
      if (groups[group].kind == CacheKind::kRecurrent) continue;
      for (std::int32_t page = 1; page <= kLanes * kPages; ++page) {
        model_->poison_page(static_cast<std::int32_t>(group), page);
      }
    }
    for (int lane = 0; lane < kLanes; ++lane) restart(lane);
  }

  LanguageModel& model() { return *model_; }
  std::int32_t vocabulary() const { return model_->facts().vocabulary_size; }
  int position(int lane) const { return at(lane).position; }

  void restart(int lane) {
    model_->poison_slot(lane + 1);
    model_->zero_slot(lane + 1);
    at(lane) = {};
  }

  /// One pass; logits [window][row · vocabulary].
  std::vector<std::vector<float>> pass(const std::vector<Window>& windows) {
    RoundPlan plan;
    for (const Window& window : windows) add(plan, window);
    ForwardResult result;
    model_->forward(plan, result);
    std::vector<std::vector<float>> logits;
    const float* next = result.logits;
    for (const Window& window : windows) {
      const std::size_t count = window.tokens.size() * static_cast<std::size_t>(vocabulary());
      logits.emplace_back(next, next + count);
      next += count;
      Lane& lane = at(window.lane);
      lane.replay.clear();
      lane.replay_tree = !window.parents.empty() && is_tree(plan, plan.lanes[logits.size() - 1]);
      if (window.commits) lane.position += static_cast<int>(window.tokens.size());
    }
    return logits;
  }

  void accept(int lane, const std::vector<std::int32_t>& path) {
    at(lane).replay = path;
    at(lane).position += static_cast<int>(path.size());
  }

  void settle(int lane) {
    RoundPlan plan;
    add(plan, {lane, {0}, {}, true});
    model_->settle(plan.lanes[0]);
    at(lane).replay.clear();
    at(lane).replay_tree = false;
  }

  /// The settled lane `from` as host bytes, written over lane `to`.
  void copy_through_host(int from, int to) {
    const auto& groups = model_->facts().groups;
    for (std::size_t group = 0; group < groups.size(); ++group) {
      if (groups[group].kind == CacheKind::kRecurrent) continue;
      std::vector<std::byte> bytes(groups[group].page_bytes);
      for (int page = 0; page * limits::kKvPageTokens < position(from); ++page) {
        model_->read_page(static_cast<std::int32_t>(group), 1 + from * kPages + page, bytes.data());
        model_->write_page(static_cast<std::int32_t>(group), 1 + to * kPages + page, bytes.data());
      }
    }
    const auto state = model_->allocate_snapshot();
    model_->read_slot(from + 1, state.get());
    restart(to);
    model_->write_slot(to + 1, state.get());
    model_->finish_copies();
    at(to).position = position(from);
  }

  /// The lane with what is pending in its slot, inside the pools.
  void copy(int from, int to) {
    const auto& groups = model_->facts().groups;
    for (std::size_t group = 0; group < groups.size(); ++group) {
      if (groups[group].kind == CacheKind::kRecurrent) continue;
      for (int page = 0; page < kPages; ++page) {
        model_->copy_page(static_cast<std::int32_t>(group), 1 + from * kPages + page, 1 + to * kPages + page);
      }
    }
    model_->copy_slot(from + 1, to + 1);
    at(to) = at(from);
  }

 private:
  static constexpr int kPages = (kLength + limits::kKvPageTokens - 1) / limits::kKvPageTokens;
  struct Lane {
    int position = 0;
    std::vector<std::int32_t> replay;
    bool replay_tree = false;
  };
  Lane& at(int lane) { return lanes_[static_cast<std::size_t>(lane)]; }
  const Lane& at(int lane) const { return lanes_[static_cast<std::size_t>(lane)]; }

  void add(RoundPlan& plan, const Window& window) const {
    PlanLane lane;
    lane.slot = window.lane + 1;
    lane.first_row = static_cast<std::int32_t>(plan.rows.size());
    lane.row_count = static_cast<std::int32_t>(window.tokens.size());
    lane.position = position(window.lane);
    lane.commits = window.commits;
    lane.replay_rows = at(window.lane).replay;
    lane.replay_tree = at(window.lane).replay_tree && !lane.replay_rows.empty();
    for (const auto& group : model_->facts().groups) {
      PageTable table;
      for (int page = 0; group.kind != CacheKind::kRecurrent && page < kPages; ++page) {
        table.push_back(1 + window.lane * kPages + page);
      }
      lane.pages.push_back(table);
    }
    for (std::size_t i = 0; i < window.tokens.size(); ++i) {
      PlanRow row;
      row.token = window.tokens[i];
      row.lane = static_cast<std::int32_t>(plan.lanes.size());
      const std::int32_t parent = window.parents.empty() ? static_cast<std::int32_t>(i) - 1 : window.parents[i];
      row.parent_row = parent < 0 ? -1 : lane.first_row + parent;
      row.sequence_index =
          parent < 0 ? lane.position : plan.rows[static_cast<std::size_t>(row.parent_row)].sequence_index + 1;
      row.rope_position.fill(row.sequence_index);
      row.flags = kRowWantsLogits;
      plan.rows.push_back(row);
    }
    plan.lanes.push_back(std::move(lane));
  }

  std::unique_ptr<LanguageModel> model_;
  std::array<Lane, kLanes> lanes_;
};

testing::AssertionResult same_row(const std::vector<float>& a, std::size_t row_a, const std::vector<float>& b,
                                  std::size_t row_b, std::int32_t width) {
  for (std::int32_t i = 0; i < width; ++i) {
    const float left = a[row_a * static_cast<std::size_t>(width) + static_cast<std::size_t>(i)];
    const float right = b[row_b * static_cast<std::size_t>(width) + static_cast<std::size_t>(i)];
    if (std::bit_cast<std::uint32_t>(left) != std::bit_cast<std::uint32_t>(right)) {
      return testing::AssertionFailure() << "logit " << i << ": " << left << " and " << right;
    }
  }
  return testing::AssertionSuccess();
}

using test::BackendCase;

class Windows : public test::BackendTest<std::string> {
 protected:
  Lanes lanes(const BackendCase& backend) const {
    const auto golden = test::read_golden_case(test::golden_directory(GetParam()));
    return Lanes(load_language_model(Checkpoint::open(golden.model), backend.make(), {}));
  }
};

std::vector<std::int32_t> random_tokens(std::mt19937& random, std::int32_t vocabulary, std::size_t count) {
  std::vector<std::int32_t> tokens(count);
  for (auto& token : tokens) token = static_cast<std::int32_t>(random() % static_cast<unsigned>(vocabulary));
  return tokens;
}

/// Parents of a chain of `rows`.
std::vector<std::int32_t> chain(std::int32_t rows) {
  std::vector<std::int32_t> parents(static_cast<std::size_t>(rows));
  std::iota(parents.begin(), parents.end(), -1);
  return parents;
}

/// Logits of every position of `tokens` on a fresh lane: the prompt at once, the rest row by row.
std::vector<float> serial(Lanes& plain, const std::vector<std::int32_t>& tokens, std::size_t prompt) {
  plain.restart(0);
  auto logits = plain.pass({{0, {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(prompt)}, {}, true}})[0];
  for (std::size_t i = prompt; i < tokens.size(); ++i) {
    const auto row = plain.pass({{0, {tokens[i]}, {}, true}})[0];
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

TEST_P(Windows, TreesAreTheirPathsAndCarryOn) {
  for (const BackendCase& backend : test::backend_variants()) {
    Lanes tested = lanes(backend), plain = lanes(backend);
    std::mt19937 random(5);
    const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    std::array<std::vector<std::int32_t>, kLanes> committed;
    const std::array<std::size_t, kLanes> prompts = {50, 61, 7};
    for (int lane = 0; lane < kLanes; ++lane) {
      auto& tokens = committed[static_cast<std::size_t>(lane)];
      tokens = random_tokens(random, tested.vocabulary(), prompts[static_cast<std::size_t>(lane)]);
      tested.pass({{lane, tokens, {}, true}});
    }
    for (int round = 0; round < 3; ++round) {
      std::vector<Lanes::Window> windows;
      for (int lane = 0; lane < kLanes; ++lane) {
        if (round > 0 && draw(3) == 0) tested.settle(lane);
        const auto rows = static_cast<std::int32_t>(1 + draw(16));
        Lanes::Window window{
            lane, random_tokens(random, tested.vocabulary(), static_cast<std::size_t>(rows)), {}, false};
        if (lane != round) window.parents = ops::random_tree(random, rows);
        windows.push_back(window);
      }
      const auto logits = tested.pass(windows);
      for (std::size_t w = 0; w < windows.size(); ++w) {
        Lanes::Window window = windows[w];
        if (window.parents.empty()) window.parents = chain(static_cast<std::int32_t>(window.tokens.size()));
        auto& history = committed[static_cast<std::size_t>(window.lane)];
        const auto rows = static_cast<std::int32_t>(window.tokens.size());
        for (std::int32_t leaf = 0; leaf < rows; ++leaf) {
          if (!ops::is_leaf(window.parents, leaf)) continue;
          const auto path = ops::path_to(window.parents, leaf);
          auto tokens = history;
          for (const std::int32_t row : path) tokens.push_back(window.tokens[static_cast<std::size_t>(row)]);
          const auto expected = serial(plain, tokens, history.size());
          for (std::size_t i = 0; i < path.size(); ++i) {
            ASSERT_TRUE(same_row(logits[w], static_cast<std::size_t>(path[i]), expected, history.size() + i,
                                 tested.vocabulary()))
                << backend.name << ", round " << round << ", lane " << window.lane << ", row " << path[i];
          }
        }
        const auto path = ops::path_to(window.parents, draw(rows));
        tested.accept(window.lane, path);
        for (const std::int32_t row : path) history.push_back(window.tokens[static_cast<std::size_t>(row)]);
      }
    }
  }
}

TEST_P(Windows, WideChainsAndSnapshots) {
  for (const BackendCase& backend : test::backend_variants()) {
    Lanes tested = lanes(backend), plain = lanes(backend);
    std::mt19937 random(6);
    const std::size_t vocabulary = static_cast<std::size_t>(tested.vocabulary());
    auto tokens = random_tokens(random, tested.vocabulary(), 40 + kWideRows);
    const auto expected = serial(plain, tokens, 40);
    const auto prompt_end = tokens.begin() + 40;
    tested.pass({{0, {tokens.begin(), prompt_end}, {}, true}});
    const auto wide = tested.pass({{0, {prompt_end, tokens.end()}, {}, false}})[0];
    for (std::size_t row = 0; row < kWideRows; ++row) {
      ASSERT_TRUE(same_row(wide, row, expected, 40 + row, tested.vocabulary())) << backend.name << ", row " << row;
    }
    // 70 rows are right; the stream is settled, copied, and both carry on with a tree.
    std::vector<std::int32_t> path(70);
    std::iota(path.begin(), path.end(), 0);
    tested.accept(0, path);
    tested.settle(0);
    tested.copy_through_host(0, 2);
    const std::vector<std::int32_t> parents = {-1, 0, 0, 1, 2, 2};
    const auto drafts = random_tokens(random, tested.vocabulary(), parents.size());
    const auto trees = tested.pass({{2, drafts, parents, false}, {0, drafts, parents, false}});
    tokens.resize(110);
    for (const std::int32_t row : {0, 2, 5}) tokens.push_back(drafts[static_cast<std::size_t>(row)]);
    const auto after = serial(plain, tokens, 110);
    for (const auto& logits : trees) {
      ASSERT_EQ(logits.size(), parents.size() * vocabulary);
      ASSERT_TRUE(same_row(logits, 5, after, 112, tested.vocabulary())) << backend.name;
    }
  }
}

TEST_P(Windows, APendingTreeIsCopiedWithItsSlot) {
  const BackendCase backend = test::backend_variants().front();
  Lanes tested = lanes(backend), plain = lanes(backend);
  std::mt19937 random(8);
  auto tokens = random_tokens(random, tested.vocabulary(), 60);
  tested.pass({{0, tokens, {}, true}});
  const auto drafts = random_tokens(random, tested.vocabulary(), 7);
  tested.pass({{0, drafts, {-1, 0, 0, 1, 2, 2, 5}, false}});
  tested.accept(0, {0, 2, 5});
  tested.copy(0, 1);
  const auto next = random_tokens(random, tested.vocabulary(), 3);
  const auto logits = tested.pass({{1, next, {}, false}, {0, next, {}, false}});
  for (const std::size_t row : {0u, 2u, 5u}) tokens.push_back(drafts[row]);
  tokens.insert(tokens.end(), next.begin(), next.end());
  const auto expected = serial(plain, tokens, 60);
  for (const auto& lane : logits) {
    for (std::size_t row = 0; row < 3; ++row) {
      ASSERT_TRUE(same_row(lane, row, expected, 63 + row, tested.vocabulary())) << row;
    }
  }
}

TEST_P(Windows, FactsCountWhatSlotsHold) {
  Lanes tested = lanes(test::backend_variants().front());
  const ModelFacts& facts = tested.model().facts();
  EXPECT_EQ(facts.window_rows_max, limits::kWideWindowRowsMax);
  std::uint64_t state = 0;
  for (const CacheGroup& group : facts.groups) {
    EXPECT_EQ(group.slot_bytes > 0, !group.draft);  // drafters run chains, which wait nowhere
    EXPECT_EQ(group.slot_window_row_bytes > 0, group.kind == CacheKind::kRecurrent);
    if (group.kind == CacheKind::kRecurrent) state += group.slot_bytes;
  }
  EXPECT_EQ(tested.model().slot_state_bytes(), state);
}

INSTANTIATE_TEST_SUITE_P(Models, Windows, testing::ValuesIn(test::golden_case_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tensorfold
