// A CPU backend that says its memory isn't the host's, as a GPU's isn't: models then warm up, reserve, stage and queue copies as they do
// there, and CI has all of it without one. Copies to the host arrive when somebody waits for them, and not before.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "support/synced_backend.h"

namespace tensorfold::test {

class FarBackend final : public SyncedBackend {
 public:
  explicit FarBackend(std::unique_ptr<ops::Backend> backend) : SyncedBackend(std::move(backend)), info_(SyncedBackend::info()) {
    info_.host_memory = false;
    info_.pass_rows_max = 2048;
  }
  const ops::BackendInfo& info() const override { return info_; }
  /// How often memory of the backend was asked for.
  const std::shared_ptr<std::atomic<int>>& allocations() const { return allocations_; }

  std::unique_ptr<ops::Buffer> allocate(std::size_t bytes, const char* purpose) override {
    ++*allocations_;
    return SyncedBackend::allocate(bytes, purpose);
  }
  MemoryAvailable memory_available() const override { return {std::uint64_t{512} << 20, false}; }

  void queue_copy_to_host(void* destination, const void* source, std::size_t bytes) override {
    const auto* first = static_cast<const std::byte*>(source);
    copies_.push_back({static_cast<std::byte*>(destination), {first, first + bytes}});
    std::memset(destination, 0xee, bytes);  // until it arrives
  }
  void copy_to_host(void* destination, const void* source, std::size_t bytes) override {
    synchronise();
    SyncedBackend::copy_to_host(destination, source, bytes);
  }
  void copy_to_backend(void* destination, const void* source, std::size_t bytes) override {
    const auto* first = static_cast<const std::byte*>(source);
    for (auto copy = copies_.rbegin(); copy != copies_.rend(); ++copy) {  // behind a copy that is on its way there
      if (first < copy->destination || first + bytes > copy->destination + copy->bytes.size()) continue;
      source = copy->bytes.data() + (first - copy->destination);
      break;
    }
    SyncedBackend::copy_to_backend(destination, source, bytes);
  }
  bool begin_pass(const ops::PassInputs& inputs) override {
    timed_rows_ = inputs.is_timed ? inputs.rows : 0;
    begun_ = Clock::now();
    return SyncedBackend::begin_pass(inputs);
  }
  void end_pass() override {
    SyncedBackend::end_pass();
    if (timed_rows_ > 0) times_.push_back({timed_rows_, std::chrono::duration<double>(Clock::now() - begun_).count()});
  }
  std::vector<ops::PassTime> take_pass_times() override { return std::exchange(times_, {}); }
  void synchronise() override {
    for (const Copy& copy : copies_) std::memcpy(copy.destination, copy.bytes.data(), copy.bytes.size());
    copies_.clear();
    SyncedBackend::synchronise();
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Copy {
    std::byte* destination;
    std::vector<std::byte> bytes;
  };

  ops::BackendInfo info_;
  std::shared_ptr<std::atomic<int>> allocations_ = std::make_shared<std::atomic<int>>(0);
  std::vector<Copy> copies_;
  std::int64_t timed_rows_ = 0;  // of the pass that has begun; 0: nobody asks
  Clock::time_point begun_;
  std::vector<ops::PassTime> times_;
};

}  // namespace tensorfold::test
