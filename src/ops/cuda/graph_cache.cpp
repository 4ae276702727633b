// See graph_cache.h.
#include "ops/cuda/graph_cache.h"

namespace tensorfold::ops::cuda {

GraphCache::Entry& GraphCache::find(const std::string& key, bool& is_new) {
  const auto found = by_key_.find(key);
  is_new = found == by_key_.end();
  if (!is_new) {
    entries_.splice(entries_.begin(), entries_, found->second);
    return entries_.front();
  }
  if (entries_.size() >= kGraphsMax) {
    Entry& oldest = entries_.back();
    if (oldest.graph != nullptr) cudaGraphExecDestroy(oldest.graph);
    by_key_.erase(oldest.key);
    entries_.pop_back();
  }
  entries_.push_front({key, nullptr});
  by_key_[key] = entries_.begin();
  return entries_.front();
}

void GraphCache::erase(const std::string& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return;
  if (found->second->graph != nullptr) cudaGraphExecDestroy(found->second->graph);
  entries_.erase(found->second);
  by_key_.erase(found);
}

void GraphCache::clear() {
  for (Entry& entry : entries_) {
    if (entry.graph != nullptr) cudaGraphExecDestroy(entry.graph);
  }
  entries_.clear();
  by_key_.clear();
}

}  // namespace tensorfold::ops::cuda
