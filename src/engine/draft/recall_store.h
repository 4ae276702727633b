// The recall store (engine.md 4.4): token ids that earlier requests read and wrote, kept on disk for drafting. A folder
// for each tokenizer, in it segment files that are only ever appended to; the oldest leave first. Texts are handed over
// behind the reply and written by a thread of the store's own; a search looks at memory alone. What can go wrong while
// serving (a full disk, a damaged file) costs drafts and one log line, never a request.
//
// The files hold what users wrote: folders are 0700, files 0600, no link is followed. One process writes a folder; a
// second one reads what was there when it started. A crash loses at most what had not been written: a torn end is cut
// off by the next opening.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/draft/recall_folder.h"
#include "engine/draft/recall_index.h"

namespace tensorfold {

struct RecallOptions {
  std::filesystem::path folder;         // of all tokenizers; created where it is missing
  std::uint64_t bytes_max = 64u << 20;  // of the files, and of the ids in memory; twice as many for the table
  bool read_only = false;
  RecallIdentity identity{};  // of the tokenizer
  std::int32_t vocabulary_size = 0;
};

class RecallStore {
 public:
  /// Reads what is there. Throws Error when the folder can't be made, read or kept private.
  explicit RecallStore(const RecallOptions& options);
  /// Writes what waits.
  ~RecallStore();
  RecallStore(const RecallStore&) = delete;
  RecallStore& operator=(const RecallStore&) = delete;

  /// Any thread; returns at once. What the store knows already isn't written again. Dropped when too much waits.
  void record(const RecallScope& scope, std::span<const std::int32_t> text);
  /// Blocks until everything recorded so far has been written or dropped.
  void flush();

  /// Where the end of `text` stood before, in this scope: the longer of what follows `last` (a place that an earlier
  /// call returned; `news` are the tokens that came since) and a fresh search. Writes up to `continuation.size()`
  /// tokens that stood there next; `count` says how many.
  RecallIndex::Place look_up(const RecallScope& scope, std::span<const std::int32_t> text,
                             const RecallIndex::Place& last, std::span<const std::int32_t> news,
                             std::span<std::int32_t> continuation, std::size_t& count) const;

  bool is_read_only() const { return folder_.is_read_only(); }
  const std::filesystem::path& path() const { return folder_.path(); }
  std::size_t token_count() const;

 private:
  struct Text {
    RecallScope scope;
    std::vector<std::int32_t> tokens;
  };

  void load();
  void write_texts();
  void write(const Text& text);
  /// The parts of a text that the store doesn't hold, with enough around them to be found.
  std::vector<std::span<const std::int32_t>> unknown_parts(const Text& text) const;
  std::size_t known_length(const RecallScope& scope, std::span<const std::int32_t> text) const;

  const RecallOptions options_;
  RecallFolder folder_;

  mutable std::mutex index_mutex_;
  RecallIndex index_;
  std::uint64_t newest_segment_ = 0;  // of the index

  std::mutex queue_mutex_;
  std::condition_variable queue_changed_;
  std::deque<Text> queue_;
  std::size_t queued_tokens_ = 0;
  bool is_writing_ = false;
  bool stopping_ = false;
  std::thread writer_;  // last
};

}  // namespace tensorfold
