// What the engine loop asks about kept prefixes: may this stream start or is its prompt being computed already, where
// does it resume, where do its prompt slices end, what is kept of it. It joins the tree, the page pool, the model's
// slots and the streams; it runs on the engine thread, between passes. Nothing here can change a token: a kept state is
// the state (one-arithmetic.md).
//
// Single flight: a stream whose prompt begins like that of a running stream, past what is kept, waits until the running
// one has come to the point where they part. It waits in the queue and holds no lane; it waits only for streams that
// run, and those wait for nobody, so there is no deadlock. When the running one ends early its work so far is kept, and
// the first waiter takes over.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/cache/prefix_learner.h"
#include "engine/cache/prefix_tree.h"
#include "engine/cache/snapshot_pool.h"
#include "engine/capacity.h"

namespace tensorfold {

class Stream;

/// What the cache knows of one stream; lives in the stream.
struct StreamPrefix {
  std::string scope;
  std::vector<std::int32_t> elements;  // key elements where they differ from the tokens (media); else empty
  std::vector<std::int32_t> marks;     // ascending: positions of the prompt at which to keep a resume point
  std::int32_t kept = 0;               // the longest prefix handed to the tree
  bool keeps = false;                  // takes part at all
  bool is_awaited = false;             // another stream waits for its prompt
  std::weak_ptr<Stream> awaits;
  std::int32_t awaited_position = 0;  // ... until it has fed this many rows
  std::int32_t learn_mark = 0;        // where a state of the prompt goes to disk beside that of its end; 0: nowhere
  std::int32_t system_end = 0;        // of the prompt, where the request names it; 0 once it is offered to the disk
  std::shared_ptr<PrefixLoad> load;   // being read back from disk
  std::chrono::steady_clock::time_point load_until;
  bool has_asked_disk = false;
};

struct PrefixCounters {
  std::uint64_t queries = 0;
  std::uint64_t hits = 0;  // streams that resumed
  std::uint64_t cached_tokens = 0;
  std::uint64_t waits = 0;  // streams that waited for another's prompt
  std::uint64_t loads = 0;  // streams that waited for a prefix from disk
};

class PrefixCache {
 public:
  struct Options {
    bool shared_by_all = false;
    std::unique_ptr<DiskStore> store;  // null: nothing is kept on disk
    std::string identity;              // of what is kept there
    std::int32_t learn_tokens_min = 0;
    bool learn_conversations = false;
    /// Expected time of feeding so many rows of a prompt; 0: not known.
    std::function<double(std::int32_t rows)> seconds_for_rows;
  };
  PrefixCache(LanguageModel& model, PagePool& pool, const Capacity& capacity, Options options);
  ~PrefixCache();

  bool is_enabled() const { return tree_ != nullptr; }

  /// A stream has arrived (not yet admitted).
  void open(Stream& stream);
  /// False while another stream computes what this one can take over.
  bool may_start(Stream& stream, const std::vector<std::shared_ptr<Stream>>& running);
  /// Gives the stream its pages and slot, resumed as far as possible. False when they aren't there.
  bool start(Stream& stream);
  /// Rows that the next slice of the prompt may have (at least 1), so that it ends at a resume point.
  std::int32_t prompt_rows_max(const Stream& stream) const;
  /// A pass has fed rows of the stream's prompt.
  void on_prompt_rows(Stream& stream);
  /// The stream ends well or is cancelled, and still holds its pages: keeps what it has fed.
  void on_end(Stream& stream);

  /// A bounded step of copying to or from disk, between passes. True: call again soon.
  bool work();
  bool is_loading() const { return learner_ != nullptr && learner_->is_loading(); }
  /// The engine stops: hands what is pending to the disk, within a bound.
  void flush();
  const PrefixLearner* learner() const { return learner_.get(); }

  const PrefixCounters& counters() const { return counters_; }
  const PrefixTree* tree() const { return tree_.get(); }

 private:
  void prepare_snapshots(const Capacity& capacity);
  void forget_if_torn(const std::exception& error);
  PrefixTree::Elements elements_of(Stream& stream, std::int32_t count);
  std::vector<PrefixTree::Range> uncut_of(const Stream& stream) const;
  void name_media(Stream& stream);
  void plan_marks(Stream& stream);
  std::int32_t shared_position(Stream& stream, Stream& other);
  bool waits_for_disk(Stream& stream);
  bool resume(Stream& stream);
  void offer_system_prompt(Stream& stream);
  void keep_prompt(Stream& stream);
  void settle(Stream& stream);
  void keep(Stream& stream, std::int32_t position, bool resume_point);

  LanguageModel& model_;
  PagePool& pool_;
  std::vector<CacheGroup> groups_;
  std::int32_t pass_rows_;
  Options options_;
  SnapshotPool snapshots_;
  std::unique_ptr<PrefixTree> tree_;        // null: off
  std::unique_ptr<PrefixLearner> learner_;  // null: nothing goes to disk
  std::int32_t mark_spacing_ = 0;
  std::map<std::vector<std::uint8_t>, std::int32_t> media_names_;  // content hash -> key element (negative)
  PrefixCounters counters_;
};

}  // namespace tensorfold
