// A round's plan: what one forward pass computes, as plain data without pointers or clocks. It is made in one place (the
// engine's scheduler) and executed by the backend, so that other ranks can replay it and a log of plans is a trace.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ops/sampling_rule.h"

namespace tensorfold {

enum RowFlags : std::uint32_t {
  kRowWantsLogits = 1u << 0,  // logits of this row are returned
  kRowWantsHidden = 1u << 1,  // final-normed hidden state is kept in backend memory until the next pass (MtpHead)
  kRowIsTapped = 1u << 2,     // residual stream after the drafter's layers is kept likewise (BlockDrafter)
  kRowReturnsHidden = 1u << 3,  // final-normed hidden state is returned to the host (embeddings)
  kRowWantsDraw = 1u << 4,    // with kRowWantsLogits: the token after it is drawn by `sampling` where the logits lie, if
                              // that is possible there (ForwardResult::draws)
};

struct PlanRow {
  std::int32_t token = 0;            // vocabulary id; unused when embedding_row >= 0
  std::int32_t embedding_row = -1;   // row of the pass's embedding input (images, audio), or -1
  std::int32_t sequence_index = 0;   // place in the stream's sequence: one more than its parent's; siblings share it
  std::array<std::int32_t, 3> rope_position{0, 0, 0};  // three axes; equal for text
  std::int32_t parent_row = -1;      // row of the pass that precedes it on its path; -1: the committed sequence
  std::int32_t lane = 0;             // index into RoundPlan::lanes
  std::int32_t adapter = -1;         // adapter index or -1
  std::uint32_t flags = 0;
  SamplingRule sampling;             // of kRowWantsDraw; keyed with sequence_index + 1
};

/// Page table of one lane for one cache group: entry i holds keys [64·i, 64·i + 64); -1 = released.
using PageTable = std::vector<std::int32_t>;

struct PlanLane {
  std::int32_t slot = 0;        // recurrent-state slot (>= 1; 0 is the padding slot)
  std::int32_t first_row = 0;
  std::int32_t row_count = 0;
  std::int32_t position = 0;    // tokens committed before first_row
  bool commits = true;          // false: a window that may be cut short (see ops/gated_delta.h)
  std::vector<std::int32_t> replay_rows;  // accepted rows of the slot's kept window, ascending along the accepted path;
                                          // the window began at position - replay_rows.size()
  bool replay_tree = false;               // the kept window was a tree (is_tree below): its keys have yet to be moved into
                                          // the pages, which are written at [position - replay_rows.size(), position)
  std::vector<PageTable> pages;           // one per cache group
};

struct RoundPlan {
  std::vector<PlanRow> rows;
  std::vector<PlanLane> lanes;
};

/// Whether the lane's rows are anything but a chain, in which every row's parent is the row before it. replay_tree means a
/// tree in exactly this sense: a drafted tree that happens to be a chain is one, and its keys went straight into the pages.
inline bool is_tree(const RoundPlan& plan, const PlanLane& lane) {
  for (std::int32_t row = lane.first_row + 1; row < lane.first_row + lane.row_count; ++row) {
    if (plan.rows[static_cast<std::size_t>(row)].parent_row != row - 1) return true;
  }
  return false;
}

}  // namespace tensorfold
