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

constexpr auto kLoadPollTime = std::chrono::milliseconds(20);

SchedulerLimits scheduler_limits(const ModelFacts& facts, const Capacity& capacity, const EngineOptions& options) {
  SchedulerLimits limits;
  limits.pass_rows = capacity.pass_rows;
  limits.scored_rows = scored_rows_max(facts, capacity.pass_rows);
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
                       std::vector<std::shared_ptr<DraftSource>> sources, std::unique_ptr<DiskStore> store,
                       std::string identity)
    : model_(model),
      mailbox_(mailbox),
      capacity_(capacity),
      facts_(model.facts()),
      pool_(model, capacity.page_counts, capacity.slot_count, options.poison_freed),
      prefixes_(
          model, pool_, capacity,
          {.shared_by_all = options.prompt_cache_shared,
           .store = std::move(store),
           .identity = std::move(identity),
           .learn_tokens_min = options.learn.tokens_min,
           .learn_conversations = options.learn.conversations,
           .seconds_for_rows =
               [this](std::int32_t rows) { return costs_.predict(capacity_.pass_rows) / capacity_.pass_rows * rows; }}),
      scheduler_(scheduler_limits(facts_, capacity, options), options.schedule_seed),
      sampler_(facts_.vocabulary_size),
      drafter_(std::move(sources), drafter_limits(facts_, capacity), options.schedule_seed),
      rules_ahead_(facts_.vocabulary_size) {
  // Streams change places without asking for memory: one must never be lost between two lists.
  running_.reserve(static_cast<std::size_t>(capacity.lanes) + 1);
}

void EngineLoop::run() {
  while (true) {
    // Streams that wait for a prefix from disk wait with a bound.
    const bool may_wait = running_.empty() && !has_copying_ && (waiting_.empty() || prefixes_.is_loading());
    receive(mailbox_.collect(may_wait, waiting_.empty() ? Mailbox::kForever : kLoadPollTime));
    if (mailbox_.is_stopping()) break;
    end_cancelled();
    has_copying_ = prefixes_.work();
    try {
      admit();
      if (!running_.empty()) run_round();
    } catch (const std::exception& error) {
      // Nothing that a round throws may take the engine down; which streams it touched isn't known any more.
      end_all(FinishReason::kError, error.what());
    }
    drop_finished();
    publish_load(Clock::now());  // also without a round: what ended must not linger in /health
  }
  receive(mailbox_.collect(false, Mailbox::kForever));
  for (const std::shared_ptr<Stream>& stream : waiting_) stream->finish(FinishReason::kCancelled);
  mailbox_.left_queue(waiting_.size());
  waiting_.clear();
  end_all(FinishReason::kCancelled, "");
  drop_finished();
  prefixes_.flush();
}

void EngineLoop::receive(std::vector<std::shared_ptr<Stream>> arrivals) {
  for (std::shared_ptr<Stream>& stream : arrivals) {
    try {
      prefixes_.open(*stream);
      waiting_.push_back(stream);
    } catch (const std::exception& error) {
      stream->finish(FinishReason::kError, error.what());
      mailbox_.left_queue(1);
    }
  }
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
  preempted.reserve(running_.size());
  admit_waiting(false, preempted);
  // Whoever gave its lane back waits where it stood before: at the front.
  try {
    waiting_.insert(waiting_.begin(), preempted.begin(), preempted.end());
  } catch (const std::exception& error) {
    for (const std::shared_ptr<Stream>& stream : preempted) end_waiting(*stream, error.what());
    throw;
  }
  admit_waiting(true, preempted);
  if (running_.size() == before && preempted.empty()) return;
  // They have left the queue's count: without this /health would show them nowhere until their first pass ends.
  const std::lock_guard lock(load_mutex_);
  load_.running = static_cast<std::int32_t>(running_.size());
}

// Background streams find a lane that is free, foreground streams one that a background stream holds, too. Whoever
// waits for a prefix that is being computed or read lets others pass.
void EngineLoop::admit_waiting(bool background, std::vector<std::shared_ptr<Stream>>& preempted) {
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const std::shared_ptr<Stream> stream = *next;
    const bool has_free_lane = static_cast<std::int32_t>(running_.size()) < capacity_.lanes;
    if (!has_free_lane && (background || find_victim() == running_.end())) return;
    try {
      if (stream->request().background != background || !prefixes_.may_start(*stream, running_)) {
        ++next;
        continue;
      }
      if (!has_free_lane) preempt(find_victim(), preempted);
      start(stream);
    } catch (const std::exception& error) {
      end_waiting(*stream, error.what());
    }
    next = waiting_.erase(next);
  }
}

void EngineLoop::start(const std::shared_ptr<Stream>& stream) {
  // Every lane was promised the whole context, so a free lane always finds its pages.
  const bool admitted = prefixes_.start(*stream);
  TF_ASSERT(admitted);
  stream->before_release = [this](Stream& ended) { prefixes_.on_end(ended); };
  stream->order = ++admissions_;
  stream->last_served = services_;
  stream->start(Clock::now());
  drafter_.open(*stream);
  running_.push_back(stream);
  mailbox_.left_queue(1);
}

/// Of a stream that counts as waiting.
void EngineLoop::end_waiting(Stream& stream, const char* why) {
  drafter_.close(stream);
  stream.finish(FinishReason::kError, why);
  mailbox_.left_queue(1);
}

// The background stream that was admitted last.
std::vector<std::shared_ptr<Stream>>::iterator EngineLoop::find_victim() {
  auto victim = running_.end();
  for (auto each = running_.begin(); each != running_.end(); ++each) {
    if (!(*each)->request().background || (*each)->is_finished()) continue;
    if (victim == running_.end() || (*each)->order > (*victim)->order) victim = each;
  }
  return victim;
}

// Takes a stream off its lane.
void EngineLoop::preempt(std::vector<std::shared_ptr<Stream>>::iterator victim,
                         std::vector<std::shared_ptr<Stream>>& preempted) {
  const std::shared_ptr<Stream> stream = *victim;
  running_.erase(victim);
  drafter_.close(*stream);
  try {
    stream->preempt();
  } catch (const std::exception& error) {
    stream->finish(FinishReason::kError, error.what());
    return;  // its lane is free all the same
  }
  preempted.push_back(stream);
  mailbox_.returned_to_queue(1);
  ++preemptions_;
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
  load_.cached_tokens_total = prefixes_.counters().cached_tokens;
  load_.prefix_queries_total = prefixes_.counters().queries;
  load_.prefix_hits_total = prefixes_.counters().hits;
  load_.prefix_waits_total = prefixes_.counters().waits;
  load_.prefix_bytes = prefixes_.tree() != nullptr ? prefixes_.tree()->bytes_held() : 0;
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
