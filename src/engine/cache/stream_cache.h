// Everything one stream holds of the caches: a page table per group, its reservation and its slot. Scratch is shared,
// state never (engine.md, N4): what a stream reads is reachable only through this object.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cache/page_pool.h"
#include "model/round_plan.h"

namespace tensorfold {

/// A prefix that a stream takes over: pages that cover the tokens [0, position) as far as later rows see them.
struct SharedPrefix {
  std::int32_t position = 0;
  std::vector<PageTable> tables;  // per group; -1 where no later row looks
};

/// Pages of `group` that a stream of `tokens` tokens holds at most, fed in passes of at most `pass_rows` rows.
std::int32_t stream_pages_max(const CacheGroup& group, std::int32_t tokens, std::int32_t pass_rows);

class StreamCache {
 public:
  StreamCache() = default;
  ~StreamCache();
  StreamCache(const StreamCache&) = delete;
  StreamCache& operator=(const StreamCache&) = delete;

  /// Shares the pages of `prefix` (if any), reserves all else that `tokens` tokens can need and takes a slot; false
  /// (and nothing held) when it isn't there.
  bool admit(PagePool& pool, const std::vector<CacheGroup>& groups, std::int32_t tokens, std::int32_t pass_rows,
             const SharedPrefix* prefix = nullptr);
  /// Makes the tables cover [position, position + rows) and every key those rows see; pages that lie wholly outside the
  /// sliding windows are released, and shared pages that the pass may write are replaced by copies. The pass may also
  /// write the last `rewritten` rows before `position` again (a replayed tree's keys). Whatever a stream holds and has
  /// reserved is within its promise, so this can't fail for want of pages.
  void prepare(std::int32_t position, std::int32_t rows, std::int32_t rewritten = 0);
  void release();

  bool is_admitted() const { return pool_ != nullptr; }
  std::int32_t slot() const { return slot_; }
  const std::vector<PageTable>& tables() const { return tables_; }

 private:
  void share(const SharedPrefix& prefix);
  void release_behind_window(std::size_t group, std::int32_t position);
  void own_pages(std::size_t group, std::int32_t begin, std::int32_t end);

  PagePool* pool_ = nullptr;
  std::vector<CacheGroup> groups_;
  std::vector<PageTable> tables_;
  std::vector<std::int32_t> first_held_;  // per group: table entries below are released
  std::vector<std::int32_t> reserved_;    // per group: pages still to be taken
  std::vector<std::int32_t> table_max_;   // per group: entries the table can grow to
  std::int32_t slot_ = 0;
};

}  // namespace tensorfold
