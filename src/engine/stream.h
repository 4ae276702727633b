// One stream's timeline: its request, its context of tokens, its caches and its bookkeeping. Everything but the cancel
// flag belongs to the engine thread. It delivers its own events, and it ends exactly once.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cache/prefix_cache.h"
#include "engine/cache/stream_cache.h"
#include "engine/draft/stream_drafts.h"
#include "engine/engine.h"
#include "engine/logit_adjust.h"

namespace tensorfold {

class Stream {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Phase { kWaiting, kPrompt, kDecode, kFinished };

  Stream(StreamRequest request, StreamSink sink);

  /// Any thread.
  void request_cancel() { cancel_requested_.store(true, std::memory_order_release); }
  bool is_cancel_requested() const { return cancel_requested_.load(std::memory_order_acquire); }

  // --- engine thread
  const StreamRequest& request() const { return request_; }
  PathRule* rule() { return request_.rule.get(); }
  /// Penalties and biases after the committed tokens; a row of a window gives its drafts as `path`.
  const LogitAdjust& logit_adjust() const { return logit_adjust_; }
  Phase phase() const { return phase_; }
  bool is_finished() const { return phase_ == Phase::kFinished; }
  std::int32_t prompt_length() const { return prompt_length_; }
  /// prompt ++ reply. While decoding, its last token is pending: drawn, not yet fed.
  const std::vector<std::int32_t>& context() const { return context_; }
  /// Rows fed so far; the next row feeds context()[fed()].
  std::int32_t fed() const { return fed_; }
  std::int32_t prompt_rows_left() const { return phase_ == Phase::kPrompt ? prompt_length_ - fed_ : 0; }
  /// Most tokens the context can grow to.
  std::int32_t tokens_max() const { return prompt_length_ + request_.reply_tokens_max; }
  /// Levels of drafts after the pending token that can be of use: the reply's last token is never fed.
  std::int32_t draft_room() const { return tokens_max() - 2 - fed_; }
  bool wants_every_row() const { return request_.score_prompt || static_cast<bool>(request_.on_logits); }
  bool wants_logits(std::int32_t sequence_index) const;
  StreamCache& cache() { return cache_; }
  /// Rows of the last window that were committed, for the stream's next pass to replay.
  const std::vector<std::int32_t>& replay_rows() const { return replay_rows_; }
  bool replay_tree() const { return replay_tree_; }
  bool is_stop_token(std::int32_t token) const;

  void start(Clock::time_point now);
  /// Before the first row: the first `position` tokens of the prompt are in the caches already.
  void resume(std::int32_t position);
  std::int32_t cached_tokens() const { return statistics_.cached_tokens; }
  /// A pass has fed `rows` more rows of the prompt.
  void advance_prompt(std::int32_t rows, Clock::time_point now);
  /// A pass has fed a window of `rows` rows; commit_row() follows for each row of the accepted path, the first
  /// included. `source`: whose drafts they are, where a source filled the window.
  void begin_window(std::int32_t rows, bool is_tree, std::optional<DraftKind> source);
  void commit_row(std::int32_t window_row);
  /// Appends a token of the reply and delivers it, unless it is owed (preempt()) and was delivered before. False when
  /// nothing was delivered.
  bool append(TokenEvent event, Clock::time_point now);
  /// Gives the caches back and starts over when it is admitted again (engine.md 5.6). What it has delivered is owed:
  /// its tokens are computed again, compared, and not said twice.
  void preempt();
  /// A token of the reply was drawn where the logits lie.
  void note_backend_draw() { ++statistics_.drawn_by_backend; }
  /// Whether the row of this sequence index is reported for the first time; it counts as reported from then on.
  bool claim_row(std::int32_t sequence_index);
  /// Tokens that it has delivered and has yet to compute again.
  const std::vector<std::int32_t>& owed() const { return owed_; }
  /// Delivers an event; a sink that throws ends this stream alone. False when the stream has finished.
  bool emit(StreamEvent&& event);
  /// Ends the stream, once: gives its caches back and delivers FinishEvent.
  void finish(FinishReason reason, std::string_view message = {});

  // Scheduling bookkeeping, kept by the loop.
  std::int32_t times_passed_over = 0;
  std::uint64_t last_served = 0;
  std::uint64_t order = 0;
  /// From planning a pass until its rows are counted: pages, slot and fed() don't belong together.
  bool is_in_pass = false;

  // Prefix reuse, kept by the PrefixCache.
  StreamPrefix prefix;
  /// Called once, when the stream ends (not by an error) or is preempted, while it still holds caches that are as fed()
  /// says.
  std::function<void(Stream&)> before_release;
  StreamDrafts drafts;  // kept by the Drafter

 private:
  void release_caches(bool state_is_good);
  void deliver_end(FinishReason reason, std::string_view message);

  StreamRequest request_;
  StreamSink sink_;
  std::atomic<bool> cancel_requested_{false};
  Phase phase_ = Phase::kWaiting;
  std::vector<std::int32_t> context_;
  std::int32_t prompt_length_ = 0;
  std::int32_t fed_ = 0;
  std::vector<std::int32_t> replay_rows_;
  bool replay_tree_ = false;
  std::optional<DraftKind> window_source_;
  std::unique_ptr<PathRule> first_rule_;  // as it was before the reply, of a stream that may be preempted
  std::vector<std::int32_t> owed_;        // the longest reply that was delivered before a preemption
  std::int32_t rows_reported_ = 0, prompt_reported_ = 0, scores_reported_ = 0;
  StreamCache cache_;
  LogitAdjust logit_adjust_;
  StreamStatistics statistics_;
  Clock::time_point opened_, started_, prompt_done_, first_token_;
};

}  // namespace tensorfold
