// Between the tree of kept prefixes and the disk store, on the engine thread: copies pages out of the tree into
// segments for the writer, and puts segments that the reader has checked back into the tree. Both go in bounded steps
// between passes, so that no stream waits for a disk or for a large copy. A prefix that is evicted before it was copied
// is not written; one that can't be read back in time is computed.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/cache/disk_store.h"
#include "engine/cache/prefix_tree.h"

namespace tensorfold {

/// A prefix on its way from disk into the tree. Streams that wait for it hold it.
struct PrefixLoad {
  std::string scope;
  std::vector<std::int32_t> elements;  // [0, position)
  std::int32_t position = 0;
  StoredPrefix stored;
  bool is_done = false;  // in the tree, or given up
};

class PrefixLearner {
 public:
  PrefixLearner(LanguageModel& model, PagePool& pool, PrefixTree& tree, SnapshotPool& snapshots,
                const PrefixBudget& budget, std::unique_ptr<DiskStore> store, std::string identity, std::int32_t tokens_min);
  ~PrefixLearner();

  /// A resume point was kept that should survive a restart.
  void offer(const std::string& scope, PrefixTree::Elements elements);
  /// Starts (or joins) reading back what is at least `worth` tokens more than `known`; null when there is nothing.
  std::shared_ptr<PrefixLoad> load(const std::string& scope, PrefixTree::Elements elements, std::int32_t position_max,
                                   std::int32_t known);
  /// The caller waits for it no longer; with nobody left it ends.
  void give_up(const std::shared_ptr<PrefixLoad>& load);

  /// A bounded step of copying. True when there is more to do at once.
  bool work();
  /// Drops whatever is being copied: after a failure of work().
  void abandon();
  bool is_loading() const { return !loads_.empty(); }
  /// Copies all that is pending for the writer, within the time.
  void flush(std::chrono::steady_clock::time_point until);
  DiskStore& store() { return *store_; }

 private:
  struct Job {
    std::string scope;
    std::vector<std::int32_t> elements;
  };
  struct Copying;  // the segment that is being filled
  struct Filling;  // the prefix that is being put into the tree

  bool copy_step();
  struct Place {
    std::int32_t begin = 0;
    std::uint64_t parent = 0;
  };
  Place next_place(const Job& job) const;
  std::int32_t last_block(std::int32_t first, std::int32_t last) const;
  bool begin_segment(const Job& job);
  bool copy_pages(std::uint64_t bytes_max);
  void finish_segment();
  bool fill_step();
  void begin_fill();
  bool install_pages(std::uint64_t bytes_max);
  std::int32_t part_end() const;
  bool install_group(std::size_t group, std::uint64_t& bytes_left);
  void install_part();
  void keep_filled(std::int32_t position, bool resume_point, std::shared_ptr<const StateSnapshot> snapshot);
  void end_fill();

  LanguageModel& model_;
  PagePool& pool_;
  PrefixTree& tree_;
  SnapshotPool& snapshots_;
  std::vector<CacheGroup> groups_;
  PrefixBudget budget_;
  std::unique_ptr<DiskStore> store_;
  std::string identity_;
  std::int32_t tokens_min_;
  std::deque<Job> jobs_;
  std::unique_ptr<Copying> copying_;
  std::deque<std::shared_ptr<PrefixLoad>> loads_;  // the first is being read
  std::unique_ptr<Filling> filling_;
};

}  // namespace tensorfold
