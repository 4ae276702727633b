// The memory that a model keeps for its streams: pages of keys and values, and slots with recurrent state and the
// memory of windows, layer by layer in the backend's own layouts. Which page or slot belongs to whom is the engine's
// business (engine/cache); how a layer uses them is the runner's.
//
// A slot's state is what is canonical in it once it is settled; its window memory (inputs of a recurrent window, keys
// and values of a tree) is written by a window and read by the replay that follows it, never otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "model/description.h"
#include "model/language_model.h"
#include "ops/backend.h"

namespace tensorfold {

/// One layer's pages (attention) or slots (recurrent).
struct LayerCache {
  std::unique_ptr<ops::Buffer> buffer;
  std::size_t unit_bytes = 0;        // of one page or slot
  std::size_t state_bytes = 0;       // of a slot: its canonical part, at its start
  std::size_t window_row_bytes = 0;  // of a slot
  std::int32_t units = 0;
  std::int32_t group = 0;              // cache group
  std::unique_ptr<ops::Buffer> trees;  // attention: keys and values of one tree a slot; null for drafters' own layers
  std::size_t tree_bytes = 0;          // of one slot

  ops::KvPool kv_pool() const { return {buffer->data(), unit_bytes, trees ? trees->data() : nullptr, tree_bytes}; }
};

class LayerCaches {
 public:
  explicit LayerCaches(ops::Backend& backend) : backend_(backend) {}

  /// Adds the next layer, and what it takes of a page or slot to its group.
  void add(const LayerDescription& layer, std::vector<CacheGroup>& groups);
  /// The next layer of a drafter whose layers aren't LayerDescriptions: keys and values in the given group, no trees.
  void add_draft_keys(const ops::KvGeometry& geometry, std::int32_t group, std::vector<CacheGroup>& groups);
  void allocate(const std::vector<std::int32_t>& page_counts, std::int32_t slot_count, std::int32_t window_rows);
  /// Gives the pools back.
  void release();

  std::size_t size() const { return layers_.size(); }
  /// Addresses are stable once all layers are added.
  const LayerCache& operator[](std::size_t layer) const { return layers_[layer]; }
  const LayerCache& back() const { return layers_.back(); }

  void zero_page(std::int32_t group, std::int32_t page);
  void copy_page(std::int32_t group, std::int32_t from, std::int32_t to);
  void read_page(std::int32_t group, std::int32_t page, std::byte* out);
  void write_page(std::int32_t group, std::int32_t page, const std::byte* bytes);
  /// Fills with NaN bytes (tests).
  void poison_page(std::int32_t group, std::int32_t page);

  std::size_t slot_state_bytes() const;
  void zero_slot(std::int32_t slot);
  /// Window memory included: what is pending in the slot stays pending in the copy.
  void copy_slot(std::int32_t from, std::int32_t to);
  /// Queued where the host's side is memory of Backend::allocate_host().
  void read_slot(std::int32_t slot, std::byte* out);
  void write_slot(std::int32_t slot, const std::byte* bytes);
  void poison_slot(std::int32_t slot);

 private:
  bool is_recurrent(const LayerCache& layer) const { return layer.state_bytes > 0; }
  std::byte* unit(const LayerCache& layer, std::int32_t index) const;
  std::byte* tree(const LayerCache& layer, std::int32_t slot) const;
  /// The group's pages, layer by layer.
  void for_each_page(std::int32_t group, std::int32_t page, const std::function<void(std::byte*, std::size_t)>& visit);
  void for_each_state(std::int32_t slot, const std::function<void(std::byte*, std::size_t)>& visit);
  using ForEach = std::function<void(const std::function<void(std::byte*, std::size_t)>&)>;
  /// Copies what `for_each` visits to `out`, one after the other.
  void read_all(const ForEach& for_each, std::byte* out);
  void read(std::byte* out, std::byte* data, std::size_t bytes);
  void write(std::byte* data, const std::byte* bytes, std::size_t size);
  /// Finishes reads: afterwards all bytes are where they were wanted.
  void collect_reads();
  /// A piece of the staging memory, of up to kStagingBytes / 2; waits for older copies when it has been used up.
  std::byte* stage(std::size_t bytes);

  /// A copy into staging memory whose bytes are still to be handed on.
  struct PendingRead {
    std::byte* out;
    const std::byte* staged;
    std::size_t bytes;
  };

  ops::Backend& backend_;
  std::vector<LayerCache> layers_;
  std::int32_t slot_count_ = 0;
  std::size_t work_row_bytes_ = 0;  // of a recurrent layer's pass, a row
  // Between backend memory and the caller's, where that isn't the same memory: a queue of copies needs no wait a layer.
  std::unique_ptr<ops::Buffer> staging_;
  std::size_t staged_bytes_ = 0;
  std::vector<PendingRead> reads_;
};

}  // namespace tensorfold
