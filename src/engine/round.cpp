// One round of the engine (engine_loop.h): grants become a plan, the plan a forward pass, its logits draws and events,
// and what was committed the next drafts. round_plan.cpp makes the plan.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/engine_loop.h"

namespace tensorfold {

void EngineLoop::run_round() {
  note_pass_times();
  const std::vector<Grant> grants = grant_rows();
  TF_ASSERT(!grants.empty());
  const bool stands_in_line = queued_passes_ > 0;
  const Clock::time_point start = Clock::now();
  build_plan(grants);
  ++rounds_;
  try {
    model_.forward_beside(plan_, result_, [this] { ask_rules(); });
    index_logits();
  } catch (const std::exception& error) {
    const std::string message = fmt::format("The model failed on a pass with this stream: {}", error.what());
    for (Stream* stream : plan_streams_) stream->finish(FinishReason::kError, message);
    return;
  }
  note_service(grants);
  fed_.clear();
  const Clock::time_point now = Clock::now();
  for (std::size_t i = 0; i < plan_streams_.size(); ++i) {
    Stream& stream = *plan_streams_[i];
    try {
      deliver(stream, plan_.lanes[i], now);
    } catch (const std::exception& error) {
      stream.finish(FinishReason::kError, error.what());  // a path rule or a logits callback: it ends its stream alone
    }
  }
  observe_cost(start, stands_in_line);
  draft();
}

/// Of each lane the draw that is made whatever the pass brings: after the pending token, or after the prompt's last.
void EngineLoop::ask_rules() {
  rules_ahead_.begin_pass();
  for (std::size_t i = 0; i < plan_streams_.size(); ++i) {
    Stream& stream = *plan_streams_[i];
    const PlanLane& span = plan_.lanes[i];
    if (stream.rule() == nullptr || stream.request().reply_tokens_max == 0) continue;
    if (span.commits && span.position + span.row_count < stream.prompt_length()) continue;
    rules_ahead_.ask(*stream.rule(), span.first_row + (span.commits ? span.row_count - 1 : 0));
  }
}

/// Of passes that nobody waited for. Their rows were a prompt's, and no window's.
void EngineLoop::note_pass_times() {
  for (const ops::PassTime& time : model_.take_pass_times()) {
    queued_passes_ = std::max(0, queued_passes_ - 1);
    costs_.observe(static_cast<std::int32_t>(time.rows), time.seconds);
  }
}

/// The host's clock tells what a pass took that was waited for and began at once. One that `stands_in_line` behind queued ones isn't
/// counted: when those were over nobody saw.
void EngineLoop::observe_cost(Clock::time_point start, bool stands_in_line) {
  if (!result_.is_awaited) ++queued_passes_;
  note_pass_times();
  if (!result_.is_awaited) return;
  queued_passes_ = 0;  // whatever was before it is over
  if (stands_in_line) return;
  const auto rows = static_cast<std::int32_t>(plan_.rows.size());
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  costs_.observe(rows, seconds);
  const bool is_windows_only =
      std::none_of(plan_.lanes.begin(), plan_.lanes.end(), [](const PlanLane& lane) { return lane.commits; });
  if (is_windows_only) window_costs_.observe(rows, seconds);
}

void EngineLoop::draft() {
  std::int32_t lanes = 0;
  for (const std::shared_ptr<Stream>& stream : running_) {
    if (!stream->is_finished() && stream->prompt_rows_left() == 0) ++lanes;
  }
  drafter_.after_pass(fed_, lanes, window_costs_);
}

std::vector<Grant> EngineLoop::grant_rows() {
  std::vector<LaneWork> work;
  for (std::size_t lane = 0; lane < running_.size(); ++lane) {
    const Stream& stream = *running_[lane];
    LaneWork entry;
    entry.lane = static_cast<std::int32_t>(lane);
    entry.prompt_rows_left = stream.prompt_rows_left();
    entry.draft_chances = stream.drafts.window.chances;
    entry.prompt_rows_max = prefixes_.prompt_rows_max(stream);
    entry.background = stream.request().background && !stream.prefix.is_awaited;
    entry.wants_every_row = stream.wants_every_row();
    entry.times_passed_over = stream.times_passed_over;
    entry.last_served = stream.last_served;
    entry.order = stream.order;
    work.push_back(entry);
  }
  return scheduler_.schedule(work, costs_, window_costs_);
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
    if (span.commits) stream.advance_prompt(span.row_count, now);  // what was computed can be kept
    stream.finish(FinishReason::kCancelled);
    return;
  }
  if (span.commits) {
    deliver_prompt(stream, span, now);
    const std::int32_t last_row = span.first_row + span.row_count - 1;
    if (!stream.is_finished() && stream.prompt_rows_left() == 0) extend_reply(stream, last_row, now);
  } else {
    walk_window(stream, span, now);
  }
  if (!stream.is_finished()) note_fed(stream, span);
}

void EngineLoop::report_logits(Stream& stream, std::int32_t plan_row) {
  if (!stream.request().on_logits) return;
  const std::int32_t index = plan_.rows[static_cast<std::size_t>(plan_row)].sequence_index;
  if (!stream.claim_row(index)) return;
  stream.request().on_logits(index, logits_of(plan_row), facts_.vocabulary_size);
}

// From the pending token's row to the lowest child that holds the token which was drawn at its parent, and so on: every
// step is the serial run's own, so nothing behind the path is ever looked at.
void EngineLoop::walk_window(Stream& stream, const PlanLane& span, Clock::time_point now) {
  const std::optional<DraftKind> source = window_source(stream, span);
  DraftCounts* counts = source ? &round_drafts_[static_cast<std::size_t>(*source)] : nullptr;
  if (counts != nullptr) {
    ++counts->windows;
    counts->drafted += static_cast<std::uint64_t>(span.row_count - 1);
  }
  stream.begin_window(span.row_count, is_tree(stream.drafts.window.proposal.nodes, span.row_count - 1), source);
  for (std::int32_t row = 0; row >= 0;) {
    stream.commit_row(row);
    if (row > 0 && counts != nullptr) ++counts->accepted;
    report_logits(stream, span.first_row + row);
    extend_reply(stream, span.first_row + row, now);
    if (stream.is_finished()) return;
    if (stream.is_cancel_requested()) return stream.finish(FinishReason::kCancelled);
    row = accepted_child(span, row, stream.context().back());
  }
}

std::int32_t EngineLoop::accepted_child(const PlanLane& span, std::int32_t window_row, std::int32_t token) const {
  for (std::int32_t row = window_row + 1; row < span.row_count; ++row) {
    const PlanRow& candidate = plan_.rows[static_cast<std::size_t>(span.first_row + row)];
    if (candidate.parent_row == span.first_row + window_row && candidate.token == token) return row;
  }
  return -1;
}

std::optional<DraftKind> EngineLoop::window_source(const Stream& stream, const PlanLane& span) const {
  const DraftWindow& window = stream.drafts.window;
  if (span.row_count == 1 || window.kind != WindowKind::kDrafted) return std::nullopt;
  return drafter_.kind(window.source);
}

void EngineLoop::note_fed(Stream& stream, const PlanLane& span) {
  FedRows fed;
  fed.stream = &stream;
  const auto add = [&](std::int32_t row) {
    const std::int32_t position = plan_.rows[static_cast<std::size_t>(span.first_row + row)].sequence_index;
    fed.rows.push_back({span.first_row + row, position, stream.context()[static_cast<std::size_t>(position) + 1]});
  };
  if (span.commits) {
    for (std::int32_t row = 0; row < span.row_count; ++row) add(row);
  } else {
    fed.fed_drafts = span.row_count - 1;
    for (const std::int32_t row : stream.replay_rows()) {
      add(row);
      if (row > 0) fed.landed.push_back(row - 1);
    }
  }
  fed_.push_back(std::move(fed));
}

void EngineLoop::deliver_prompt(Stream& stream, const PlanLane& span, Clock::time_point now) {
  stream.advance_prompt(span.row_count, now);
  prefixes_.on_prompt_rows(stream);
  for (std::int32_t row = 0; row < span.row_count; ++row) report_logits(stream, span.first_row + row);
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
  stream.emit(PromptProgressEvent{end, stream.prompt_length(), stream.cached_tokens()});
}

std::int32_t EngineLoop::end_without_token(Stream& stream, std::int32_t code) {
  stream.finish(FinishReason::kError,
                code == ops::kDrawNotFinite
                    ? "The model's output is not finite."
                    : "No token is allowed here: the output rule and the model exclude them all.");
  return -1;
}

// The draw where the logits lie counts only when nothing stands between the raw row and the draw; otherwise the row comes to
// the host and is drawn here, to the same token if nothing changed it.
std::int32_t EngineLoop::choose_token(Stream& stream, std::int32_t plan_row) {
  const std::uint32_t* allowed = nullptr;
  const std::int32_t drawn = draw_of(plan_row);
  if (drawn == ops::kDrawPending) fail(ErrorCode::kInternal, "The pass ended without a draw of its row {}.", plan_row);
  if (stream.rule() != nullptr) {
    const RulesAhead::Answer& rule = rules_ahead_.answer(*stream.rule(), plan_row);
    if (!rule.forced.empty()) {
      const std::int32_t forced = rule.forced[0];
      if (forced < 0 || forced >= facts_.vocabulary_size) {
        fail(ErrorCode::kInternal, "A rule forced token {}, which is outside the vocabulary.", forced);
      }
      const bool finite = drawn == ops::kDrawOnHost ? sampler_.is_finite(logits_of(plan_row)) : drawn != ops::kDrawNotFinite;
      return finite ? forced : end_without_token(stream, ops::kDrawNotFinite);
    }
    if (rule.masks) allowed = rule.allowed.data();
  }
  if (drawn != ops::kDrawOnHost && allowed == nullptr && !stream.logit_adjust().is_active()) {
    if (drawn < 0) return end_without_token(stream, drawn);
    stream.note_backend_draw();
    return drawn;
  }
  const float* logits = logits_of(plan_row);
  // The row that feeds index i draws the token of index i + 1 and is keyed with it (engine.md, N2).
  const auto position = static_cast<std::int64_t>(stream.context().size());
  stream.logit_adjust().collect(logits, {}, adjusted_);
  const Draw draw = sampler_.draw(logits, allowed, stream.request().sampling, position, adjusted_);
  if (draw.status == DrawStatus::kDrawn) return draw.token;
  return end_without_token(stream, draw.status == DrawStatus::kNotFinite ? ops::kDrawNotFinite : ops::kDrawNoneAllowed);
}

void EngineLoop::extend_reply(Stream& stream, std::int32_t plan_row, Clock::time_point now) {
  if (stream.request().reply_tokens_max == 0) {
    stream.finish(FinishReason::kLength);
    return;
  }
  TokenEvent event;
  event.token = choose_token(stream, plan_row);
  if (stream.is_finished()) return;
  event.is_stop_token = stream.is_stop_token(event.token);
  PathRule::Verdict verdict = PathRule::Verdict::kContinue;
  if (stream.rule() != nullptr && !event.is_stop_token) verdict = stream.rule()->advance(event.token);
  if (verdict == PathRule::Verdict::kCut) {
    stream.finish(FinishReason::kStopRule);
    return;
  }
  if (stream.request().logprobs_top >= 0) {
    sampler_.logprobs(logits_of(plan_row), event.token, stream.request().logprobs_top, event.chosen, event.top);
  }
  const bool is_stop_token = event.is_stop_token;
  if (stream.append(std::move(event), now)) ++round_reply_tokens_;
  if (stream.is_finished()) return;
  if (is_stop_token) {
    stream.finish(FinishReason::kStopToken);
  } else if (verdict == PathRule::Verdict::kStop) {
    stream.finish(FinishReason::kStopRule);
  } else if (static_cast<std::int32_t>(stream.context().size()) == stream.tokens_max()) {
    stream.finish(FinishReason::kLength);
  }
}

}  // namespace tensorfold
