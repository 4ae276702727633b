// Host memory for snapshots of recurrent state. Where there is a GPU it is memory that copy engines reach: a state is kept and
// restored by queued copies, which the host doesn't wait for. Such memory is dear to come by (a state may be 150 MB, and
// each page of it is pinned), so what one snapshot leaves serves the next. Apart from the tree, which decides what is worth
// keeping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "model/language_model.h"

namespace tensorfold {

/// The recurrent state of a stream after some number of tokens, as LanguageModel::read_slot gives it. The host may read it after
/// LanguageModel::finish_copies().
class StateSnapshot {
 public:
  StateSnapshot(std::shared_ptr<std::byte[]> memory, std::size_t size) : memory_(std::move(memory)), size_(size) {}
  std::byte* data() { return memory_.get(); }
  const std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return size_; }

 private:
  friend class SnapshotPool;
  std::shared_ptr<std::byte[]> memory_;
  std::size_t size_;
};

class SnapshotPool {
 public:
  /// `model` outlives this; snapshots may outlive both, and end on any thread.
  explicit SnapshotPool(LanguageModel& model) : model_(model), shelf_(std::make_shared<Shelf>()) {}
  /// From `count_max` snapshots on, and where there is no memory for one more, `reclaim` is asked first: it lets go of the one that is
  /// worth least; false: there is none.
  void set_reclaimer(std::size_t count_max, std::function<bool()> reclaim);

  /// A snapshot with nothing in it yet. Throws Error(kResourceExhausted) or std::bad_alloc.
  std::shared_ptr<StateSnapshot> take();
  /// The same filled by the host, from `size` bytes at `bytes`.
  std::shared_ptr<StateSnapshot> take_filled(const std::byte* bytes, std::size_t size);
  /// Takes memory for `count` snapshots now.
  void prepare(std::size_t count);
  /// Gives back the memory that no snapshot uses.
  void trim();

 private:
  /// What snapshots leave; they know it, the pool may be gone.
  struct Shelf {
    std::mutex mutex;
    std::vector<std::shared_ptr<std::byte[]>> free;
    std::size_t taken = 0;  // free ones and those in use: `free` has room for all
  };

  std::shared_ptr<std::byte[]> allocate();
  std::shared_ptr<std::byte[]> take_free();
  std::shared_ptr<std::byte[]> take_memory();

  LanguageModel& model_;
  std::size_t count_max_ = SIZE_MAX;
  std::function<bool()> reclaim_;
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace tensorfold
