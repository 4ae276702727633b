// The plan of a round (engine_loop.h): which rows each granted stream feeds, and what must hold of a plan.
#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/limits.h"
#include "engine/engine_loop.h"

namespace tensorfold {

void EngineLoop::build_plan(const std::vector<Grant>& grants) {
  plan_.rows.clear();
  plan_.lanes.clear();
  plan_streams_.clear();
  for (const Grant& grant : grants) add_rows(*running_[static_cast<std::size_t>(grant.lane)], grant.rows);
#ifndef NDEBUG
  check_plan();
#endif
}

void EngineLoop::add_rows(Stream& stream, std::int32_t rows) {
  PlanLane lane;
  lane.slot = stream.cache().slot();
  lane.first_row = static_cast<std::int32_t>(plan_.rows.size());
  lane.row_count = rows;
  lane.position = stream.fed();
  lane.commits = stream.phase() == Stream::Phase::kPrompt;
  lane.replay_rows = stream.replay_rows();
  lane.replay_tree = stream.replay_tree();
  const std::int32_t context_rows = lane.commits ? rows : 1;
  for (std::int32_t i = 0; i < context_rows; ++i) {
    const std::int32_t index = stream.fed() + i;
    add_row(stream, stream.context()[static_cast<std::size_t>(index)], index, i == 0 ? -1 : lane.first_row + i - 1);
  }
  std::int32_t depth = 0;  // of the deepest draft
  if (!lane.commits) depth = add_drafts(stream, rows - 1, lane.first_row);
  stream.is_in_pass = true;
  const auto replayed = static_cast<std::int32_t>(lane.replay_rows.size());
  stream.cache().prepare(stream.fed(), context_rows + depth, lane.replay_tree ? replayed : 0);
  lane.pages = stream.cache().tables();
  plan_.lanes.push_back(std::move(lane));
  plan_streams_.push_back(&stream);
}

void EngineLoop::add_row(const Stream& stream, std::int32_t token, std::int32_t sequence_index,
                         std::int32_t parent_row) {
  PlanRow row;
  row.token = token;
  row.sequence_index = sequence_index;
  row.rope_position = {sequence_index, sequence_index, sequence_index};
  row.parent_row = parent_row;
  row.lane = static_cast<std::int32_t>(plan_.lanes.size());
  row.flags = drafter_.row_flags(stream) | (stream.wants_logits(sequence_index) ? kRowWantsLogits : 0u);
  const StreamRequest& request = stream.request();
  const bool row_is_read = request.on_logits || request.score_prompt || request.logprobs_top >= 0;
  if ((row.flags & kRowWantsLogits) != 0 && !row_is_read) {
    row.flags |= kRowWantsDraw;
    row.sampling = request.sampling;
  }
  plan_.rows.push_back(row);
}

std::int32_t EngineLoop::add_drafts(const Stream& stream, std::int32_t count, std::int32_t pending_row) {
  const std::vector<DraftNode>& nodes = stream.drafts.window.proposal.nodes;
  TF_ASSERT(count >= 0 && count <= static_cast<std::int32_t>(nodes.size()));
  std::int32_t deepest = 0;
  for (std::int32_t i = 0; i < count; ++i) {
    const DraftNode& node = nodes[static_cast<std::size_t>(i)];
    const std::int32_t parent = pending_row + 1 + node.parent;  // -1 is the pending token's row
    const std::int32_t index = plan_.rows[static_cast<std::size_t>(parent)].sequence_index + 1;
    add_row(stream, node.token, index, parent);
    deepest = std::max(deepest, index - stream.fed());
  }
  TF_ASSERT(deepest <= std::max(stream.draft_room(), 0));
  return deepest;
}

// N1 to N4 (engine.md 0) as far as a plan shows them.
void EngineLoop::check_plan() const {
  std::set<std::int32_t> slots;
  std::vector<std::set<std::int32_t>> written(facts_.groups.size());
  for (std::size_t i = 0; i < plan_.lanes.size(); ++i) {
    const PlanLane& lane = plan_.lanes[i];
    const Stream& stream = *plan_streams_[i];
    // N1: a decoding stream has fed all but its pending token; the next row feeds just that.
    const auto context = static_cast<std::int32_t>(stream.context().size());
    TF_ASSERT(lane.position == stream.fed() && (lane.commits || lane.position == context - 1));
    // N2: logits are wanted where a token is drawn: a row of index i draws index i + 1, within the reply.
    std::int32_t last = lane.position;
    for (std::int32_t row = lane.first_row; row < lane.first_row + lane.row_count; ++row) {
      const PlanRow& each = plan_.rows[static_cast<std::size_t>(row)];
      TF_ASSERT(lane.commits || ((each.flags & kRowWantsLogits) != 0 && each.sequence_index + 1 < stream.tokens_max()));
      last = std::max(last, each.sequence_index);
    }
    // N3: what is replayed ends where the window begins.
    TF_ASSERT(static_cast<std::int32_t>(lane.replay_rows.size()) <= lane.position);
    TF_ASSERT(lane.replay_rows.empty() || lane.replay_rows.front() == 0);
    // N4: a slot, and a page that is written, is one stream's alone.
    TF_ASSERT(lane.slot > 0 && slots.insert(lane.slot).second);
    for (std::size_t group = 0; group < lane.pages.size(); ++group) {
      if (lane.pages[group].empty()) continue;
      for (std::int32_t page = lane.position / limits::kKvPageTokens; page <= last / limits::kKvPageTokens; ++page) {
        TF_ASSERT(written[group].insert(lane.pages[group].at(static_cast<std::size_t>(page))).second);
      }
    }
  }
}

void EngineLoop::index_logits() {
  logits_index_.assign(plan_.rows.size(), -1);
  for (std::size_t i = 0; i < result_.logits_rows.size(); ++i) {
    logits_index_.at(static_cast<std::size_t>(result_.logits_rows[i])) = static_cast<std::int32_t>(i);
  }
  for (std::size_t row = 0; row < plan_.rows.size(); ++row) {
    if ((plan_.rows[row].flags & kRowWantsLogits) != 0 && logits_index_[row] < 0) {
      fail(ErrorCode::kInternal, "the pass returned no logits for a row that wants them");
    }
  }
}

const float* EngineLoop::logits_of(std::int32_t plan_row) {
  const std::int32_t index = logits_index_[static_cast<std::size_t>(plan_row)];
  return index < 0 ? nullptr : model_.logits_row(result_, static_cast<std::size_t>(index));
}

std::int32_t EngineLoop::draw_of(std::int32_t plan_row) const {
  const std::int32_t index = logits_index_[static_cast<std::size_t>(plan_row)];
  return index < 0 || result_.draws.empty() ? ops::kDrawOnHost : result_.draws[static_cast<std::size_t>(index)];
}

}  // namespace tensorfold
