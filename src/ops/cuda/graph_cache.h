// Captured passes by their identity, so that a round of the same shape is one launch. The least recently used go first.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <list>
#include <string>
#include <unordered_map>

namespace tensorfold::ops::cuda {

constexpr std::size_t kGraphsMax = 128;

class GraphCache {
 public:
  struct Entry {
    std::string key;
    cudaGraphExec_t graph = nullptr;  // null: the pass ran once, uncaptured
    int uncaptured_passes = 0;        // that are to come, since there was no memory for a graph
  };
  ~GraphCache() { clear(); }
  /// The entry of a pass, most recently used; made when new (then `graph` is null and `is_new` true).
  Entry& find(const std::string& key, bool& is_new);
  void erase(const std::string& key);
  void clear();

 private:
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_;
};

}  // namespace tensorfold::ops::cuda
