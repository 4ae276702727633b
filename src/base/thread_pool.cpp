#include "base/thread_pool.h"

#include "base/error.h"

namespace tensorfold {
namespace {

// About 20-50 us of spinning: longer than the gaps between the loops of one pass, short beside a scheduler tick.
constexpr int kSpinsBeforeSleep = 4000;

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads, std::function<void()> on_start) : on_start_(std::move(on_start)) {
  TF_ASSERT(threads >= 1);
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { worker_loop(thread); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_.store(true);
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run_items(int thread) {
  for (;;) {
    const std::int64_t item = next_item_.fetch_add(1, std::memory_order_relaxed);
    if (item >= items_) return;
    (*body_)(item, thread);
  }
}

void ThreadPool::worker_loop(int thread) {
  if (on_start_) on_start_();
  std::uint64_t seen = 0;
  for (;;) {
    int spins = 0;
    while (generation_.load(std::memory_order_acquire) == seen) {
      if (stopping_.load(std::memory_order_relaxed)) return;
      if (++spins < kSpinsBeforeSleep) {
        cpu_relax();
        continue;
      }
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_.load() || generation_.load(std::memory_order_acquire) != seen; });
    }
    if (stopping_.load(std::memory_order_relaxed)) return;
    seen = generation_.load(std::memory_order_acquire);
    run_items(thread);
    running_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

void ThreadPool::parallel_for(std::int64_t items, const std::function<void(std::int64_t, int)>& body) {
  if (items <= 0) return;
  // The caller's mode is set on every entry: it may be any of the process's threads and the call costs nanoseconds.
  if (on_start_) on_start_();
  if (workers_.empty() || items == 1) {
    for (std::int64_t item = 0; item < items; ++item) body(item, 0);
    return;
  }
  body_ = &body;
  items_ = items;
  next_item_.store(0, std::memory_order_relaxed);
  running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  run_items(0);
  // A worker leaves the loop only after its last item, so when all have left, every item is done and `body` may die.
  int spins = 0;
  while (running_.load(std::memory_order_acquire) != 0) {
    if (++spins < kSpinsBeforeSleep) {
      cpu_relax();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace tensorfold
