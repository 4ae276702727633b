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

std::shared_ptr<StateSnapshot> SnapshotPool::take() {
  std::shared_ptr<std::byte[]> memory;
  {
    const std::lock_guard lock(shelf_->mutex);
    if (!shelf_->free.empty()) {
      memory = std::move(shelf_->free.back());
      shelf_->free.pop_back();
    }
  }
  if (memory == nullptr) memory = allocate();
  auto snapshot = std::make_unique<StateSnapshot>(std::move(memory), model_.slot_state_bytes());
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
