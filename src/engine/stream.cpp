// A stream's timeline (see stream.h).
#include "engine/stream.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"

namespace tensorfold {
namespace {

double seconds_between(Stream::Clock::time_point from, Stream::Clock::time_point to) {
  const bool both_happened = from != Stream::Clock::time_point{} && to != Stream::Clock::time_point{};
  return both_happened ? std::chrono::duration<double>(to - from).count() : 0.0;
}

}  // namespace

Stream::Stream(StreamRequest request, StreamSink sink)
    : request_(std::move(request)), sink_(std::move(sink)), opened_(Clock::now()) {
  context_ = request_.prompt.tokens;
  logit_adjust_ = LogitAdjust(request_.logit_rule, context_);
  prompt_length_ = static_cast<std::int32_t>(context_.size());
  statistics_.prompt_tokens = prompt_length_;
  statistics_.seed = request_.sampling.seed;
  if (request_.background && request_.rule != nullptr) first_rule_ = request_.rule->clone();
}

bool Stream::wants_logits(std::int32_t sequence_index) const {
  if (request_.on_logits) return true;
  if (sequence_index + 1 < prompt_length_) return request_.score_prompt;
  return request_.reply_tokens_max > 0;
}

bool Stream::is_stop_token(std::int32_t token) const {
  const std::vector<std::int32_t>& stops = request_.stop_tokens;
  return !request_.ignore_stop_tokens && std::find(stops.begin(), stops.end(), token) != stops.end();
}

void Stream::start(Clock::time_point now) {
  TF_ASSERT(phase_ == Phase::kWaiting);
  phase_ = Phase::kPrompt;
  if (started_ == Clock::time_point{}) started_ = now;
}

void Stream::resume(std::int32_t position) {
  TF_ASSERT(fed_ == 0 && position > 0 && position < prompt_length_);
  fed_ = position;
  if (statistics_.preemptions == 0)
    statistics_.cached_tokens = position;  // later it may be what the stream kept itself
}

void Stream::advance_prompt(std::int32_t rows, Clock::time_point now) {
  TF_ASSERT(phase_ == Phase::kPrompt && rows <= prompt_rows_left());
  is_in_pass = false;
  // What is computed wasn't restored, whatever an earlier life of a preempted stream found kept.
  statistics_.cached_tokens = std::min(statistics_.cached_tokens, fed_);
  fed_ += rows;
  replay_rows_.clear();
  if (statistics_.prefill_widths.size() < limits::kPrefillWidthsMax) statistics_.prefill_widths.push_back(rows);
  if (fed_ < prompt_length_) return;
  phase_ = Phase::kDecode;
  if (prompt_done_ == Clock::time_point{}) prompt_done_ = now;
}

void Stream::release_caches(bool state_is_good) {
  if (before_release && state_is_good && !is_in_pass && cache_.is_admitted()) before_release(*this);
  before_release = nullptr;
  cache_.release();
}

void Stream::preempt() {
  TF_ASSERT(request_.background && (phase_ == Phase::kPrompt || phase_ == Phase::kDecode));
  release_caches(true);
  const auto reply = context_.begin() + prompt_length_;
  if (static_cast<std::size_t>(context_.end() - reply) > owed_.size()) owed_.assign(reply, context_.end());
  context_.resize(static_cast<std::size_t>(prompt_length_));
  fed_ = 0;
  replay_rows_.clear();
  replay_tree_ = false;
  logit_adjust_ = LogitAdjust(request_.logit_rule, context_);
  if (first_rule_ != nullptr) request_.rule = first_rule_->clone();
  phase_ = Phase::kWaiting;
  ++statistics_.preemptions;
}

bool Stream::claim_row(std::int32_t sequence_index) {
  if (sequence_index < rows_reported_) return false;
  rows_reported_ = sequence_index + 1;
  return true;
}

void Stream::begin_window(std::int32_t rows, bool is_tree, std::optional<DraftKind> source) {
  TF_ASSERT(phase_ == Phase::kDecode);
  is_in_pass = false;
  replay_rows_.clear();
  replay_tree_ = is_tree;
  window_source_ = source;
  ++statistics_.rounds;
  statistics_.rows_min = statistics_.rows_min == 0 ? rows : std::min(statistics_.rows_min, rows);
  statistics_.rows_max = std::max(statistics_.rows_max, rows);
  if (!source) return;
  statistics_.drafted += rows - 1;
  statistics_.by_source[static_cast<std::size_t>(*source)].drafted += rows - 1;
}

void Stream::commit_row(std::int32_t window_row) {
  TF_ASSERT(replay_rows_.empty() ? window_row == 0 : window_row > replay_rows_.back());
  replay_rows_.push_back(window_row);
  ++fed_;
  TF_ASSERT(fed_ == static_cast<std::int32_t>(context_.size()));  // N1: what is fed is what was drawn, nothing else
  if (window_row == 0 || !window_source_) return;
  ++statistics_.accepted;
  ++statistics_.by_source[static_cast<std::size_t>(*window_source_)].accepted;
}

bool Stream::append(TokenEvent event, Clock::time_point now) {
  event.index = static_cast<std::int32_t>(context_.size()) - prompt_length_;
  context_.push_back(event.token);
  logit_adjust_.commit(event.token);
  if (const auto index = static_cast<std::size_t>(event.index); index < owed_.size()) {
    if (owed_[index] != event.token) {
      finish(FinishReason::kError, "A preempted request gave another token when it was computed again.");
    }
    return false;
  }
  if (event.index == 0) first_token_ = now;
  ++statistics_.reply_tokens;
  emit(std::move(event));
  return true;
}

bool Stream::emit(StreamEvent&& event) {
  if (is_finished()) return false;
  if (const auto* progress = std::get_if<PromptProgressEvent>(&event)) {
    if (progress->tokens_done <= prompt_reported_) return true;  // said before a preemption
    prompt_reported_ = progress->tokens_done;
  }
  if (const auto* score = std::get_if<PromptScoreEvent>(&event)) {
    if (score->index < scores_reported_) return true;
    scores_reported_ = score->index + 1;
  }
  try {
    sink_(std::move(event));
    return true;
  } catch (const std::exception& error) {
    spdlog::warn("stream {}: the receiver of its events failed: {}", request_.id, error.what());
  } catch (...) {
    spdlog::warn("stream {}: the receiver of its events failed", request_.id);
  }
  finish(FinishReason::kError, "The receiver of this stream's events failed.");
  return false;
}

void Stream::finish(FinishReason reason, std::string_view message) {
  if (is_finished()) return;
  const Clock::time_point now = Clock::now();
  try {
    release_caches(reason != FinishReason::kError);
  } catch (const std::exception& error) {
    spdlog::warn("stream {}: its caches couldn't be kept: {}", request_.id, error.what());
    before_release = nullptr;
    cache_.release();
  }
  phase_ = Phase::kFinished;
  const bool was_started = started_ != Clock::time_point{};
  statistics_.queue_seconds = seconds_between(opened_, was_started ? started_ : now);
  if (was_started) {
    statistics_.prefill_seconds = seconds_between(started_, prompt_done_ != Clock::time_point{} ? prompt_done_ : now);
  }
  statistics_.time_to_first_token_seconds = seconds_between(opened_, first_token_);
  statistics_.decode_seconds = seconds_between(first_token_, now);
  if (reason == FinishReason::kError) spdlog::warn("stream {}: {}", request_.id, message);
  deliver_end(reason, message);
  // What callers injected may hold resources of theirs: let go of it now, whoever still holds the handle.
  sink_ = nullptr;
  request_.rule.reset();
  first_rule_.reset();
  request_.on_logits = nullptr;
}

/// Whoever waits for the end must hear of it: where memory for its message is short it comes without one.
void Stream::deliver_end(FinishReason reason, std::string_view message) {
  FinishEvent event;
  event.reason = reason;
  event.statistics = std::move(statistics_);
  try {
    event.message = message;
  } catch (const std::bad_alloc&) {
  }
  try {
    sink_(std::move(event));
  } catch (...) {
    spdlog::warn("stream {}: the receiver failed on the last event", request_.id);
  }
}

}  // namespace tensorfold
