// The depth rule (see depth_rule.h).
#include "engine/draft/depth_rule.h"

#include <algorithm>

namespace tensorfold {
namespace {
constexpr double kDecay = 0.97;       // per window
constexpr double kPriorWeight = 2.0;  // observations that the prior, or the source's own confidence, counts for
constexpr double kChanceMax = 0.995;
constexpr double kPlainGuard = 1.05;     // drafting must beat not drafting by this much
constexpr double kHistoryWeight = 8.0;  // observations that earlier streams count for, at most
constexpr std::uint64_t kDeeperEvery = 8;
}  // namespace

DepthRule DepthRule::begin_with(const DepthRule& history) {
  DepthRule rule(history.chance_prior_);
  for (std::size_t depth = 0; depth < rule.counts_.size(); ++depth) {
    const Counts& met = history.counts_[depth];
    if (met.levels <= 0.0) continue;
    const double share = std::min(1.0, kHistoryWeight / met.levels);
    rule.counts_[depth] = {share * met.confidence, share * met.drafts_landed, share * met.levels,
                           share * met.levels_landed};
  }
  return rule;
}

void DepthRule::begin_window() {
  for (Counts& counts : counts_) {
    counts.confidence *= kDecay;
    counts.drafts_landed *= kDecay;
    counts.levels *= kDecay;
    counts.levels_landed *= kDecay;
  }
}

void DepthRule::observe_draft(std::int32_t depth, double confidence, bool landed) {
  Counts& counts = counts_[index(depth)];
  counts.confidence += confidence;
  counts.drafts_landed += landed ? 1.0 : 0.0;
}

void DepthRule::observe_level(std::int32_t depth, bool landed) {
  Counts& counts = counts_[index(depth)];
  counts.levels += 1.0;
  counts.levels_landed += landed ? 1.0 : 0.0;
}

double DepthRule::chance(std::int32_t depth, double confidence) const {
  const Counts& counts = counts_[index(depth)];
  const double factor = (counts.drafts_landed + kPriorWeight) / (counts.confidence + kPriorWeight);
  return std::clamp(confidence * std::clamp(factor, 0.2, 3.0), 0.0, kChanceMax);
}

double DepthRule::level_chance(std::int32_t depth) const {
  const Counts& counts = counts_[index(depth)];
  const double landed = counts.levels_landed + kPriorWeight * chance_prior_;
  return std::min(landed / (counts.levels + kPriorWeight), kChanceMax);
}

DepthRule::Ask DepthRule::depth_to_ask(std::int32_t depth_max, std::int32_t lanes, const DraftCost& cost,
                                       const CostModel& costs) {
  if (depth_max <= 0) return {};
  ++decisions_;
  const auto rate = [](double tokens, double seconds) { return seconds > 0.0 ? tokens / seconds : tokens; };
  std::int32_t best = 0;
  double best_rate = kPlainGuard * rate(lanes, costs.predict(lanes));
  double expected = 1.0, reached = 1.0;
  for (std::int32_t depth = 1; depth <= depth_max; ++depth) {
    reached *= level_chance(depth - 1);
    expected += reached;
    const double seconds = costs.predict(lanes * (1 + depth)) + cost.fixed_seconds + depth * cost.seconds_per_level;
    const double now = rate(lanes * expected, seconds);
    if (now <= best_rate) continue;
    best_rate = now;
    best = depth;
  }
  if (best > 0 && best < depth_max && decisions_ % kDeeperEvery == 0) ++best;
  return {best, best_rate};
}

}  // namespace tensorfold
