// The scheduler (see scheduler.h).
#include "engine/scheduler.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"

namespace tensorfold {
namespace {

constexpr std::int32_t kPassedOverMax = 8;
// Of the bound of a pass, where a prompt is read beside streams that wait for their next token: costs are means, a
// bound that half of the passes exceed would be none, and each slice of a long prompt costs more than the one before.
constexpr double kMixedPassShare = 0.6;
constexpr std::int32_t kSliceRowsMin = 16;  // a smaller rest of the pass isn't worth a prompt's page tables

bool decodes(const LaneWork& work) {
  return work.prompt_rows_left == 0;
}

}  // namespace

Scheduler::Scheduler(const SchedulerLimits& limits, std::uint64_t schedule_seed)
    : limits_(limits), random_schedule_(schedule_seed != 0), random_(schedule_seed) {
  TF_ASSERT(limits.pass_rows > 0 && limits.scored_rows > 0);
}

// `grants` hold one row a lane, in the order of `lanes`.
void Scheduler::add_drafts(const std::vector<const LaneWork*>& lanes, std::int32_t rows_max, std::int32_t time_rows,
                           const CostModel& window_costs, std::vector<Grant>& grants) const {
  std::vector<const std::vector<double>*> bids;
  for (const LaneWork* lane : lanes) bids.push_back(&lane->draft_chances);
  // Window rows cost more than prompt rows: each has logits.
  const std::int32_t window_rows = window_costs.rows_within(limits_.pass_seconds, limits_.pass_rows);
  const std::int32_t rows = std::min({rows_max, time_rows, window_rows}) - static_cast<std::int32_t>(lanes.size());
  const std::int32_t extra_max = std::min(limits_.scored_rows, rows);
  const std::vector<std::int32_t> extra = grant_draft_rows(bids, extra_max, window_costs);
  for (std::size_t i = 0; i < extra.size(); ++i) grants[i].rows += extra[i];
}

std::vector<Grant> Scheduler::schedule(const std::vector<LaneWork>& work, const CostModel& costs,
                                       const CostModel& window_costs) {
  if (work.empty()) return {};
  if (random_schedule_) return schedule_at_random(work);
  std::vector<LaneWork> lanes, prompts;
  for (const LaneWork& lane : work) (decodes(lane) ? lanes : prompts).push_back(lane);
  std::sort(lanes.begin(), lanes.end(), [](const LaneWork& a, const LaneWork& b) {
    return std::tie(a.background, a.last_served, a.order) < std::tie(b.background, b.last_served, b.order);
  });
  std::sort(prompts.begin(), prompts.end(), [](const LaneWork& a, const LaneWork& b) {
    const auto rank = [](const LaneWork& lane) {
      const bool starved = lane.times_passed_over >= kPassedOverMax;
      return std::make_tuple(!starved, starved ? false : lane.background, starved ? 0 : lane.prompt_rows_left,
                             lane.order);
    };
    return rank(a) < rank(b);
  });

  std::vector<Grant> grants;
  std::vector<const LaneWork*> served_lanes;
  std::int32_t rows = 0;
  // While prompts wait, decoding lanes leave them some rows, so that a full house can't starve them.
  std::int32_t decode_rows_max = limits_.pass_rows;
  if (!prompts.empty()) {
    const bool starved = prompts.front().times_passed_over >= kPassedOverMax;
    decode_rows_max -= std::max(std::min(kSliceRowsMin, limits_.pass_rows / 2), starved ? 1 : 0);
  }
  for (const LaneWork& lane : lanes) {
    if (rows + 1 > decode_rows_max) break;
    grants.push_back({lane.lane, 1});
    served_lanes.push_back(&lane);
    ++rows;
  }
  // Drafts may use the pass's time as the prompts do; beside prompts, half of it.
  const bool mixes = !prompts.empty() && !served_lanes.empty();
  const double seconds = limits_.pass_seconds * (mixes ? kMixedPassShare : 1.0);
  const std::int32_t time_rows = costs.rows_within(seconds, limits_.pass_rows);
  add_drafts(served_lanes, decode_rows_max, prompts.empty() ? time_rows : time_rows / 2, window_costs, grants);
  if (prompts.empty()) return grants;
  rows = 0;
  for (const Grant& grant : grants) rows += grant.rows;
  std::int32_t room = time_rows - rows;
  room = std::max(room, std::min(1, limits_.pass_rows - rows));  // however slow the pass is, a prompt goes on
  std::int32_t scored_room = limits_.scored_rows - (rows - static_cast<std::int32_t>(served_lanes.size()));
  bool served = false;
  for (const LaneWork& prompt : prompts) {
    std::int32_t slice = std::min({prompt.prompt_rows_left, prompt.prompt_rows_max, room});
    if (prompt.wants_every_row) slice = std::min(slice, scored_room);
    if (slice <= 0 || (served && slice < std::min({kSliceRowsMin, prompt.prompt_rows_left, prompt.prompt_rows_max})))
      continue;
    grants.push_back({prompt.lane, slice});
    room -= slice;
    if (prompt.wants_every_row) scored_room -= slice;
    served = true;
  }
  return grants;
}

std::vector<Grant> Scheduler::schedule_at_random(std::vector<LaneWork> work) {
  const auto draw = [this](std::int32_t low, std::int32_t high) {
    return low + static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
  };
  std::shuffle(work.begin(), work.end(), random_);
  std::vector<Grant> grants;
  std::int32_t room = limits_.pass_rows, scored_room = limits_.scored_rows;
  for (const LaneWork& lane : work) {
    if (!grants.empty() && draw(0, 3) == 0) continue;
    if (decodes(lane)) {
      if (room == 0) continue;
      const auto drafts = static_cast<std::int32_t>(lane.draft_chances.size());
      const std::int32_t rows = 1 + std::min({draw(0, 2) == 0 ? draw(0, drafts) : drafts, room - 1, scored_room});
      grants.push_back({lane.lane, rows});
      room -= rows;
      scored_room -= rows - 1;
      continue;
    }
    std::int32_t most = std::min({lane.prompt_rows_left, lane.prompt_rows_max, room});
    if (lane.wants_every_row) most = std::min(most, scored_room);
    if (most <= 0) continue;
    const std::int32_t slice = draw(0, 2) == 0 ? most : draw(1, draw(0, 1) == 0 ? most : std::min(most, 7));
    grants.push_back({lane.lane, slice});
    room -= slice;
    if (lane.wants_every_row) scored_room -= slice;
  }
  return grants;
}

}  // namespace tensorfold
