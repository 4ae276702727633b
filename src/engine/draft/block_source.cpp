// See block_source.h.
#include "engine/draft/block_source.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/limits.h"
#include "engine/draft/draft_tree.h"

namespace tensorfold {
namespace {

constexpr double kChancePrior = 0.7;
constexpr std::int32_t kBlockRowsMin = 4;
constexpr std::int32_t kGrowthAtEnd = 5;  // rows beyond the deepest draft that landed, when it was the block's last
constexpr std::int32_t kGrowth = 2;       // ... elsewhere

struct BlockState : DraftState {
  std::int32_t absorbed_end = -1;  // position after the last absorbed row; -1: none yet
  std::int32_t rows = 0;           // of the next block, the pending token's included
};

/// Positions that every table covers (whole pages, so more than was asked for).
std::int32_t covered_positions(const std::vector<PageTable>& pages) {
  std::size_t covered = std::numeric_limits<std::int32_t>::max();
  for (const PageTable& table : pages) {
    if (!table.empty()) covered = std::min(covered, table.size() * limits::kKvPageTokens);
  }
  return static_cast<std::int32_t>(covered);
}

BlockState& state_of(const DraftStream& stream) {
  return static_cast<BlockState&>(*stream.state);
}

}  // namespace

BlockSource::BlockSource(BlockDrafter& drafter) : drafter_(drafter) {
  TF_ASSERT(drafter.block_rows() > 1 && drafter.block_rows_max() >= drafter.block_rows());
  facts_.kind = DraftKind::kBlock;
  facts_.needs_tapped_rows = true;
  facts_.runs_model = true;
  facts_.one_pass = true;
  facts_.depth_max = drafter.block_rows_max() - 1;
  facts_.nodes_max = drafter.has_selector() ? limits::kTreeRowsMax - 1 : facts_.depth_max;
  facts_.nodes_max = std::max(facts_.nodes_max, facts_.depth_max);
  facts_.chance_prior = kChancePrior;
}

std::unique_ptr<DraftState> BlockSource::open(const DraftStream& stream) {
  (void)stream;
  auto state = std::make_unique<BlockState>();
  state->rows = std::min(std::max(kBlockRowsMin, drafter_.block_rows()), drafter_.block_rows_max());
  return state;
}

void BlockSource::absorb(std::vector<DraftAbsorb>& batch) {
  std::vector<AbsorbLane> lanes;
  for (DraftAbsorb& entry : batch) {
    if (entry.rows.empty()) continue;
    AbsorbLane lane;
    lane.slot = entry.stream.slot;
    lane.rows = entry.rows;
    lane.pages = entry.stream.pages;
    lanes.push_back(std::move(lane));
    state_of(entry.stream).absorbed_end = entry.rows.back().position + 1;
  }
  if (!lanes.empty()) drafter_.absorb(lanes);
}

void BlockSource::propose(std::vector<DraftRequest>& batch) {
  std::vector<BlockDrafter::Block> blocks;
  std::vector<DraftRequest*> requests;  // per block
  for (DraftRequest& request : batch) {
    const DraftStream& stream = request.stream;
    const BlockState& state = state_of(stream);
    const auto position = static_cast<std::int32_t>(stream.context->size()) - 1;
    if (state.absorbed_end != position) continue;  // nothing absorbed yet: the context's end is missing
    BlockDrafter::Block block;
    block.pending_token = stream.context->back();
    block.position = position;
    // Block rows see each other: a block shorter than the drafter knows drafts worse. So levels are cut afterwards, as
    // far as the pages have room for more.
    const std::int32_t room = std::max(covered_positions(*stream.pages) - position, request.depth_max + 1);
    block.row_count = std::min({state.rows, std::max(drafter_.block_rows(), request.depth_max + 1), room});
    block.slot = stream.slot;
    block.pages = stream.pages;
    blocks.push_back(block);
    requests.push_back(&request);
  }
  if (blocks.empty()) return;
  std::vector<BlockCandidates> results;
  drafter_.propose(blocks, results);
  TF_ASSERT(results.size() == blocks.size());
  for (std::size_t i = 0; i < results.size(); ++i) fill(*requests[i], results[i]);
}

void BlockSource::fill(DraftRequest& request, const BlockCandidates& candidates) const {
  const DraftStream& stream = request.stream;
  BlockSearch search;
  search.candidates = &candidates;
  if (drafter_.has_selector()) {
    search.pair_scores = [this, &candidates](std::int32_t depth, std::int32_t predecessor, float* scores) {
      drafter_.pair_scores(candidates, depth, predecessor, scores);
    };
  }
  search.pending_token = stream.context->back();
  search.first_position = static_cast<std::int64_t>(stream.context->size());
  search.sampling = *stream.sampling;
  search.depth_max = request.depth_max;
  search.nodes_max = request.nodes_max;
  const bool tree = request.trees && drafter_.has_selector();
  if (tree) search.nodes_max = std::min(search.nodes_max, limits::kTreeRowsMax - 1);
  request.proposal.nodes = tree ? best_tree(search) : best_chain(search);
}

void BlockSource::observe(const DraftStream& stream, const DraftProposal& proposal, std::int32_t fed_count,
                          const std::vector<std::int32_t>& landed) {
  (void)proposal, (void)fed_count;
  BlockState& state = state_of(stream);
  const auto deepest = static_cast<std::int32_t>(landed.size());
  const std::int32_t growth = deepest >= state.rows - 1 ? kGrowthAtEnd : kGrowth;
  const std::int32_t wanted = std::max(std::max(kBlockRowsMin, drafter_.block_rows()), deepest + growth);
  state.rows = std::min(wanted, drafter_.block_rows_max());
}

}  // namespace tensorfold
