// See snapshot_pool.h.
#include "engine/cache/snapshot_pool.h"

#include <cstring>
#include <utility>

#include "base/error.h"

namespace tensorfold {

std::shared_ptr<std::byte[]> SnapshotPool::allocate() {
  std::shared_ptr<std::byte[]> memory = model_.allocate_snapshot();
  const std::lock_guard lock(shelf_->mutex);
  shelf_->free.reserve(shelf_->taken + 1);  // now: what a snapshot leaves is put back without a way to fail
  ++shelf_->taken;
  return memory;
}

void SnapshotPool::set_reclaimer(std::size_t count_max, std::function<bool()> reclaim) {
  count_max_ = count_max;
  reclaim_ = std::move(reclaim);
}

/// Null: there is none.
std::shared_ptr<std::byte[]> SnapshotPool::take_free() {
  const std::lock_guard lock(shelf_->mutex);
  if (shelf_->free.empty()) return nullptr;
  std::shared_ptr<std::byte[]> memory = std::move(shelf_->free.back());
  shelf_->free.pop_back();
  return memory;
}

std::shared_ptr<std::byte[]> SnapshotPool::take_memory() {
  if (auto memory = take_free()) return memory;
  const auto is_full = [this] {
    const std::lock_guard lock(shelf_->mutex);
    return shelf_->taken >= count_max_;
  };
  // What is let go of may still be on its way to the disk: then there is one more for a while.
  if (is_full() && reclaim_ && reclaim_()) {
    if (auto memory = take_free()) return memory;
  }
  try {
    return allocate();
  } catch (const std::exception&) {
    if (!reclaim_ || !reclaim_()) throw;
    if (auto memory = take_free()) return memory;
    throw;
  }
}

std::shared_ptr<StateSnapshot> SnapshotPool::take() {
  auto snapshot = std::make_unique<StateSnapshot>(take_memory(), model_.slot_state_bytes());
  return {snapshot.release(), [shelf = shelf_](StateSnapshot* ended) {
            {
              const std::lock_guard lock(shelf->mutex);
              shelf->free.push_back(std::move(ended->memory_));
            }
            delete ended;
          }};
}

std::shared_ptr<StateSnapshot> SnapshotPool::take_filled(const std::byte* bytes, std::size_t size) {
  std::shared_ptr<StateSnapshot> snapshot = take();
  TF_ASSERT(size == snapshot->size());
  model_.finish_copies();  // one to or from the snapshot that had this memory may be queued still
  std::memcpy(snapshot->data(), bytes, size);
  return snapshot;
}

void SnapshotPool::prepare(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::shared_ptr<std::byte[]> memory = allocate();
    const std::lock_guard lock(shelf_->mutex);
    shelf_->free.push_back(std::move(memory));
  }
}

void SnapshotPool::trim() {
  const std::lock_guard lock(shelf_->mutex);
  shelf_->taken -= shelf_->free.size();
  shelf_->free.clear();  // its own room stays, for those in use
}

}  // namespace tensorfold
