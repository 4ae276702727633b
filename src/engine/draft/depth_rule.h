// How deep one source drafts for one stream (engine.md 4.5): what landed so far against what passes were measured to
// cost. It turns a source's own confidence into a chance that was met in practice, and says how many levels are worth
// asking for when asking costs time, none included. A stream begins with what was met in earlier ones. Decides time only,
// never tokens.
#pragma once

#include <array>
#include <cstdint>

#include "engine/cost_model.h"

namespace tensorfold {

/// What asking costs beside the window's rows.
struct DraftCost {
  double fixed_seconds = 0.0;      // of any proposal
  double seconds_per_level = 0.0;  // of each level
};

class DepthRule {
 public:
  /// `chance_prior`: that a draft lands, before anything was observed.
  explicit DepthRule(double chance_prior = 0.5) : chance_prior_(chance_prior) {}
  /// A stream's own rule, by the rule of all streams: what they met counts for a few observations.
  static DepthRule begin_with(const DepthRule& history);

  /// A window was walked: call once before its nodes are observed; older windows fade.
  void begin_window();
  /// A draft at `depth` (0: after the pending token) whose parent landed: did it land?
  void observe_draft(std::int32_t depth, double confidence, bool landed);
  /// Some draft stood at `depth` behind a landed parent: did any of them land?
  void observe_level(std::int32_t depth, bool landed);

  /// Chance that a draft of this confidence at this depth lands, given that its parent did.
  double chance(std::int32_t depth, double confidence) const;
  /// The same for a level that hasn't been drafted yet.
  double level_chance(std::int32_t depth) const;

  struct Ask {
    std::int32_t depth = 0;
    double tokens_per_second = 0.0;  // expected; of passes as cheap as nothing, tokens
  };
  /// Levels to ask for, 0 to `depth_max`: the most expected tokens per second when `lanes` lanes draft alike, and now
  /// and then one more. 0: none pays; the rate is then what a draft would have to beat.
  Ask depth_to_ask(std::int32_t depth_max, std::int32_t lanes, const DraftCost& cost, const CostModel& costs);

 private:
  static constexpr std::int32_t kDepths = 16;  // deeper ones count as the last
  struct Counts {
    double confidence = 0.0, drafts_landed = 0.0;
    double levels = 0.0, levels_landed = 0.0;
  };
  static std::size_t index(std::int32_t depth) {
    return static_cast<std::size_t>(depth < kDepths ? depth : kDepths - 1);
  }

  double chance_prior_;
  std::array<Counts, kDepths> counts_{};
  std::uint64_t decisions_ = 0;
};

}  // namespace tensorfold
