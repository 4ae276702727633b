// See pass_store.h.
#include "ops/cuda/pass_store.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "ops/cuda/cuda_error.h"
#include "ops/cuda/pass_fetch.h"

namespace tensorfold::ops::cuda {
namespace {

constexpr std::size_t kLooseBlockBytes = 32u << 20;  // device ring for lanes and lists outside a pass
constexpr std::size_t kFirstDeviceBytes = 1u << 20;
constexpr int kSpins = 20'000;  // some tens of microseconds: a fetch takes a few once the pass before has ended
constexpr auto kPause = std::chrono::microseconds(20);  // while a longer pass is under way

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

PassStore::~PassStore() {
  if (device_ != nullptr) memory_.give_back(device_, device_bytes_);
  if (loose_ != nullptr) memory_.give_back(loose_, kLooseBlockBytes);
}

void PassStore::wait_until_fetched(cudaStream_t stream) const {
  if (fetched_ == nullptr) return;
  const auto is_fetched = [this] {
    return static_cast<std::int32_t>(std::atomic_ref(*fetched_).load(std::memory_order_acquire) - launched_) >= 0;
  };
  for (int i = 0; i < kSpins; ++i) {
    if (is_fetched()) return;
  }
  // Not by waiting for the stream: the next pass is to be on its way before this one has ended.
  while (!is_fetched()) {
    const cudaError_t status = cudaStreamQuery(stream);
    if (status == cudaErrorNotReady) {
      std::this_thread::sleep_for(kPause);
      continue;
    }
    check(status, "waiting for a pass's arrays");
    TF_ASSERT(is_fetched());
  }
}

/// Room for blocks of `bytes`. Everything that knows the places before is stale then.
void PassStore::grow(std::size_t bytes, cudaStream_t stream) {
  check(cudaStreamSynchronize(stream), "waiting for the last pass");
  if (device_ != nullptr) memory_.give_back(device_, device_bytes_);
  device_ = nullptr;
  device_bytes_ = 0;
  const std::size_t grown = std::max(round_up(bytes, 16), kFirstDeviceBytes);
  device_ = memory_.take(grown, "a pass's arrays");
  device_bytes_ = grown;
  staged_bytes_ = 0;
  staged_ = pinned_.reserve(sizeof(PassStaging) + grown);
  staged_bytes_ = sizeof(PassStaging) + grown;
}

void PassStore::reserve(std::size_t bytes, cudaStream_t stream) {
  if (bytes > device_bytes_) grow(bytes, stream);
}

void PassStore::reserve_loose() {
  if (loose_ == nullptr) loose_ = memory_.take(kLooseBlockBytes, "operations' arrays");
}

bool PassStore::stage(const PassBlock& block, cudaStream_t stream) {
  wait_until_fetched(stream);
  const std::size_t chunks = (block.bytes() + 15) / 16;
  const std::size_t bytes = sizeof(PassStaging) + std::max(chunks, kPassChunksMin) * 16;
  bool moved = false;
  if (chunks * 16 > device_bytes_ || bytes > staged_bytes_) {
    grow(chunks * 32, stream);
    moved = true;
  }
  if (fetched_ == nullptr) {
    fetched_ = reinterpret_cast<std::uint32_t*>(fetched_bytes_.reserve(sizeof(std::uint32_t)));
    *fetched_ = launched_;
  }
  ++sequence_;
  *reinterpret_cast<PassStaging*>(staged_) = {static_cast<std::uint32_t>(chunks), sequence_};
  std::memcpy(staged_ + sizeof(PassStaging), block.words().data(), block.bytes());
  return moved;
}

void PassStore::fetch(cudaStream_t stream) const {
  fetch_pass(stream, reinterpret_cast<const PassStaging*>(staged_), device_, fetched_);
}

const PassHeader* PassStore::upload_loose(const PassBlock& block, cudaStream_t stream) {
  reserve_loose();
  const std::size_t bytes = round_up(block.bytes(), 256);
  if (bytes > kLooseBlockBytes) fail(ErrorCode::kInternal, "CUDA: {} bytes of lanes in one operation", bytes);
  if (loose_used_ + bytes > kLooseBlockBytes) {
    check(cudaStreamSynchronize(stream), "waiting for operations");
    loose_used_ = 0;
  }
  std::byte* place = static_cast<std::byte*>(loose_) + loose_used_;
  loose_used_ += bytes;
  check(cudaMemcpyAsync(place, block.words().data(), block.bytes(), cudaMemcpyHostToDevice, stream),
        "copying an operation's arrays");
  check(cudaStreamSynchronize(stream), "copying an operation's arrays");
  return reinterpret_cast<const PassHeader*>(place);
}

}  // namespace tensorfold::ops::cuda
