// One round of the engine (engine_loop.h): grants become a plan, the plan a forward pass, its logits draws and events.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/engine_loop.h"

namespace tensorfold {

void EngineLoop::run_round() {
  const std::vector<Grant> grants = grant_rows();
  TF_ASSERT(!grants.empty());
  const Clock::time_point start = Clock::now();
  build_plan(grants);
  ++rounds_;
  try {
    model_.forward(plan_, result_);
    index_logits();
  } catch (const std::exception& error) {
    const std::string message = fmt::format("The model failed on a pass with this stream: {}", error.what());
    for (Stream* stream : plan_streams_) stream->finish(FinishReason::kError, message);
    return;
  }
  note_service(grants);
  const Clock::time_point now = Clock::now();
  for (std::size_t i = 0; i < plan_streams_.size(); ++i) {
    Stream& stream = *plan_streams_[i];
    try {
      deliver(stream, plan_.lanes[i], now);
    } catch (const std::exception& error) {
      stream.finish(FinishReason::kError, error.what());  // a path rule or a logits callback: it ends its stream alone
    }
  }
  costs_.observe(static_cast<std::int32_t>(plan_.rows.size()),
                 std::chrono::duration<double>(Clock::now() - start).count());
}

std::vector<Grant> EngineLoop::grant_rows() {
  std::vector<LaneWork> work;
  for (std::size_t lane = 0; lane < running_.size(); ++lane) {
    const Stream& stream = *running_[lane];
    LaneWork entry;
    entry.lane = static_cast<std::int32_t>(lane);
    entry.prompt_rows_left = stream.prompt_rows_left();
    entry.background = stream.request().background;
    entry.wants_every_row = stream.wants_every_row();
    entry.times_passed_over = stream.times_passed_over;
    entry.last_served = stream.last_served;
    entry.order = stream.order;
    work.push_back(entry);
  }
  return scheduler_.schedule(work, costs_);
}

void EngineLoop::build_plan(const std::vector<Grant>& grants) {
  plan_.rows.clear();
  plan_.lanes.clear();
  plan_streams_.clear();
  for (const Grant& grant : grants) add_rows(*running_[static_cast<std::size_t>(grant.lane)], grant.rows);
}

void EngineLoop::add_rows(Stream& stream, std::int32_t rows) {
  stream.cache().prepare(stream.fed(), rows);
  PlanLane lane;
  lane.slot = stream.cache().slot();
  lane.first_row = static_cast<std::int32_t>(plan_.rows.size());
  lane.row_count = rows;
  lane.position = stream.fed();
  lane.commits = stream.phase() == Stream::Phase::kPrompt;
  lane.replay_rows = stream.replay_rows();
  lane.pages = stream.cache().tables();
  for (std::int32_t i = 0; i < rows; ++i) {
    PlanRow row;
    row.sequence_index = stream.fed() + i;
    row.token = stream.context()[static_cast<std::size_t>(row.sequence_index)];
    row.rope_position = {row.sequence_index, row.sequence_index, row.sequence_index};
    row.parent_row = i == 0 ? -1 : lane.first_row + i - 1;
    row.lane = static_cast<std::int32_t>(plan_.lanes.size());
    row.flags = stream.wants_logits(row.sequence_index) ? kRowWantsLogits : 0u;
    plan_.rows.push_back(row);
  }
  plan_.lanes.push_back(std::move(lane));
  plan_streams_.push_back(&stream);
}

void EngineLoop::index_logits() {
  logits_index_.assign(plan_.rows.size(), -1);
  for (std::size_t i = 0; i < result_.logits_rows.size(); ++i) {
    logits_index_.at(static_cast<std::size_t>(result_.logits_rows[i])) = static_cast<std::int32_t>(i);
  }
  for (std::size_t row = 0; row < plan_.rows.size(); ++row) {
    if ((plan_.rows[row].flags & kRowWantsLogits) != 0 && logits_index_[row] < 0) {
      fail(ErrorCode::kInternal, "the pass returned no logits for a row that wants them");
    }
  }
}

const float* EngineLoop::logits_of(std::int32_t plan_row) const {
  const std::int32_t index = logits_index_[static_cast<std::size_t>(plan_row)];
  if (index < 0) return nullptr;
  return result_.logits + static_cast<std::size_t>(index) * static_cast<std::size_t>(facts_.vocabulary_size);
}

void EngineLoop::note_service(const std::vector<Grant>& grants) {
  for (const std::shared_ptr<Stream>& stream : running_) ++stream->times_passed_over;
  for (const Grant& grant : grants) {
    Stream& stream = *running_[static_cast<std::size_t>(grant.lane)];
    stream.times_passed_over = 0;
    stream.last_served = ++services_;  // in the order of grants: lanes that take turns take equal ones
  }
}

void EngineLoop::deliver(Stream& stream, const PlanLane& span, Clock::time_point now) {
  if (stream.is_cancel_requested()) {
    stream.finish(FinishReason::kCancelled);
    return;
  }
  stream.advance(span.row_count, now);
  if (stream.request().on_logits) {
    for (std::int32_t i = 0; i < span.row_count; ++i) {
      stream.request().on_logits(span.position + i, logits_of(span.first_row + i), facts_.vocabulary_size);
    }
  }
  if (span.commits) deliver_prompt(stream, span);
  if (stream.is_finished() || stream.prompt_rows_left() > 0) return;
  extend_reply(stream, logits_of(span.first_row + span.row_count - 1), now);
}

void EngineLoop::deliver_prompt(Stream& stream, const PlanLane& span) {
  round_prompt_tokens_ += static_cast<std::uint64_t>(span.row_count);
  const std::int32_t end = span.position + span.row_count;
  if (stream.request().score_prompt) {
    const std::int32_t top = std::max(stream.request().logprobs_top, 0);
    if (span.position == 0) stream.emit(PromptScoreEvent{0, {stream.context()[0], 0.0f}, {}});
    for (std::int32_t index = span.position + 1; index <= std::min(end, stream.prompt_length() - 1); ++index) {
      const float* logits = logits_of(span.first_row + index - 1 - span.position);
      PromptScoreEvent event;
      event.index = index;
      if (!sampler_.logprobs(logits, stream.context()[static_cast<std::size_t>(index)], top, event.chosen, event.top)) {
        fail(ErrorCode::kInternal, "The model's output is not finite at prompt token {}.", index);
      }
      if (!stream.emit(std::move(event))) return;
    }
  }
  stream.emit(PromptProgressEvent{end, stream.prompt_length(), 0});
}

std::int32_t EngineLoop::choose_token(Stream& stream, const float* logits) {
  const std::uint32_t* allowed = nullptr;
  if (stream.rule() != nullptr) {
    const std::vector<std::int32_t> forced = stream.rule()->forced_tokens();
    if (!forced.empty()) {
      if (forced[0] < 0 || forced[0] >= facts_.vocabulary_size) {
        fail(ErrorCode::kInternal, "A rule forced token {}, which is outside the vocabulary.", forced[0]);
      }
      if (sampler_.is_finite(logits)) return forced[0];
      stream.finish(FinishReason::kError, "The model's output is not finite.");
      return -1;
    }
    const std::size_t words = (static_cast<std::size_t>(facts_.vocabulary_size) + 31) / 32;
    allowed_bits_.assign(words, 0);
    if (stream.rule()->mask(allowed_bits_)) {
      allowed_bits_.resize(words, 0);
      allowed = allowed_bits_.data();
    }
  }
  // The row that feeds index i draws the token of index i + 1 and is keyed with it (engine.md, N2).
  const auto position = static_cast<std::int64_t>(stream.context().size());
  stream.logit_adjust().collect(logits, {}, adjusted_);
  const Draw draw = sampler_.draw(logits, allowed, stream.request().sampling, position, adjusted_);
  if (draw.status == DrawStatus::kDrawn) return draw.token;
  stream.finish(FinishReason::kError,
                draw.status == DrawStatus::kNotFinite
                    ? "The model's output is not finite."
                    : "No token is allowed here: the output rule and the model exclude them all.");
  return -1;
}

void EngineLoop::extend_reply(Stream& stream, const float* logits, Clock::time_point now) {
  if (stream.request().reply_tokens_max == 0) {
    stream.finish(FinishReason::kLength);
    return;
  }
  TokenEvent event;
  event.token = choose_token(stream, logits);
  if (stream.is_finished()) return;
  event.is_stop_token = stream.is_stop_token(event.token);
  PathRule::Verdict verdict = PathRule::Verdict::kContinue;
  if (stream.rule() != nullptr && !event.is_stop_token) verdict = stream.rule()->advance(event.token);
  if (verdict == PathRule::Verdict::kCut) {
    stream.finish(FinishReason::kStopRule);
    return;
  }
  if (stream.request().logprobs_top >= 0) {
    sampler_.logprobs(logits, event.token, stream.request().logprobs_top, event.chosen, event.top);
  }
  const bool is_stop_token = event.is_stop_token;
  ++round_reply_tokens_;
  stream.append(std::move(event), now);
  if (is_stop_token) {
    stream.finish(FinishReason::kStopToken);
  } else if (verdict == PathRule::Verdict::kStop) {
    stream.finish(FinishReason::kStopRule);
  } else if (static_cast<std::int32_t>(stream.context().size()) == stream.tokens_max()) {
    stream.finish(FinishReason::kLength);
  }
}

}  // namespace tensorfold
