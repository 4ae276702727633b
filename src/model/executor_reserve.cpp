// What the executor takes of a GPU's memory before it serves; see executor.h. Apart from the passes because it is their bounds that
// matter here: what grows with rows, streams or contexts has grown when reserve_passes() returns. On a host memory grows where it is
// used, and there is nothing to find out.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "model/executor.h"
#include "model/widest_plan.h"

namespace tensorfold {

void Executor::warm_up(std::int32_t pass_rows) {
  if (backend_->info().host_memory) return;
  layer_caches_.release();  // those of an engine before: what they take isn't missing
  pass_rows = std::min(pass_rows, facts_.pass_rows_max);
  if (pass_rows <= warm_rows_) return;
  const std::int32_t lanes = (pass_rows + description_.context_max - 1) / description_.context_max;
  const std::int32_t pages = lanes * widest_plan_pages(lanes, pass_rows);
  allocate_caches(std::vector<std::int32_t>(facts_.groups.size(), 1 + pages), 1 + lanes, 1);
  run_widest_pass(lanes, pass_rows);
  backend_->reserve_growth();
  layer_caches_.release();
  warm_rows_ = pass_rows;
}

void Executor::reserve_passes(std::int32_t pass_rows, std::int32_t lanes, std::int32_t logits_rows) {
  if (backend_->info().host_memory) return;
  logits_->reserve(logits_rows);
  logits_->reserve_on_host(logits_rows);
  reserve_draws(static_cast<std::size_t>(logits_rows));
  if (mtp_head_) mtp_head_->reserve(lanes);
  if (drafter_) drafter_->reserve();
  ops::PassBounds bounds;
  bounds.rows = facts_.pass_rows_max;
  bounds.lanes = lanes;
  bounds.positions = bounds_.rope_positions;
  bounds.groups = static_cast<std::int32_t>(facts_.groups.size());
  backend_->reserve_passes(bounds);
  // Once more, with as many lanes as there will be and slots as wide as they are; of rows as many as their contexts have pages for.
  const std::int32_t busy = std::min(lanes, pass_rows);
  std::int64_t lane_rows = std::min((pass_rows + busy - 1) / busy, bounds_.rope_positions);
  for (std::size_t group = 0; group < facts_.groups.size(); ++group) {
    if (facts_.groups[group].kind == CacheKind::kRecurrent) continue;
    lane_rows = std::min<std::int64_t>(lane_rows, (bounds_.page_counts[group] - 1) / busy * limits::kKvPageTokens);
  }
  run_widest_pass(busy, static_cast<std::int32_t>(std::min<std::int64_t>(pass_rows, busy * lane_rows)));
  windows_.reset(bounds_.slot_count);
}

void Executor::run_widest_pass(std::int32_t lanes, std::int32_t rows) {
  const RoundPlan plan = widest_plan(facts_, lanes, rows, mtp_head_ != nullptr);
  ForwardResult result;
  forward(plan, result);
  std::vector<AbsorbLane> absorbed;
  for (const PlanLane& lane : plan.lanes) {
    AbsorbLane each;
    each.slot = lane.slot;
    each.pages = &lane.pages;
    each.wants_result = true;
    for (std::int32_t row = 0; row < lane.row_count; ++row) each.rows.push_back({lane.first_row + row, row, 0});
    absorbed.push_back(std::move(each));
  }
  if (mtp_head_) warm_mtp_head(absorbed);
  if (drafter_) warm_drafter(absorbed);
  backend_->synchronise();
}

void Executor::warm_mtp_head(const std::vector<AbsorbLane>& absorbed) {
  DraftLogits result;
  mtp_head_->absorb(absorbed, result);
  std::vector<MtpHead::Step> steps;
  for (std::size_t i = 0; i < result.entries.size(); ++i) {
    const AbsorbLane& lane = absorbed[static_cast<std::size_t>(result.entries[i])];
    // In the place of the last pair, where the tables have a page for sure: what it overwrites nobody reads.
    steps.push_back({static_cast<std::int32_t>(i), 0, lane.rows.back().position, lane.slot, lane.pages});
  }
  mtp_head_->step(steps, result);
}

void Executor::warm_drafter(const std::vector<AbsorbLane>& absorbed) {
  drafter_->absorb(absorbed);
  std::vector<BlockDrafter::Block> blocks;
  for (const AbsorbLane& lane : absorbed) {
    const std::int32_t rows = std::min(static_cast<std::int32_t>(lane.rows.size()), drafter_->block_rows_max());
    if (rows >= 2) blocks.push_back({0, static_cast<std::int32_t>(lane.rows.size()) - rows, rows, lane.slot, lane.pages});
  }
  std::vector<BlockCandidates> result;
  drafter_->propose(blocks, result);
}

void Executor::reserve_draws(std::size_t rows) {
  const std::size_t bytes = rows * sizeof(std::int32_t);
  if (drawn_ && drawn_->bytes() >= bytes) return;
  drawn_.reset();
  drawn_ = backend_->allocate_host(std::bit_ceil(bytes), "drawn tokens");
}

}  // namespace tensorfold
