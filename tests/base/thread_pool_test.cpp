// ThreadPool: every item exactly once, for any thread count, over many short loops.
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace tensorfold {
namespace {

TEST(ThreadPool, RunsEveryItemOnceInManyLoops) {
  for (int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    for (int loop = 0; loop < 2000; ++loop) {
      const int items = loop % 37;
      std::vector<std::atomic<int>> counts(static_cast<std::size_t>(items) + 1);
      pool.parallel_for(items, [&](std::int64_t item, int thread) {
        ASSERT_LT(thread, threads);
        counts[static_cast<std::size_t>(item)].fetch_add(1);
      });
      for (int item = 0; item < items; ++item) ASSERT_EQ(counts[static_cast<std::size_t>(item)].load(), 1);
    }
  }
}

// Threads that sleep must be found by the next loop, and a loop must see only its own items.
TEST(ThreadPool, WakesSleepersAndKeepsLoopsApart) {
  ThreadPool pool(3);
  for (int loop = 0; loop < 50; ++loop) {
    if (loop % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<std::int64_t> sum{0};
    pool.parallel_for(100 + loop, [&](std::int64_t item, int) { sum.fetch_add(item + 1); });
    const std::int64_t count = 100 + loop;
    ASSERT_EQ(sum.load(), count * (count + 1) / 2);
  }
}

}  // namespace
}  // namespace tensorfold
