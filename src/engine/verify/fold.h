// The fold test (one-arithmetic.md, "How it is tested"): runs streams through the engine under schedules drawn at
// random (prompt cuts, 1 to 17 lanes, neighbours that come, go and are cancelled, drafts right and wrong at every depth
// as chains and trees, copies, penalties, preemption) and compares every token and the logits of every committed row
// (but of streams whose logits are hidden, Options), bit for bit, with a plain run that draws the same replies one row
// per pass, without an engine. It knows models through LanguageModel only, so every family, format and backend is held
// to it, and `tensorfold verify` can run it too.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/limits.h"
#include "engine/draft/draft_source.h"
#include "model/language_model.h"

namespace tensorfold::fold {

/// Makes the models of a schedule and of those that share its plain run (that run's and every engine's), with the
/// number of the first of them, so that what is drawn per schedule (a weight format, a thread count) can depend on it.
using MakeModel = std::function<std::unique_ptr<LanguageModel>(std::int32_t schedule)>;

struct Options {
  std::int32_t schedules = 4;
  /// Of the schedules 0 .. schedules - 1 those that are run: first, first + step, ... Several calls share them out.
  /// Those that share a plain run count as one there.
  std::int32_t first = 0, step = 1;
  /// So many schedules in a row run the same streams, each with an engine of its own, other lanes, cuts, drafts and
  /// cancels: where a pass is mostly waiting (a small model on a GPU), the plain run is most of the time.
  std::int32_t schedules_per_plain_run = 1;
  std::uint64_t seed = 1;
  std::int32_t lanes_max = 17;
  std::int32_t streams_max = 24;
  std::int32_t prompt_tokens_max = 150;
  std::int32_t reply_tokens_max = 24;
  double cancelled_share = 0.2;  // of the streams
  bool poison_freed = true;      // NaN in freed pages and slots
  bool drafts = true;            // in most schedules, for most of their streams
  bool trees = true;             // among the drafts
  /// Every third schedule drafts with the engine's own sources (copies, the model's MTP head and block drafter, recall)
  /// instead of the oracle, which knows the reply and errs on purpose.
  bool own_sources = true;
  std::string recall_folder;  // where those schedules' recall store lies; "": they have none
  /// Streams whose logits nobody asks for, as in serving: all of so many schedules, and so many of the others'. Only
  /// their tokens are compared. Their tokens are drawn where the logits lie if the backend can, and a pass of theirs
  /// alone ends with its draws.
  double hidden_schedules = 0.0, hidden_streams = 0.0;
  bool rules = true;  // masks, forced tokens, stops and cuts, for a third of the streams
  /// Prefix reuse: streams come in waves, later ones continue, repeat or leave the prompts and replies of earlier ones.
  std::int32_t waves = 1;
  std::int64_t prompt_cache_bytes_max = 0;  // the budget of a schedule is drawn up to it
  std::string learn_folder;                 // kept states go there, and the engine starts anew between some waves
  MakeModel make_reference;                 // the plain run's model where it shall differ (another path, other threads)
  std::function<void()> progress;           // after every schedule
};

struct Report {
  std::int32_t schedules = 0;
  std::int32_t streams = 0;
  std::int32_t streams_cancelled = 0;
  std::uint64_t rows_compared = 0;
  std::uint64_t tokens_compared = 0;
  std::uint64_t chains = 0, trees = 0, copies = 0;                            // windows of drafts that were fed
  std::uint64_t drafted = 0, accepted = 0;                                    // their rows
  std::array<std::uint64_t, limits::kWideWindowRowsMax> windows_by_landed{};  // of chains and trees: drafts that landed
  std::uint64_t drafted_by_oracle = 0, accepted_by_oracle = 0;
  std::array<std::uint64_t, kDraftKindCount> drafted_by_source{}, accepted_by_source{};  // real ones, by DraftKind
  std::int32_t schedules_with_own_sources = 0;
  std::uint64_t preemptions = 0;
  std::int32_t streams_with_penalties = 0;
  std::int32_t streams_without_logits = 0;  // their tokens alone were compared
  std::uint64_t drawn_by_backend = 0;       // tokens
  std::int32_t streams_with_rules = 0;
  std::int32_t streams_ended_by_rules = 0;
  std::int32_t streams_resumed = 0;
  std::uint64_t rows_resumed = 0;  // rows that weren't computed again
  std::int32_t restarts = 0;
  std::int32_t streams_resumed_after_restart = 0;  // in the first wave of a new engine: from disk
  std::uint64_t wide_windows = 0;                  // of more than kWindowRowsMax rows
  double plain_run_s = 0.0, engine_s = 0.0;        // of jobs that ran side by side in all
  /// Of logits that should be equal; a row past the first few of a stream counts as one bit.
  std::uint64_t differing_bits = 0;
  std::uint64_t failures = 0;
  std::string first_failure;  // what differed first, with seed and schedule

  bool passed() const { return failures == 0 && rows_compared + tokens_compared > 0; }
};

Report run(const MakeModel& make_model, const Options& options);

/// Adds what another part of the schedules found; the first failure stays that of the earlier report.
void add(Report& report, const Report& part);

/// How often each mechanism that could have changed a bit was at work, by name.
std::map<std::string, std::uint64_t> mechanisms(const Report& report);

}  // namespace tensorfold::fold
