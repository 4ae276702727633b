// The engine thread (see engine_loop.h): the life of streams. round.cpp holds what happens inside a round.
#include "engine/engine_loop.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"

namespace tensorfold {
namespace {

SchedulerLimits scheduler_limits(const ModelFacts& facts, const Capacity& capacity, const EngineOptions& options) {
  SchedulerLimits limits;
  limits.pass_rows = capacity.pass_rows;
  const std::size_t row_bytes = static_cast<std::size_t>(facts.vocabulary_size) * sizeof(float);
  limits.scored_rows = static_cast<std::int32_t>(std::clamp<std::size_t>(limits::kPassLogitsBytesMax / row_bytes, 1,
                                                                         static_cast<std::size_t>(capacity.pass_rows)));
  limits.pass_seconds = options.pass_seconds_max;
  return limits;
}

DrafterLimits drafter_limits(const ModelFacts& facts, const Capacity& capacity) {
  DrafterLimits limits;
  limits.vocabulary_size = facts.vocabulary_size;
  limits.window_rows = capacity.window_rows;
  limits.shared_window_rows = std::min(capacity.window_rows, limits::kWindowRowsMax);
  return limits;
}

}  // namespace

EngineLoop::EngineLoop(LanguageModel& model, Mailbox& mailbox, const Capacity& capacity, const EngineOptions& options,
                       std::vector<std::shared_ptr<DraftSource>> sources)
    : model_(model),
      mailbox_(mailbox),
      capacity_(capacity),
      facts_(model.facts()),
      pool_(model, capacity.page_counts, capacity.slot_count, options.poison_freed),
      scheduler_(scheduler_limits(facts_, capacity, options), options.schedule_seed),
      sampler_(facts_.vocabulary_size),
      drafter_(std::move(sources), drafter_limits(facts_, capacity), options.schedule_seed) {}

void EngineLoop::run() {
  while (true) {
    receive(mailbox_.collect(running_.empty() && waiting_.empty()));
    if (mailbox_.is_stopping()) break;
    end_cancelled();
    admit();
    if (running_.empty()) {
      publish_load(Clock::now());  // what ended without a round must not linger in /health
      continue;
    }
    try {
      run_round();
    } catch (const std::exception& error) {
      // Nothing that a round throws may take the engine down; which streams it touched isn't known any more.
      end_all(FinishReason::kError, error.what());
    }
    drop_finished();
    publish_load(Clock::now());
  }
  receive(mailbox_.collect(false));
  for (const std::shared_ptr<Stream>& stream : waiting_) stream->finish(FinishReason::kCancelled);
  mailbox_.left_queue(waiting_.size());
  waiting_.clear();
  end_all(FinishReason::kCancelled, "");
  drop_finished();
}

void EngineLoop::receive(std::vector<std::shared_ptr<Stream>> arrivals) {
  std::move(arrivals.begin(), arrivals.end(), std::back_inserter(waiting_));
}

void EngineLoop::end_cancelled() {
  std::size_t left = 0;
  for (const std::shared_ptr<Stream>& stream : waiting_) {
    if (!stream->is_cancel_requested()) continue;
    stream->finish(FinishReason::kCancelled);
    ++left;
  }
  if (left > 0) {
    std::erase_if(waiting_, [](const std::shared_ptr<Stream>& stream) { return stream->is_finished(); });
    mailbox_.left_queue(left);
  }
  for (const std::shared_ptr<Stream>& stream : running_) {
    if (stream->is_cancel_requested()) stream->finish(FinishReason::kCancelled);
  }
  drop_finished();
}

void EngineLoop::admit() {
  const std::size_t before = running_.size();
  std::vector<std::shared_ptr<Stream>> preempted;
  admit_waiting(false, preempted);
  // Whoever gave its lane back waits where it stood before: at the front.
  waiting_.insert(waiting_.begin(), preempted.begin(), preempted.end());
  admit_waiting(true, preempted);
  if (running_.size() == before && preempted.empty()) return;
  // They have left the queue's count: without this /health would show them nowhere until their first pass ends.
  const std::lock_guard lock(load_mutex_);
  load_.running = static_cast<std::int32_t>(running_.size());
}

// Background streams find a lane that is free, foreground streams one that a background stream holds, too.
void EngineLoop::admit_waiting(bool background, std::vector<std::shared_ptr<Stream>>& preempted) {
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const std::shared_ptr<Stream> stream = *next;
    if (stream->request().background != background) {
      ++next;
      continue;
    }
    if (static_cast<std::int32_t>(running_.size()) >= capacity_.lanes) {
      const std::shared_ptr<Stream> victim = background ? nullptr : preempt_one();
      if (victim == nullptr) return;
      preempted.push_back(victim);
    }
    // Every lane was promised the whole context, so a free lane always finds its pages.
    const bool admitted = stream->cache().admit(pool_, facts_.groups, stream->tokens_max(), capacity_.pass_rows);
    TF_ASSERT(admitted);
    next = waiting_.erase(next);
    mailbox_.left_queue(1);
    stream->order = ++admissions_;
    stream->last_served = services_;
    stream->start(Clock::now());
    drafter_.open(*stream);
    running_.push_back(stream);
  }
}

// The background stream that was admitted last, taken off its lane; null when none runs.
std::shared_ptr<Stream> EngineLoop::preempt_one() {
  auto victim = running_.end();
  for (auto each = running_.begin(); each != running_.end(); ++each) {
    if (!(*each)->request().background || (*each)->is_finished()) continue;
    if (victim == running_.end() || (*each)->order > (*victim)->order) victim = each;
  }
  if (victim == running_.end()) return nullptr;
  const std::shared_ptr<Stream> stream = *victim;
  running_.erase(victim);
  drafter_.close(*stream);
  stream->preempt();
  mailbox_.returned_to_queue(1);
  ++preemptions_;
  return stream;
}

void EngineLoop::drop_finished() {
  for (const std::shared_ptr<Stream>& stream : running_) {
    if (stream->is_finished()) drafter_.close(*stream);
  }
  std::erase_if(running_, [](const std::shared_ptr<Stream>& stream) { return stream->is_finished(); });
}

void EngineLoop::end_all(FinishReason reason, const char* message) {
  for (const std::shared_ptr<Stream>& stream : running_) stream->finish(reason, message);
}

EngineLoad EngineLoop::load() const {
  EngineLoad load;
  {
    const std::lock_guard lock(load_mutex_);
    load = load_;
    const Clock::time_point now = Clock::now();
    load.decode_tokens_per_second = reply_rate_.per_second(now);
    load.prefill_tokens_per_second = prompt_rate_.per_second(now);
  }
  load.waiting = static_cast<std::int32_t>(mailbox_.waiting());
  return load;
}

void EngineLoop::publish_load(Clock::time_point now) {
  const std::lock_guard lock(load_mutex_);
  load_.running = static_cast<std::int32_t>(running_.size());
  load_.rounds_total = rounds_;
  load_.preemptions_total = preemptions_;
  load_.prompt_tokens_total += round_prompt_tokens_;
  load_.reply_tokens_total += round_reply_tokens_;
  for (std::size_t kind = 0; kind < kDraftKindCount; ++kind) {
    load_.drafts_total[kind].windows += round_drafts_[kind].windows;
    load_.drafts_total[kind].drafted += round_drafts_[kind].drafted;
    load_.drafts_total[kind].accepted += round_drafts_[kind].accepted;
  }
  round_drafts_ = {};
  prompt_rate_.add(round_prompt_tokens_, now);
  reply_rate_.add(round_reply_tokens_, now);
  round_prompt_tokens_ = round_reply_tokens_ = 0;
}

}  // namespace tensorfold
