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
  started_ = now;
}

void Stream::advance(std::int32_t rows, Clock::time_point now) {
  fed_ += rows;
  TF_ASSERT(fed_ <= static_cast<std::int32_t>(context_.size()));
  replay_rows_.clear();
  if (phase_ == Phase::kDecode) {
    for (std::int32_t row = 0; row < rows; ++row) replay_rows_.push_back(row);
    ++statistics_.rounds;
    statistics_.rows_min = statistics_.rows_min == 0 ? rows : std::min(statistics_.rows_min, rows);
  } else {
    if (statistics_.prefill_widths.size() < limits::kPrefillWidthsMax) statistics_.prefill_widths.push_back(rows);
    if (fed_ == prompt_length_) {
      phase_ = Phase::kDecode;
      prompt_done_ = now;
    }
  }
}

void Stream::append(TokenEvent event, Clock::time_point now) {
  if (statistics_.reply_tokens == 0) first_token_ = now;
  event.index = statistics_.reply_tokens++;
  context_.push_back(event.token);
  logit_adjust_.commit(event.token);
  emit(std::move(event));
}

bool Stream::emit(StreamEvent&& event) {
  if (is_finished()) return false;
  try {
    sink_(std::move(event));
    return true;
  } catch (const std::exception& error) {
    finish(FinishReason::kError, fmt::format("The receiver of this stream's events failed: {}", error.what()));
  } catch (...) {
    finish(FinishReason::kError, "The receiver of this stream's events failed.");
  }
  return false;
}

void Stream::finish(FinishReason reason, const std::string& message) {
  if (is_finished()) return;
  const Clock::time_point now = Clock::now();
  phase_ = Phase::kFinished;
  cache_.release();
  const bool was_started = started_ != Clock::time_point{};
  statistics_.queue_seconds = seconds_between(opened_, was_started ? started_ : now);
  if (was_started) {
    statistics_.prefill_seconds = seconds_between(started_, prompt_done_ != Clock::time_point{} ? prompt_done_ : now);
  }
  statistics_.time_to_first_token_seconds = seconds_between(opened_, first_token_);
  statistics_.decode_seconds = seconds_between(first_token_, now);
  if (reason == FinishReason::kError) spdlog::warn("stream {}: {}", request_.id, message);
  try {
    sink_(FinishEvent{reason, message, statistics_});
  } catch (...) {
    spdlog::warn("stream {}: the receiver failed on the last event", request_.id);
  }
  // What callers injected may hold resources of theirs: let go of it now, whoever still holds the handle.
  sink_ = nullptr;
  request_.rule.reset();
  request_.on_logits = nullptr;
}

}  // namespace tensorfold
