// Pages and slots of all layers; see layer_caches.h.
#include "model/layer_caches.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/limits.h"

namespace tensorfold {
namespace {

constexpr std::size_t kStagingBytes = 32u << 20;
constexpr std::size_t kStagedPieceBytes = kStagingBytes / 4;

/// Without memory of its own: pages fall free also where there is none left. The host brings the first piece, which
/// then doubles where it lies until all of it is filled.
void poison(ops::Backend& backend, std::byte* data, std::size_t bytes) {
  static const auto garbage = [] {
    std::array<std::uint8_t, 4096> filled;
    filled.fill(0xff);  // NaN in fp32 and in bf16
    return filled;
  }();
  std::size_t filled = std::min(garbage.size(), bytes);
  backend.copy_to_backend(data, garbage.data(), filled);
  while (filled < bytes) {
    const std::size_t piece = std::min(filled, bytes - filled);
    backend.copy_to_backend(data + filled, data, piece);
    filled += piece;
  }
}

}  // namespace

void LayerCaches::add(const LayerDescription& layer, std::vector<CacheGroup>& groups) {
  LayerCache cache;
  if (const auto* attention = std::get_if<AttentionMixer>(&layer.mixer)) {
    cache.group = attention->cache_group;
    CacheGroup& group = groups[static_cast<std::size_t>(cache.group)];
    const ops::KvGeometry geometry{attention->kv_heads, attention->head_dim};
    cache.unit_bytes = backend_.kv_page_bytes(geometry);
    cache.tree_bytes = group.draft ? 0 : backend_.kv_tree_bytes(geometry);  // drafters only run chains
    group.page_bytes += cache.unit_bytes;
    group.slot_bytes += cache.tree_bytes;
  } else {
    const auto& delta = std::get<GatedDeltaMixer>(layer.mixer);
    cache.group = delta.cache_group;
    CacheGroup& group = groups[static_cast<std::size_t>(cache.group)];
    cache.state_bytes = backend_.gated_delta_state_bytes(delta.geometry);
    cache.window_row_bytes = backend_.gated_delta_window_row_bytes(delta.geometry);
    group.slot_bytes += cache.state_bytes;
    group.slot_window_row_bytes += cache.window_row_bytes;
    const std::size_t work = backend_.gated_delta_work_row_bytes(delta.geometry);  // which layers share
    if (work > work_row_bytes_) group.slot_window_row_bytes += work - work_row_bytes_;
    work_row_bytes_ = std::max(work_row_bytes_, work);
  }
  layers_.push_back(std::move(cache));
}

void LayerCaches::add_draft_keys(const ops::KvGeometry& geometry, std::int32_t group, std::vector<CacheGroup>& groups) {
  LayerCache cache;
  cache.group = group;
  cache.unit_bytes = backend_.kv_page_bytes(geometry);
  groups[static_cast<std::size_t>(group)].page_bytes += cache.unit_bytes;
  layers_.push_back(std::move(cache));
}

void LayerCaches::allocate(const std::vector<std::int32_t>& page_counts, std::int32_t slot_count,
                           std::int32_t window_rows) {
  release();  // first: both wouldn't fit
  if (!staging_ && !backend_.info().host_memory) {
    staging_ = backend_.allocate_host(kStagingBytes, "copies of cached pages");
  }
  slot_count_ = slot_count;
  const auto slots = static_cast<std::size_t>(slot_count);
  for (LayerCache& layer : layers_) {
    if (is_recurrent(layer)) {
      layer.unit_bytes = layer.state_bytes + layer.window_row_bytes * static_cast<std::size_t>(window_rows);
      layer.units = slot_count;
      layer.buffer = backend_.allocate(layer.unit_bytes * slots, "recurrent state");
      continue;
    }
    layer.units = page_counts[static_cast<std::size_t>(layer.group)];
    layer.buffer = backend_.allocate(layer.unit_bytes * static_cast<std::size_t>(layer.units), "the KV cache");
    if (layer.tree_bytes > 0) layer.trees = backend_.allocate(layer.tree_bytes * slots, "keys and values of drafts");
  }
}

void LayerCaches::release() {
  for (LayerCache& layer : layers_) {
    layer.buffer.reset();
    layer.trees.reset();
    layer.units = 0;
  }
  slot_count_ = 0;
}

std::byte* LayerCaches::stage(std::size_t bytes) {
  if (staged_bytes_ + bytes > kStagingBytes) {
    collect_reads();
    backend_.synchronise();
    staged_bytes_ = 0;
  }
  std::byte* place = static_cast<std::byte*>(staging_->data()) + staged_bytes_;
  staged_bytes_ += (bytes + 255) / 256 * 256;
  return place;
}

void LayerCaches::collect_reads() {
  if (reads_.empty()) return;
  backend_.synchronise();
  for (const PendingRead& read : reads_) std::memcpy(read.out, read.staged, read.bytes);
  reads_.clear();
}

void LayerCaches::read_all(const ForEach& for_each, std::byte* out) {
  try {
    for_each([&](std::byte* data, std::size_t bytes) {
      read(out, data, bytes);
      out += bytes;
    });
    collect_reads();
  } catch (...) {
    reads_.clear();  // the caller's memory won't wait for a later call
    throw;
  }
}

void LayerCaches::read(std::byte* out, std::byte* data, std::size_t bytes) {
  if (backend_.info().host_memory) return backend_.copy_to_host(out, data, bytes);
  for (std::size_t at = 0; at < bytes; at += kStagedPieceBytes) {
    const std::size_t piece = std::min(kStagedPieceBytes, bytes - at);
    std::byte* staged = stage(piece);
    backend_.queue_copy_to_host(staged, data + at, piece);
    reads_.push_back({out + at, staged, piece});
  }
}

void LayerCaches::write(std::byte* data, const std::byte* bytes, std::size_t size) {
  if (backend_.info().host_memory) return backend_.copy_to_backend(data, bytes, size);
  for (std::size_t at = 0; at < size; at += kStagedPieceBytes) {
    const std::size_t piece = std::min(kStagedPieceBytes, size - at);
    std::byte* staged = stage(piece);
    std::memcpy(staged, bytes + at, piece);
    backend_.copy_to_backend(data + at, staged, piece);
  }
}

std::byte* LayerCaches::unit(const LayerCache& layer, std::int32_t index) const {
  TF_ASSERT(layer.buffer && index >= 0 && index < layer.units);
  return static_cast<std::byte*>(layer.buffer->data()) + layer.unit_bytes * static_cast<std::size_t>(index);
}

std::byte* LayerCaches::tree(const LayerCache& layer, std::int32_t slot) const {
  TF_ASSERT(layer.trees && slot >= 0 && slot < slot_count_);
  return static_cast<std::byte*>(layer.trees->data()) + layer.tree_bytes * static_cast<std::size_t>(slot);
}

void LayerCaches::for_each_page(std::int32_t group, std::int32_t page,
                                const std::function<void(std::byte*, std::size_t)>& visit) {
  for (const LayerCache& layer : layers_) {
    if (layer.group == group && !is_recurrent(layer)) visit(unit(layer, page), layer.unit_bytes);
  }
}

void LayerCaches::for_each_state(std::int32_t slot, const std::function<void(std::byte*, std::size_t)>& visit) {
  for (const LayerCache& layer : layers_) {
    if (is_recurrent(layer)) visit(unit(layer, slot), layer.state_bytes);
  }
}

void LayerCaches::zero_page(std::int32_t group, std::int32_t page) {
  for_each_page(group, page, [&](std::byte* data, std::size_t bytes) { backend_.zero(data, bytes); });
}

void LayerCaches::copy_page(std::int32_t group, std::int32_t from, std::int32_t to) {
  for (const LayerCache& layer : layers_) {
    if (layer.group != group || is_recurrent(layer)) continue;
    backend_.copy_to_backend(unit(layer, to), unit(layer, from), layer.unit_bytes);
  }
}

void LayerCaches::read_page(std::int32_t group, std::int32_t page, std::byte* out) {
  read_all([&](const auto& visit) { for_each_page(group, page, visit); }, out);
}

void LayerCaches::write_page(std::int32_t group, std::int32_t page, const std::byte* bytes) {
  for_each_page(group, page, [&](std::byte* data, std::size_t size) {
    write(data, bytes, size);
    bytes += size;
  });
}

void LayerCaches::poison_page(std::int32_t group, std::int32_t page) {
  for_each_page(group, page, [&](std::byte* data, std::size_t bytes) { poison(backend_, data, bytes); });
}

std::size_t LayerCaches::slot_state_bytes() const {
  std::size_t bytes = 0;
  for (const LayerCache& layer : layers_) bytes += layer.state_bytes;
  return bytes;
}

void LayerCaches::zero_slot(std::int32_t slot) {
  for_each_state(slot, [&](std::byte* data, std::size_t bytes) { backend_.zero(data, bytes); });
}

void LayerCaches::copy_slot(std::int32_t from, std::int32_t to) {
  for (const LayerCache& layer : layers_) {
    if (is_recurrent(layer)) backend_.copy_to_backend(unit(layer, to), unit(layer, from), layer.unit_bytes);
    if (layer.trees) backend_.copy_to_backend(tree(layer, to), tree(layer, from), layer.tree_bytes);
  }
}

void LayerCaches::read_slot(std::int32_t slot, std::byte* out) {
  for_each_state(slot, [&](std::byte* data, std::size_t size) {
    backend_.queue_copy_to_host(out, data, size);
    out += size;
  });
}

void LayerCaches::write_slot(std::int32_t slot, const std::byte* bytes) {
  for_each_state(slot, [&](std::byte* data, std::size_t size) {
    backend_.copy_to_backend(data, bytes, size);
    bytes += size;
  });
}

void LayerCaches::poison_slot(std::int32_t slot) {
  for (const LayerCache& layer : layers_) {
    if (is_recurrent(layer)) poison(backend_, unit(layer, slot), layer.unit_bytes);
    if (layer.trees) poison(backend_, tree(layer, slot), layer.tree_bytes);
  }
}

}  // namespace tensorfold
