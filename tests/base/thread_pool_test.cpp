// ThreadPool: every item exactly once, for any thread count, over many short loops.
#include "base/thread_pool.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tensorfold
