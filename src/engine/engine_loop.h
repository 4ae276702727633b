// The engine thread's work: admit, schedule, run a pass, draw, deliver, and round again. It owns lanes, caches and the
// model's queue, so that no lock is held across a pass; the outside reaches it through the Mailbox and sees EngineLoad.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/cache/page_pool.h"
#include "engine/cache/prefix_cache.h"
#include "engine/capacity.h"
#include "engine/cost_model.h"
#include "engine/draft/drafter.h"
#include "engine/host_sampler.h"
#include "engine/mailbox.h"
#include "engine/rate_meter.h"
#include "engine/rules_ahead.h"
#include "engine/scheduler.h"
#include "engine/stream.h"
#include "model/language_model.h"

namespace tensorfold {

class EngineLoop {
 public:
  EngineLoop(LanguageModel& model, Mailbox& mailbox, const Capacity& capacity, const EngineOptions& options,
             std::vector<std::shared_ptr<DraftSource>> sources, std::unique_ptr<DiskStore> store, std::string identity);

  /// The thread's main function; returns after Mailbox::stop(), when every stream has ended.
  void run();
  /// Any thread.
  EngineLoad load() const;

 private:
  using Clock = Stream::Clock;

  void receive(std::vector<std::shared_ptr<Stream>> arrivals);
  void end_cancelled();
  void admit();
  void admit_waiting(bool background, std::vector<std::shared_ptr<Stream>>& preempted);
  std::vector<std::shared_ptr<Stream>>::iterator find_victim();
  void start(const std::shared_ptr<Stream>& stream);
  void preempt(std::vector<std::shared_ptr<Stream>>::iterator victim, std::vector<std::shared_ptr<Stream>>& preempted);
  void end_waiting(Stream& stream, const char* why);
  void drop_finished();
  void end_all(FinishReason reason, const char* message);

  void run_round();
  void ask_rules();
  std::vector<Grant> grant_rows();
  void build_plan(const std::vector<Grant>& grants);
  void add_rows(Stream& stream, std::int32_t rows);
  void add_row(const Stream& stream, std::int32_t token, std::int32_t sequence_index, std::int32_t parent_row);
  /// Returns the depth of the deepest draft; 1: after the pending token.
  std::int32_t add_drafts(const Stream& stream, std::int32_t count, std::int32_t pending_row);
  void check_plan() const;
  void index_logits();
  void note_service(const std::vector<Grant>& grants);
  void note_pass_times();
  void observe_cost(Clock::time_point start, bool stands_in_line);
  void draft();

  void deliver(Stream& stream, const PlanLane& span, Clock::time_point now);
  void deliver_prompt(Stream& stream, const PlanLane& span, Clock::time_point now);
  void walk_window(Stream& stream, const PlanLane& span, Clock::time_point now);
  std::int32_t accepted_child(const PlanLane& span, std::int32_t window_row, std::int32_t token) const;
  void report_logits(Stream& stream, std::int32_t plan_row);
  std::optional<DraftKind> window_source(const Stream& stream, const PlanLane& span) const;
  void note_fed(Stream& stream, const PlanLane& span);
  /// By the row that feeds the last token of the stream's context.
  void extend_reply(Stream& stream, std::int32_t plan_row, Clock::time_point now);
  /// The token after the stream's context, or -1 after ending the stream.
  std::int32_t choose_token(Stream& stream, std::int32_t plan_row);
  std::int32_t end_without_token(Stream& stream, std::int32_t code);
  /// Host memory; may have to be copied first, so ask only for what is looked at.
  const float* logits_of(std::int32_t plan_row);
  std::int32_t draw_of(std::int32_t plan_row) const;
  void publish_load(Clock::time_point now);

  LanguageModel& model_;
  Mailbox& mailbox_;
  const Capacity capacity_;
  const ModelFacts facts_;
  PagePool pool_;
  PrefixCache prefixes_;
  std::int32_t queued_passes_ = 0;  // that nobody waits for and that haven't told their times
  CostModel costs_;                                          // of every pass
  CostModel window_costs_{CostModel::Unknown::kOptimistic};  // of passes without prompt rows
  Scheduler scheduler_;
  HostSampler sampler_;
  Drafter drafter_;

  std::deque<std::shared_ptr<Stream>> waiting_;
  std::vector<std::shared_ptr<Stream>> running_;  // a lane each
  bool has_copying_ = false;  // states on their way to or from disk
  std::uint64_t admissions_ = 0;
  std::uint64_t rounds_ = 0;
  std::uint64_t preemptions_ = 0;
  std::uint64_t services_ = 0;  // grants made so far

  // Scratch of one round.
  RoundPlan plan_;
  std::vector<Stream*> plan_streams_;  // per lane of the plan
  ForwardResult result_;
  std::vector<FedRows> fed_;
  std::vector<std::int32_t> logits_index_;  // per plan row: row of result_.logits, or -1
  RulesAhead rules_ahead_;
  std::vector<AdjustedLogit> adjusted_;
  std::uint64_t round_prompt_tokens_ = 0, round_reply_tokens_ = 0;
  DraftCountsBySource round_drafts_{};

  mutable std::mutex load_mutex_;
  EngineLoad load_;
  RateMeter prompt_rate_, reply_rate_;
};

}  // namespace tensorfold
