// What each slot remembers of the window that its lane last ran, so that a replay can be checked against it before it
// touches state or pages: a replay that doesn't fit would corrupt a stream without a trace. The memory itself is the
// backend's (layer_caches.h); here is its shape alone.
#pragma once

#include <cstdint>
#include <vector>

#include "model/round_plan.h"

namespace tensorfold {

class LaneWindows {
 public:
  void reset(std::int32_t slot_count) { windows_.assign(static_cast<std::size_t>(slot_count), {}); }

  /// Stops the process unless lane.replay_rows are empty or a path of the slot's last window, which began where the
  /// plan says and was a tree if the plan says so.
  void check_replay(const PlanLane& lane) const;
  /// After a pass: a window is kept, a lane that committed keeps none.
  void keep(const RoundPlan& plan);
  void forget(std::int32_t slot) { windows_[static_cast<std::size_t>(slot)] = {}; }
  void copy(std::int32_t from, std::int32_t to) {
    windows_[static_cast<std::size_t>(to)] = windows_[static_cast<std::size_t>(from)];
  }

 private:
  struct Window {
    std::int32_t position = 0;
    bool is_tree = false;
    std::vector<std::int32_t> parents;  // row of the window, -1 for row 0; empty: no window
  };
  std::vector<Window> windows_;  // by slot
};

}  // namespace tensorfold
