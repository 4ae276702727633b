// A fixed set of compute threads that run one parallel loop at a time. It exists because results must not depend on the
// number of threads: work is cut into items by the caller, every item is computed whole by one thread, and no thread
// count ever enters the arithmetic. Threads spin briefly between loops, as a forward pass is hundreds of short ones.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tensorfold {

class ThreadPool {
 public:
  static constexpr std::int64_t kItemsMax = (1 << 20) - 4096;

  /// `threads` counts the calling thread, so 1 starts no other. `on_start` runs once on every compute thread, the
  /// caller's included when it enters a loop for the first time (backends set the denormal mode there).
  explicit ThreadPool(int threads, std::function<void()> on_start = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int thread_count() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(item, thread) once for each item in [0, items); thread is in [0, thread_count()). Blocks until all are
  /// done. Items are handed out dynamically, and the caller waits for items only, never for a thread that has none: on a
  /// busy machine a thread that isn't scheduled delays nobody. One caller at a time; not reentrant. When bodies throw, all
  /// items are still handed out, and one of the exceptions comes out of the call. At most kItemsMax items.
  void parallel_for(std::int64_t items, const std::function<void(std::int64_t item, int thread)>& body);

 private:
  void worker_loop(int thread);
  void run_items(int thread);
  void note_failure();

  std::vector<std::thread> workers_;
  std::function<void()> on_start_;
  const std::function<void(std::int64_t, int)>* body_ = nullptr;
  /// Loop number, its item count and its next item in one word, so that taking an item and knowing that it exists is a
  /// single step. `body_` may be read by whoever holds an item, because its loop can't end before that item is done.
  alignas(64) std::atomic<std::uint64_t> ticket_{0};
  alignas(64) std::atomic<std::int64_t> items_done_{0};
  alignas(64) std::atomic<bool> stopping_{false};
  std::atomic<int> sleeping_{0};
  std::exception_ptr failure_;  // of the loop that runs
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace tensorfold
