// Memory of snapshots: it is handed on, never shared, and the host only writes it when no copy is queued.
#include "engine/cache/snapshot_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <new>
#include <set>
#include <thread>
#include <vector>

#include "fake_model.h"

namespace tensorfold {
namespace {

testing::FakeModelOptions recurrent() {
  testing::FakeModelOptions options;
  options.has_recurrent = true;
  return options;
}

/// Knows what memory it gave, and gives no more than that.
class WatchedModel : public testing::FakeModel {
 public:
  using FakeModel::FakeModel;
  std::shared_ptr<std::byte[]> allocate_snapshot() override {
    if (given.size() == given_max) throw std::bad_alloc();
    auto memory = LanguageModel::allocate_snapshot();
    given.push_back(memory);
    return memory;
  }
  std::vector<std::weak_ptr<std::byte[]>> given;
  std::size_t given_max = 100;
};

TEST(SnapshotPool, MemoryServesOneSnapshotAfterTheOther) {
  testing::FakeModel model(recurrent());
  SnapshotPool pool(model);
  auto first = pool.take(), second = pool.take();
  EXPECT_EQ(first->size(), model.slot_state_bytes());
  EXPECT_NE(first->data(), second->data());
  const std::byte* memory = first->data();
  first.reset();
  const auto third = pool.take();
  EXPECT_EQ(third->data(), memory);
  EXPECT_NE(pool.take()->data(), memory);
}

TEST(SnapshotPool, WhatIsPreparedIsUsedAndTrimmingLetsGoOfIt) {
  WatchedModel watched(recurrent());
  SnapshotPool pool(watched);
  pool.prepare(3);
  ASSERT_EQ(watched.given.size(), 3u);
  auto held = pool.take();
  EXPECT_EQ(watched.given.size(), 3u);
  pool.trim();
  int alive = 0;
  for (const auto& memory : watched.given) alive += memory.expired() ? 0 : 1;
  EXPECT_EQ(alive, 1);
  const std::byte* memory = held->data();
  held.reset();
  EXPECT_EQ(pool.take()->data(), memory);
}

TEST(SnapshotPool, TheLeastWorthMakesWay) {
  WatchedModel model(recurrent());
  SnapshotPool pool(model);
  std::vector<std::shared_ptr<StateSnapshot>> held;
  int reclaimed = 0;
  pool.set_reclaimer(3, [&] {
    if (held.empty()) return false;
    held.erase(held.begin());
    ++reclaimed;
    return true;
  });
  for (int i = 0; i < 5; ++i) held.push_back(pool.take());
  EXPECT_EQ(model.given.size(), 3u);  // as many as may be, then one for another
  EXPECT_EQ(reclaimed, 2);
  const auto writing = held.front();  // on its way to the disk, whatever the tree lets go of
  held.push_back(pool.take());
  EXPECT_EQ(model.given.size(), 4u);
  EXPECT_EQ(reclaimed, 3);

  // No memory for one more: the same way, and where there is nothing to let go of the caller hears of it.
  SnapshotPool scarce(model);
  model.given_max = model.given.size() + 1;
  std::vector<std::shared_ptr<StateSnapshot>> kept{scarce.take()};
  scarce.set_reclaimer(10, [&] {
    if (kept.empty()) return false;
    kept.pop_back();
    return true;
  });
  const auto another = scarce.take();
  EXPECT_TRUE(kept.empty());
  EXPECT_THROW(scarce.take(), std::bad_alloc);
}

TEST(SnapshotPool, TheHostWritesAfterQueuedCopiesAlone) {
  testing::FakeModel model(recurrent());
  model.allocate_caches(std::vector<std::int32_t>(model.facts().groups.size(), 4), 3, 1);
  SnapshotPool pool(model);
  {
    const auto snapshot = pool.take();
    model.read_slot(1, snapshot->data());  // queued, and given up before it has run
  }
  const std::vector<std::byte> bytes(model.slot_state_bytes(), std::byte{7});
  const auto filled = pool.take_filled(bytes.data(), bytes.size());
  model.finish_copies();
  EXPECT_EQ(std::memcmp(filled->data(), bytes.data(), bytes.size()), 0);
}

TEST(SnapshotPool, SnapshotsOutliveThePoolAndEndOnAnyThread) {
  testing::FakeModel model(recurrent());
  auto pool = std::make_unique<SnapshotPool>(model);
  std::set<const std::byte*> places;
  std::vector<std::shared_ptr<StateSnapshot>> snapshots;
  for (int i = 0; i < 8; ++i) {
    snapshots.push_back(pool->take());
    EXPECT_TRUE(places.insert(snapshots.back()->data()).second);
  }
  std::vector<std::thread> threads;
  for (auto& snapshot : snapshots) {
    threads.emplace_back([snapshot = std::move(snapshot)]() mutable {
      std::memset(snapshot->data(), 1, snapshot->size());
      snapshot.reset();
    });
  }
  pool.reset();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tensorfold
