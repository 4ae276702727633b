// The tree of kept prefixes alone: what it finds, what it shares, what it gives up.
#include "engine/cache/prefix_tree.h"

#include <gtest/gtest.h>

#include <random>

#include "fake_model.h"

namespace tensorfold {
namespace {

using testing::FakeModel;
using testing::FakeModelOptions;
using Tokens = std::vector<std::int32_t>;

constexpr std::int32_t kPages = 200, kSlots = 9, kPassRows = 48;

/// A model, its pool and a tree over them; streams are bare StreamCaches.
struct World {
  explicit World(FakeModelOptions options, std::int32_t budget_pages = 100, std::int32_t snapshots = 100)
      : model(options), counts(model.facts().groups.size(), kPages) {
    model.allocate_caches(counts, kSlots, 16);
    pool = std::make_unique<PagePool>(model, counts, kSlots, true);
    PrefixBudget budget;
    budget.page_counts.assign(counts.size(), budget_pages);
    budget.snapshot_bytes = static_cast<std::uint64_t>(snapshots) * model.slot_state_bytes();
    budget.bytes = 1;
    tree = std::make_unique<PrefixTree>(model, *pool, budget);
    pool->set_reclaimer([this](std::int32_t group) { return tree->reclaim(group); });
  }
  std::shared_ptr<StateSnapshot> snapshot() {
    if (!tree->is_recurrent()) return nullptr;
    return snapshots.take();
  }
  /// A stream that feeds `tokens` from `begin` in slices and keeps the whole as a resume point.
  bool run(const std::string& scope, const Tokens& tokens, std::int32_t begin = 0) {
    StreamCache cache;
    const PrefixMatch match = tree->match(scope, tokens, begin);
    EXPECT_EQ(match.prefix.position, begin);
    EXPECT_TRUE(cache.admit(*pool, model.facts().groups, static_cast<std::int32_t>(tokens.size()) + 64, kPassRows,
                            begin > 0 ? &match.prefix : nullptr));
    const std::int32_t end = static_cast<std::int32_t>(tokens.size());
    for (std::int32_t at = begin; at < end; at += 20) cache.prepare(at, std::min(20, end - at));
    return tree->keep(scope, tokens, cache.tables(), true, snapshot());
  }
  void expect_all_free() {
    tree->clear();
    for (std::size_t g = 0; g < counts.size(); ++g) {
      EXPECT_EQ(pool->unreserved(static_cast<std::int32_t>(g)), kPages - 1) << "group " << g;
      EXPECT_EQ(tree->pages_held(static_cast<std::int32_t>(g)), 0);
    }
    EXPECT_EQ(tree->snapshot_bytes_held(), 0u);
    EXPECT_EQ(pool->free_slots(), kSlots - 1);
  }

  FakeModel model;
  SnapshotPool snapshots{model};
  std::vector<std::int32_t> counts;
  std::unique_ptr<PagePool> pool;
  std::unique_ptr<PrefixTree> tree;
};

FakeModelOptions kind(bool recurrent, bool sliding) {
  FakeModelOptions options;
  options.has_recurrent = recurrent;
  options.has_sliding = sliding;
  return options;
}

Tokens count_up(std::int32_t length, std::int32_t first = 0) {
  Tokens tokens;
  for (std::int32_t i = 0; i < length; ++i) tokens.push_back((first + i * 7) % 53);
  return tokens;
}

Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(PrefixTree, ResumesAPlainModelAtAnyToken) {
  World world(kind(false, false));
  const Tokens tokens = count_up(200);
  EXPECT_EQ(world.tree->match("a", tokens, 200).prefix.position, 0);
  ASSERT_TRUE(world.run("a", tokens));
  for (const std::int32_t most : {1, 63, 64, 65, 127, 128, 199, 200}) {
    const PrefixMatch match = world.tree->match("a", tokens, most);
    EXPECT_EQ(match.matched, 200);
    EXPECT_EQ(match.prefix.position, most);
    ASSERT_EQ(match.prefix.tables[0].size(), static_cast<std::size_t>((most - 1) / 64 + 1));
  }
  Tokens other = tokens;
  other[130] ^= 1;
  EXPECT_EQ(world.tree->match("a", other, 200).prefix.position, 130);
  EXPECT_EQ(world.tree->match("b", tokens, 200).prefix.position, 0) << "another owner's";
  world.expect_all_free();
}

TEST(PrefixTree, ARecurrentModelResumesAtSnapshotsOnly) {
  World world(kind(true, false));
  const Tokens tokens = count_up(300);
  ASSERT_TRUE(world.run("a", Tokens(tokens.begin(), tokens.begin() + 100)));
  ASSERT_TRUE(world.run("a", Tokens(tokens.begin(), tokens.begin() + 110), 100));
  ASSERT_TRUE(world.run("a", tokens, 110));
  EXPECT_EQ(world.tree->node_count(), 7u);  // five blocks, and two that end at 100 and 110
  const std::vector<std::pair<std::int32_t, std::int32_t>> expected = {{300, 300}, {299, 110}, {110, 110},
                                                                       {109, 100}, {100, 100}, {99, 0}};
  for (const auto& [most, position] : expected) {
    const PrefixMatch match = world.tree->match("a", tokens, most);
    EXPECT_EQ(match.prefix.position, position) << "up to " << most;
    EXPECT_EQ(match.snapshot != nullptr, position > 0);
  }
  world.expect_all_free();
}

TEST(PrefixTree, ASlidingModelResumesWhereTheWindowIsHeld) {
  World world(kind(false, true));  // a window of 40
  const Tokens tokens = count_up(640);
  ASSERT_TRUE(world.run("a", Tokens(tokens.begin(), tokens.begin() + 200)));
  ASSERT_TRUE(world.run("a", tokens, 200));
  EXPECT_LT(world.tree->pages_held(1), 6);
  EXPECT_EQ(world.tree->pages_held(0), 11);
  EXPECT_EQ(world.tree->match("a", tokens, 640).prefix.position, 640);
  EXPECT_EQ(world.tree->match("a", tokens, 639).prefix.position, 639);
  EXPECT_EQ(world.tree->match("a", tokens, 570).prefix.position, 200);  // keys 531.. lie in a block that isn't held
  for (const std::int32_t most : {200, 199, 195}) {
    const PrefixMatch match = world.tree->match("a", tokens, most);
    EXPECT_EQ(match.prefix.position, most);
    const PageTable& table = match.prefix.tables[1];
    for (std::int32_t block = std::max(most - 39, 0) / 64; block <= (most - 1) / 64; ++block) {
      EXPECT_GT(table[static_cast<std::size_t>(block)], 0);
    }
  }
  world.expect_all_free();
}

TEST(PrefixTree, AnUncutRangeIsNotResumedInside) {
  World world(kind(false, false));
  const Tokens tokens = count_up(200);
  ASSERT_TRUE(world.run("a", tokens));
  const PrefixTree::Range image{100, 140};
  const std::span<const PrefixTree::Range> ranges(&image, 1);
  EXPECT_EQ(world.tree->match("a", tokens, 200, ranges).prefix.position, 200);
  EXPECT_EQ(world.tree->match("a", tokens, 140, ranges).prefix.position, 140);
  EXPECT_EQ(world.tree->match("a", tokens, 139, ranges).prefix.position, 100);
  EXPECT_EQ(world.tree->match("a", tokens, 100, ranges).prefix.position, 100);
}

TEST(PrefixTree, WhatIsUsedOutlivesWhatIsNot) {
  World world(kind(false, false), 12);
  const Tokens system = count_up(128, 1);
  const Tokens liked = joined(system, count_up(64, 5)), other = joined(system, count_up(64, 17));
  ASSERT_TRUE(world.run("a", liked));
  ASSERT_TRUE(world.run("a", other, 128));
  for (int i = 0; i < 4; ++i) world.tree->touch("a", liked, world.tree->match("a", liked, 192));
  for (std::int32_t i = 0; i < 4; ++i) ASSERT_TRUE(world.run("a", count_up(256, 19 + i)));
  EXPECT_LE(world.tree->pages_held(0), 12);
  EXPECT_EQ(world.tree->match("a", liked, 192).prefix.position, 192);
  EXPECT_EQ(world.tree->match("a", other, 192).prefix.position, 128);
  world.expect_all_free();
}

TEST(PrefixTree, OfAPromptBeyondTheBudgetTheHeadIsKept) {
  World world(kind(false, false), 3);
  const Tokens tokens = count_up(640);
  EXPECT_FALSE(world.run("a", tokens));
  EXPECT_GE(world.tree->match("a", tokens, 640).prefix.position, 64);
  EXPECT_LE(world.tree->pages_held(0), 3);
  World recurrent(kind(true, true), 3);
  EXPECT_FALSE(recurrent.run("a", tokens));  // its end is all that it could be resumed from
  EXPECT_EQ(recurrent.tree->node_count(), 0u);
  world.expect_all_free();
  recurrent.expect_all_free();
}

TEST(PrefixTree, SnapshotsHaveABudgetOfTheirOwn) {
  World world(kind(true, false), 100, 2);
  const Tokens tokens = count_up(400);
  for (const std::int32_t end : {100, 200, 300, 400}) {
    const std::int32_t begin = world.tree->match("a", tokens, end).prefix.position;
    ASSERT_TRUE(world.run("a", Tokens(tokens.begin(), tokens.begin() + end), begin));
  }
  EXPECT_EQ(world.tree->snapshot_bytes_held(), 2 * world.model.slot_state_bytes());
  EXPECT_EQ(world.tree->match("a", tokens, 400).prefix.position, 400);
  world.expect_all_free();
}

TEST(PrefixTree, AStreamThatNeedsRoomGetsIt) {
  World world(kind(false, false), kPages - 1);
  for (std::int32_t i = 0; i < 40; ++i) world.run("a", count_up(320, i));
  const std::int32_t held = world.tree->pages_held(0);
  EXPECT_GT(held, 150);
  StreamCache cache;
  ASSERT_TRUE(cache.admit(*world.pool, world.model.facts().groups, 64 * (kPages - 1), kPassRows));
  EXPECT_EQ(world.tree->pages_held(0), 0);
  cache.release();
  world.expect_all_free();
}

TEST(StreamCache, CopiesASharedPageBeforeItWritesIt) {
  World world(kind(false, true));
  const Tokens tokens = count_up(100);
  StreamCache writer;
  ASSERT_TRUE(writer.admit(*world.pool, world.model.facts().groups, 200, kPassRows));
  for (std::int32_t at = 0; at < 100; at += 20) writer.prepare(at, 20);
  ASSERT_TRUE(world.tree->keep("a", tokens, writer.tables(), true, nullptr));
  const std::int32_t whole = writer.tables()[0][0], part = writer.tables()[0][1];
  EXPECT_EQ(world.pool->references(0, part), 2);
  writer.prepare(100, 1);
  EXPECT_EQ(writer.tables()[0][0], whole);
  EXPECT_NE(writer.tables()[0][1], part);
  EXPECT_EQ(world.model.pages_copied, 2);  // one a group
  const PrefixMatch match = world.tree->match("a", tokens, 99);
  EXPECT_EQ(match.prefix.tables[0][1], part);
  StreamCache reader;
  ASSERT_TRUE(reader.admit(*world.pool, world.model.facts().groups, 200, kPassRows, &match.prefix));
  EXPECT_EQ(world.pool->references(0, part), 2);
  EXPECT_EQ(world.pool->references(0, whole), 3);
  reader.prepare(99, 1);
  EXPECT_EQ(world.pool->references(0, part), 1);
  writer.release();
  reader.release();
  world.expect_all_free();
}

/// Random streams on a pool that holds the lanes' promise and the budget and not a page more: nothing ever fails.
TEST(StreamCache, ThePromiseHoldsWhateverIsShared) {
  std::mt19937 random(7);
  const auto draw = [&random](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  for (int round = 0; round < 12; ++round) {
    FakeModel model(kind(false, round % 2 == 0));
    const std::int32_t lanes = 3, context = 400, rows = 30, cached = draw(0, 9);
    const auto& groups = model.facts().groups;
    std::vector<std::int32_t> counts;
    for (const CacheGroup& group : groups)
      counts.push_back(1 + lanes * stream_pages_max(group, context, rows) + cached);
    model.allocate_caches(counts, lanes + 1, 16);
    PagePool pool(model, counts, lanes + 1, true);
    PrefixBudget budget;
    budget.page_counts.assign(groups.size(), cached);
    budget.bytes = 1;
    PrefixTree tree(model, pool, budget);
    pool.set_reclaimer([&tree](std::int32_t group) { return tree.reclaim(group); });
    struct Running {
      StreamCache cache;
      Tokens tokens;
      std::int32_t fed = 0;
    };
    std::vector<std::unique_ptr<Running>> running;
    for (int step = 0; step < 3000; ++step) {
      if (static_cast<std::int32_t>(running.size()) < lanes && draw(0, 3) == 0) {
        auto stream = std::make_unique<Running>();
        stream->tokens = joined(count_up(draw(1, 4) * 50, draw(0, 1)), count_up(draw(1, 200), draw(0, 2)));
        const PrefixMatch match = tree.match("a", stream->tokens, static_cast<std::int32_t>(stream->tokens.size()) - 1);
        const bool resumes = match.prefix.position > 0 && draw(0, 4) > 0;
        ASSERT_TRUE(stream->cache.admit(pool, groups, context, rows, resumes ? &match.prefix : nullptr));
        if (resumes) stream->fed = match.prefix.position;
        running.push_back(std::move(stream));
      }
      if (running.empty()) continue;
      const std::size_t which = static_cast<std::size_t>(draw(0, static_cast<int>(running.size()) - 1));
      Running& stream = *running[which];
      const std::int32_t left = static_cast<std::int32_t>(stream.tokens.size()) - stream.fed;
      const std::int32_t count = std::min(left, draw(1, rows));
      if (count > 0) {
        stream.cache.prepare(stream.fed, count);
        stream.fed += count;
      }
      if (draw(0, 2) == 0) {
        tree.keep("a", PrefixTree::Elements(stream.tokens).first(static_cast<std::size_t>(stream.fed)),
                  stream.cache.tables(), true, nullptr);
      }
      if (left == count || draw(0, 30) == 0) {
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(which));
      }
    }
    running.clear();
    tree.clear();
    for (std::size_t g = 0; g < counts.size(); ++g) {
      EXPECT_EQ(pool.unreserved(static_cast<std::int32_t>(g)), counts[g] - 1);
    }
  }
}

/// Against a plain list of what was kept: with room for all, the tree finds what the list finds.
TEST(PrefixTree, FindsWhatAListFinds) {
  std::mt19937 random(11);
  const auto draw = [&random](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  for (int round = 0; round < 20; ++round) {
    World world(kind(round % 2 == 1, false), kPages - 1);
    std::vector<Tokens> kept;
    for (int step = 0; step < 12; ++step) {
      Tokens tokens;
      if (!kept.empty() && draw(0, 3) > 0) {
        const Tokens& from = kept[static_cast<std::size_t>(draw(0, static_cast<int>(kept.size()) - 1))];
        tokens.assign(from.begin(), from.begin() + draw(1, static_cast<int>(from.size())));
      }
      tokens = joined(tokens, count_up(draw(1, 150), draw(0, 52)));
      std::int32_t expected = 0;
      for (const Tokens& each : kept) {
        std::int32_t common = 0;
        while (common < static_cast<std::int32_t>(std::min(each.size(), tokens.size())) &&
               each[static_cast<std::size_t>(common)] == tokens[static_cast<std::size_t>(common)]) {
          ++common;
        }
        const bool whole = common == static_cast<std::int32_t>(each.size());
        expected = std::max(expected, world.tree->is_recurrent() && !whole ? 0 : common);
      }
      const std::int32_t most = static_cast<std::int32_t>(tokens.size());
      ASSERT_EQ(world.tree->match("a", tokens, most).prefix.position, expected);
      ASSERT_TRUE(world.run("a", tokens, expected));
      kept.push_back(tokens);
    }
    world.expect_all_free();
  }
}

}  // namespace
}  // namespace tensorfold
