// Which states lie on disk for one identity, as a forest of segments: a segment continues its parent's tokens. It
// answers where a prompt's prefix can be read back from, by comparing tokens, and which segments nobody needs most. No
// files and no threads here; DiskStore guards it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/cache/learn_manifest.h"

namespace tensorfold {

/// Segments that together hold a prefix, first to last.
struct StoredPrefix {
  std::int32_t position = 0;          // tokens of the query that they hold and that can be resumed
  std::vector<std::uint64_t> chain;   // ids
  std::vector<std::uint32_t> begins;  // where each begins
};

class DiskIndex {
 public:
  explicit DiskIndex(bool resumes_anywhere) : resumes_anywhere_(resumes_anywhere) {}

  // Where memory is short add() and remove() throw, and have changed nothing.

  /// A segment that is still on its way (is_written false) can be continued, and isn't resumed.
  void add(StoredState state);
  void set_written(std::uint64_t id, std::uint64_t file_bytes, std::uint64_t use);
  /// The segment and all that continue it; their ids.
  std::vector<std::uint64_t> remove(std::uint64_t id);
  const StoredState* find(std::uint64_t id) const;
  bool has_children(std::uint64_t id) const;

  /// The longest prefix of `tokens`, at most `position_max`, that can be resumed.
  StoredPrefix resumable(const std::string& identity, const std::string& scope, std::span<const std::int32_t> tokens,
                         std::int32_t position_max) const;
  /// The longest prefix whose pages of the full groups are there, resumable or not.
  StoredPrefix covered(const std::string& identity, const std::string& scope,
                       std::span<const std::int32_t> tokens) const;

  /// The least recently used segment without children that isn't in `spared`; 0: none.
  std::uint64_t least_used(std::span<const std::uint64_t> spared) const;
  void set_last_use(std::uint64_t id, std::uint64_t use);
  std::uint64_t bytes() const { return bytes_; }  // of what is written
  std::size_t written_count() const { return written_count_; }
  const std::map<std::uint64_t, StoredState>& states() const { return states_; }

 private:
  struct Search;
  StoredPrefix search(const std::string& identity, const std::string& scope, std::span<const std::int32_t> tokens,
                      std::int32_t position_max, bool any_position, bool resumes) const;
  static std::string root_key(const std::string& identity, const std::string& scope);

  bool resumes_anywhere_;
  std::map<std::uint64_t, StoredState> states_;
  std::map<std::uint64_t, std::vector<std::uint64_t>> children_;
  std::map<std::string, std::vector<std::uint64_t>> roots_;
  std::uint64_t bytes_ = 0;
  std::size_t written_count_ = 0;
};

}  // namespace tensorfold
