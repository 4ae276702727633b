#include "model/lane_windows.h"

#include "base/error.h"

namespace tensorfold {

void LaneWindows::check_replay(const PlanLane& lane) const {
  if (lane.replay_rows.empty()) return;
  const Window& window = windows_[static_cast<std::size_t>(lane.slot)];
  TF_ASSERT(!window.parents.empty() && lane.replay_tree == window.is_tree);
  TF_ASSERT(lane.position == window.position + static_cast<std::int32_t>(lane.replay_rows.size()));
  std::int32_t previous = -1;
  for (const std::int32_t row : lane.replay_rows) {
    TF_ASSERT(row >= 0 && row < static_cast<std::int32_t>(window.parents.size()));
    TF_ASSERT(window.parents[static_cast<std::size_t>(row)] == previous);
    previous = row;
  }
}

void LaneWindows::keep(const RoundPlan& plan) {
  for (const PlanLane& lane : plan.lanes) {
    Window& window = windows_[static_cast<std::size_t>(lane.slot)];
    window.parents.clear();
    if (lane.commits) continue;
    window.position = lane.position;
    window.is_tree = is_tree(plan, lane);
    for (std::int32_t row = 0; row < lane.row_count; ++row) {
      const std::int32_t parent = plan.rows[static_cast<std::size_t>(lane.first_row + row)].parent_row;
      window.parents.push_back(parent < 0 ? -1 : parent - lane.first_row);
    }
  }
}

}  // namespace tensorfold
