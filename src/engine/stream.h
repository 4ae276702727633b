// One stream's timeline: its request, its context of tokens, its caches and its bookkeeping. Everything but the cancel
// flag belongs to the engine thread. It delivers its own events, and it ends exactly once.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/cache/stream_cache.h"
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
  bool wants_every_row() const { return request_.score_prompt || static_cast<bool>(request_.on_logits); }
  bool wants_logits(std::int32_t sequence_index) const;
  StreamCache& cache() { return cache_; }
  const std::vector<std::int32_t>& replay_rows() const { return replay_rows_; }
  bool is_stop_token(std::int32_t token) const;

  void start(Clock::time_point now);
  /// A pass has fed `rows` more rows. A window's accepted rows are replayed by the stream's next pass.
  void advance(std::int32_t rows, Clock::time_point now);
  /// Appends a token of the reply and delivers it.
  void append(TokenEvent event, Clock::time_point now);
  /// Delivers an event; a sink that throws ends this stream alone. False when the stream has finished.
  bool emit(StreamEvent&& event);
  /// Ends the stream, once: gives its caches back and delivers FinishEvent.
  void finish(FinishReason reason, const std::string& message = {});

  // Scheduling bookkeeping, kept by the loop.
  std::int32_t times_passed_over = 0;
  std::uint64_t last_served = 0;
  std::uint64_t order = 0;

 private:
  StreamRequest request_;
  StreamSink sink_;
  std::atomic<bool> cancel_requested_{false};
  Phase phase_ = Phase::kWaiting;
  std::vector<std::int32_t> context_;
  std::int32_t prompt_length_ = 0;
  std::int32_t fed_ = 0;
  std::vector<std::int32_t> replay_rows_;
  StreamCache cache_;
  LogitAdjust logit_adjust_;
  StreamStatistics statistics_;
  Clock::time_point opened_, started_, prompt_done_, first_token_;
};

}  // namespace tensorfold
