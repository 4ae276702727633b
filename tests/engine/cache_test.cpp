// Page and slot allocation, sliding windows, capacity.
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "engine/cache/stream_cache.h"
#include "engine/capacity.h"
#include "fake_model.h"

namespace tensorfold {
namespace {

using testing::FakeModel;

TEST(PagePool, ReservesHandsOutAndTakesBack) {
  FakeModel model;
  model.allocate_caches({6, 1, 3}, 3, 16);
  PagePool pool(model, {6, 1, 3}, 3, true);
  EXPECT_EQ(pool.unreserved(0), 5);
  EXPECT_TRUE(pool.reserve(0, 3));
  EXPECT_FALSE(pool.reserve(0, 3));
  std::set<std::int32_t> pages = {pool.take_reserved(0), pool.take_reserved(0), pool.take_reserved(0)};
  EXPECT_EQ(pages.size(), 3u);
  EXPECT_EQ(pages.count(0), 0u);
  EXPECT_EQ(pool.unreserved(0), 2);
  const std::int32_t page = *pages.begin();
  pool.add_reference(0, page);
  EXPECT_FALSE(pool.release(0, page));
  EXPECT_TRUE(pool.release(0, page));
  EXPECT_EQ(pool.unreserved(0), 3);
  const std::int32_t one = pool.take_slot(), two = pool.take_slot();
  EXPECT_TRUE(one > 0 && two > 0 && one != two);
  EXPECT_EQ(pool.take_slot(), 0);
  pool.release_slot(one);
  EXPECT_EQ(pool.take_slot(), one);
}

TEST(StreamCache, SlidingGroupsReleaseWhatNoRowSees) {
  FakeModel model;  // group 2 slides with a window of 40
  const std::int32_t rows = 48, tokens = 2000;
  const std::int32_t most = stream_pages_max(model.facts().groups[2], tokens, rows);
  EXPECT_EQ(most, 3);  // 87 keys, at any offset
  model.allocate_caches({33, 1, 1 + most}, 2, 16);
  PagePool pool(model, {33, 1, 1 + most}, 2, false);
  StreamCache cache;
  ASSERT_TRUE(cache.admit(pool, model.facts().groups, tokens, rows));
  StreamCache second;
  EXPECT_FALSE(second.admit(pool, model.facts().groups, 64, rows));
  EXPECT_FALSE(second.is_admitted());
  for (std::int32_t position = 0, step = 1; position < tokens; position += step, step = 1 + step * 7 % rows) {
    const std::int32_t count = std::min(step, tokens - position);
    cache.prepare(position, count);
    const PageTable& table = cache.tables()[2];
    ASSERT_EQ(static_cast<std::int32_t>(table.size()), (position + count - 1) / 64 + 1);
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(table.size()); ++i) {
      const bool visible = 64 * i + 63 >= position - 39;
      ASSERT_EQ(table[static_cast<std::size_t>(i)] > 0, visible) << "page " << i << " at " << position;
    }
  }
  cache.release();
  EXPECT_EQ(pool.unreserved(0), 32);
  EXPECT_EQ(pool.unreserved(2), most);
  EXPECT_EQ(pool.free_slots(), 1);
}

ModelFacts facts_of(std::int32_t context_max, std::uint64_t page_bytes) {
  ModelFacts facts;
  facts.vocabulary_size = 100;
  facts.context_max = context_max;
  facts.pass_rows_max = 512;
  facts.groups = {{CacheKind::kFull, 1, 0, page_bytes, 0}, {CacheKind::kRecurrent, 1, 0, 0, 1 << 20}};
  return facts;
}

EngineOptions options_of(std::int32_t lanes, std::int32_t context, std::uint64_t memory) {
  EngineOptions options;
  options.lanes = lanes;
  options.context = context;
  options.cache_memory_bytes = memory;
  return options;
}

TEST(Capacity, AutoTakesEightLanesOfTheModelsContextWhenTheyFit) {
  const Capacity capacity = plan_capacity(facts_of(32768, 64 << 10), options_of(0, 0, 0), {64ull << 30, true});
  EXPECT_EQ(capacity.lanes, 8);
  EXPECT_EQ(capacity.context, 32768);
  EXPECT_EQ(capacity.page_counts[0], 1 + 8 * 512);
  EXPECT_EQ(capacity.slot_count, 9);
  EXPECT_FALSE(capacity.context_was_reduced);
}

TEST(Capacity, AutoShrinksTheContextThenTheLanes) {
  // 1 MiB a page: 8192 tokens are 128 MiB a lane.
  const ModelFacts facts = facts_of(131072, 1 << 20);
  const Capacity wide = plan_capacity(facts, options_of(0, 0, 4ull << 30), {});
  EXPECT_EQ(wide.lanes, 8);
  EXPECT_GE(wide.context, 8192);
  EXPECT_TRUE(wide.context_was_reduced);
  EXPECT_LE(wide.cache_bytes, 4ull << 30);
  const Capacity narrow = plan_capacity(facts, options_of(0, 0, 300ull << 20), {});
  EXPECT_EQ(narrow.lanes, 2);
  EXPECT_GE(narrow.context, 8192);
}

TEST(Capacity, ExplicitValuesAreHonouredOrRefusedWithAdvice) {
  const ModelFacts facts = facts_of(131072, 1 << 20);
  const Capacity exact = plan_capacity(facts, options_of(3, 6400, (3 * 101 + 2) << 20), {});
  EXPECT_EQ(exact.lanes, 3);
  EXPECT_EQ(exact.context, 6400);
  try {
    plan_capacity(facts, options_of(3, 6401, (3 * 101 + 2) << 20), {});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    EXPECT_NE(std::string(error.what()).find("--parallel 2"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("--context 6400"), std::string::npos) << error.what();
  }
  EXPECT_THROW(plan_capacity(facts, options_of(257, 64, 1ull << 40), {}), Error);
  EXPECT_THROW(plan_capacity(facts, options_of(1, 131073, 1ull << 40), {}), Error);
  EXPECT_THROW(plan_capacity(facts, options_of(-1, 0, 1ull << 40), {}), Error);
  EXPECT_THROW(plan_capacity(facts, options_of(0, 0, 1 << 20), {}), Error);  // not even one page
}

TEST(Capacity, AGpusMemoryIsPlannedAlmostWhole) {
  constexpr std::uint64_t kMemory = 4ull << 30;
  const ModelFacts facts = facts_of(131072, 1 << 20);
  EngineOptions with_prefixes = options_of(0, 0, 0);
  with_prefixes.prompt_cache_bytes = -1;
  const Capacity automatic = plan_capacity(facts, with_prefixes, {kMemory, false});
  EXPECT_EQ(automatic.lanes, 8);
  EXPECT_GT(automatic.cache_bytes, kMemory / 3 * 2);
  EXPECT_LE(automatic.cache_bytes, kMemory / 4 * 3);
  // Pages of kept prefixes take their share of the rest; their states lie on the host.
  const std::uint64_t kept = automatic.prefix_budget.bytes - automatic.prefix_budget.snapshot_bytes;
  EXPECT_GT(kept, kMemory / 16);
  EXPECT_LE(automatic.cache_bytes + kept, kMemory);

  const Capacity explicit_values = plan_capacity(facts, options_of(1, 131072, 0), {kMemory, false});
  EXPECT_EQ(explicit_values.context, 131072);  // more than half of it
  EXPECT_LE(explicit_values.cache_bytes, kMemory);
  try {
    plan_capacity(facts, options_of(2, 131072, 0), {kMemory, false});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    EXPECT_NE(std::string(error.what()).find("the GPU leaves it"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("--parallel 1"), std::string::npos) << error.what();
  }
}

TEST(Capacity, SizesThatOverflowAreRefused) {
  ModelFacts facts = facts_of(1 << 22, 1ull << 60);
  EXPECT_THROW(plan_capacity(facts, options_of(8, 1 << 22, 1ull << 62), {}), Error);
}

}  // namespace
}  // namespace tensorfold
