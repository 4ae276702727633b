// Decides whose rows go into the next pass. A function of the lanes' states and the measured costs: it sees numbers,
// not streams, so that it can be tested alone. Because of one arithmetic it may mix, cut and reorder rows freely; it is
// judged by speed and fairness only.
#pragma once

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "engine/cost_model.h"
#include "engine/draft/row_grant.h"

namespace tensorfold {

/// What the scheduler knows of a lane that has something to feed.
struct LaneWork {
  std::int32_t lane = 0;
  std::int32_t prompt_rows_left = 0;  // 0: the lane decodes
  std::int32_t prompt_rows_max = std::numeric_limits<std::int32_t>::max();  // of its next slice: it ends where the
                                                                            // prefix is kept
  std::vector<double>
      draft_chances;  // of a decoding lane, per draft that may follow its token: that it is reached and lands
  bool background = false;
  bool wants_every_row = false;        // logits of all rows are returned (scoring): they share a bounded buffer
  std::int32_t times_passed_over = 0;  // passes without a row of it since it was served last
  std::uint64_t last_served = 0;       // grows with each grant; larger is later
  std::uint64_t order = 0;             // admission order
};

struct Grant {
  std::int32_t lane = 0;
  std::int32_t rows = 0;
};

struct SchedulerLimits {
  std::int32_t pass_rows = 0;
  std::int32_t scored_rows = 0;  // rows of lanes with wants_every_row, and drafts, in one pass
  double pass_seconds = 0.25;
};

class Scheduler {
 public:
  /// schedule_seed != 0: random cuts, subsets and order (the fold test).
  Scheduler(const SchedulerLimits& limits, std::uint64_t schedule_seed);

  /// Rows per lane, in the order of the pass. Never empty when there is work.
  ///   Decoding lanes always go (foreground before background, then least recently served first, when there are more
  ///   than a pass holds), with as many drafts as pay. Prompts fill the rest, as far as the pass is expected to stay
  ///   within its time: those passed over eight times first, then foreground before background, then the shortest.
  /// `costs` are those of any pass, `window_costs` those of passes without prompt rows (every row's logits are drawn
  /// from).
  std::vector<Grant> schedule(const std::vector<LaneWork>& work, const CostModel& costs, const CostModel& window_costs);

 private:
  std::vector<Grant> schedule_at_random(std::vector<LaneWork> work);
  void add_drafts(const std::vector<const LaneWork*>& lanes, std::int32_t rows_max, std::int32_t time_rows,
                  const CostModel& window_costs, std::vector<Grant>& grants) const;

  SchedulerLimits limits_;
  bool random_schedule_;
  std::mt19937_64 random_;
};

}  // namespace tensorfold
