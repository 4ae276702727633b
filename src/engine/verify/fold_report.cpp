// Reports of the fold test (see fold.h): their sum over the parts of a run, and their mechanisms by name. Apart from
// the test, which only counts.
#include <fmt/format.h>

#include "engine/verify/fold.h"

namespace tensorfold::fold {

void add(Report& report, const Report& part) {
  const auto add_all = [](auto& to, const auto& from) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  };
  report.schedules += part.schedules;
  report.streams += part.streams;
  report.streams_cancelled += part.streams_cancelled;
  report.rows_compared += part.rows_compared;
  report.tokens_compared += part.tokens_compared;
  report.chains += part.chains;
  report.trees += part.trees;
  report.copies += part.copies;
  report.drafted += part.drafted;
  report.accepted += part.accepted;
  add_all(report.windows_by_landed, part.windows_by_landed);
  report.drafted_by_oracle += part.drafted_by_oracle;
  report.accepted_by_oracle += part.accepted_by_oracle;
  add_all(report.drafted_by_source, part.drafted_by_source);
  add_all(report.accepted_by_source, part.accepted_by_source);
  report.schedules_with_own_sources += part.schedules_with_own_sources;
  report.preemptions += part.preemptions;
  report.streams_with_penalties += part.streams_with_penalties;
  report.streams_without_logits += part.streams_without_logits;
  report.drawn_by_backend += part.drawn_by_backend;
  report.streams_with_rules += part.streams_with_rules;
  report.streams_ended_by_rules += part.streams_ended_by_rules;
  report.streams_resumed += part.streams_resumed;
  report.rows_resumed += part.rows_resumed;
  report.restarts += part.restarts;
  report.streams_resumed_after_restart += part.streams_resumed_after_restart;
  report.wide_windows += part.wide_windows;
  report.plain_run_s += part.plain_run_s;
  report.engine_s += part.engine_s;
  report.differing_bits += part.differing_bits;
  report.failures += part.failures;
  if (report.first_failure.empty()) report.first_failure = part.first_failure;
}

std::map<std::string, std::uint64_t> mechanisms(const Report& report) {
  std::map<std::string, std::uint64_t> counts = {
      {"windows_chain", report.chains},
      {"windows_tree", report.trees},
      {"streams_wide_window", report.wide_windows},
      {"drafted", report.drafted},
      {"accepted", report.accepted},
      {"drafted_oracle", report.drafted_by_oracle},
      {"accepted_oracle", report.accepted_by_oracle},
      {"schedules_with_own_sources", static_cast<std::uint64_t>(report.schedules_with_own_sources)},
      {"cancelled", static_cast<std::uint64_t>(report.streams_cancelled)},
      {"preempted", report.preemptions},
      {"penalties", static_cast<std::uint64_t>(report.streams_with_penalties)},
      {"streams_without_logits", static_cast<std::uint64_t>(report.streams_without_logits)},
      {"drawn_by_backend", report.drawn_by_backend},
      {"rules", static_cast<std::uint64_t>(report.streams_with_rules)},
      {"ended_by_rule", static_cast<std::uint64_t>(report.streams_ended_by_rules)},
      {"resumed", static_cast<std::uint64_t>(report.streams_resumed)},
      {"rows_resumed", report.rows_resumed},
      {"engine_restarts", static_cast<std::uint64_t>(report.restarts)},
      {"resumed_from_disk", static_cast<std::uint64_t>(report.streams_resumed_after_restart)},
  };
  for (std::size_t kind = 0; kind < kDraftKindCount; ++kind) {
    const std::string name = draft_kind_name(static_cast<DraftKind>(kind));
    counts["drafted_" + name] = report.drafted_by_source[kind];
    counts["accepted_" + name] = report.accepted_by_source[kind];
  }
  for (std::size_t landed = 0; landed < limits::kWindowRowsMax; ++landed) {
    counts[fmt::format("windows_landed_{:02}", landed)] = report.windows_by_landed[landed];
  }
  return counts;
}

}  // namespace tensorfold::fold
