#include "base/thread_pool.h"

#include <chrono>
#include <utility>

#include "base/cpu_relax.h"
#include "base/error.h"

namespace tensorfold {
namespace {

// How long a thread without work spins before it sleeps: longer than what lies between two passes (drawing tokens, planning
// the next one), because waking a sleeping thread of a virtual machine costs more than that.
constexpr auto kSpinTime = std::chrono::milliseconds(2);
constexpr int kSpinsBetweenClockReads = 256;
constexpr int kSpinsBeforeYield = 4000;  // of the caller, which waits for items that are being computed

// The ticket: 24 bits of loop number, 20 of item count, 20 of next item.
constexpr std::uint64_t kFieldMask = (1u << 20) - 1;
std::uint64_t loop_of(std::uint64_t ticket) { return ticket >> 40; }
std::int64_t count_of(std::uint64_t ticket) { return static_cast<std::int64_t>(ticket >> 20 & kFieldMask); }
std::int64_t item_of(std::uint64_t ticket) { return static_cast<std::int64_t>(ticket & kFieldMask); }
std::uint64_t make_ticket(std::uint64_t loop, std::int64_t count) {
  return loop << 40 | static_cast<std::uint64_t>(count) << 20;
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
    // Threads look before they take, so that the item number can't run far past the count.
    std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
    if (item_of(ticket) >= count_of(ticket)) return;
    ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
    if (item_of(ticket) >= count_of(ticket)) return;
    try {
      (*body_)(item_of(ticket), thread);
    } catch (...) {
      note_failure();
    }
    items_done_.fetch_add(1, std::memory_order_acq_rel);
  }
}

void ThreadPool::note_failure() {
  const std::lock_guard lock(mutex_);
  if (failure_ == nullptr) failure_ = std::current_exception();
}

void ThreadPool::worker_loop(int thread) {
  if (on_start_) on_start_();
  std::uint64_t seen = 0;
  for (;;) {
    int spins = 0;
    auto sleep_at = std::chrono::steady_clock::now() + kSpinTime;
    while (loop_of(ticket_.load(std::memory_order_acquire)) == seen) {
      if (stopping_.load(std::memory_order_relaxed)) return;
      cpu_relax();
      if (++spins % kSpinsBetweenClockReads != 0 || std::chrono::steady_clock::now() < sleep_at) continue;
      std::unique_lock lock(mutex_);
      sleeping_.fetch_add(1);
      wake_.wait(lock, [&] { return stopping_.load() || loop_of(ticket_.load()) != seen; });
      sleeping_.fetch_sub(1);
    }
    if (stopping_.load(std::memory_order_relaxed)) return;
    seen = loop_of(ticket_.load(std::memory_order_acquire));
    run_items(thread);
  }
}

void ThreadPool::parallel_for(std::int64_t items, const std::function<void(std::int64_t, int)>& body) {
  if (items <= 0) return;
  TF_ASSERT(items <= kItemsMax);
  // The caller's mode is set on every entry: it may be any of the process's threads and the call costs nanoseconds.
  if (on_start_) on_start_();
  if (workers_.empty() || items == 1) {
    for (std::int64_t item = 0; item < items; ++item) body(item, 0);
    return;
  }
  body_ = &body;
  items_done_.store(0, std::memory_order_relaxed);
  ticket_.store(make_ticket(loop_of(ticket_.load(std::memory_order_relaxed)) + 1, items));
  // A worker counts itself as sleeping before it looks at the ticket for the last time, both in one total order: either it
  // sees the new loop, or it is seen here.
  if (sleeping_.load() != 0) {
    { const std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }
  run_items(0);
  int spins = 0;
  while (items_done_.load(std::memory_order_acquire) != items) {
    if (++spins < kSpinsBeforeYield) {
      cpu_relax();
    } else {
      std::this_thread::yield();
    }
  }
  // Written before the last item was counted, and read after that.
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace tensorfold
