// From a drafted block's candidates to a window (engine.md 4.2): the best tree of a given size, or the best chain, over
// the lattice of candidates by depth. What a candidate is worth depends on its predecessor (pair scores) and, when the
// target samples, on the noise with which the target will draw at that position: the noise is known in advance, so the
// tree leans towards what the target is going to pick. Pure functions: they see numbers, not streams.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/draft/draft_source.h"
#include "engine/sampling_rule.h"
#include "model/draft_head.h"

namespace tensorfold {

/// scores[c] = pair score of candidate c at `depth` after the token `predecessor`.
using PairScores = std::function<void(std::int32_t depth, std::int32_t predecessor, float* scores)>;

struct BlockSearch {
  const BlockCandidates* candidates = nullptr;
  PairScores pair_scores;  // empty: all 0
  std::int32_t pending_token = 0;
  std::int64_t first_position = 0;  // absolute index of the token at depth 0
  SamplingRule sampling;            // the target's
  std::int32_t depth_max = 0;       // levels used, at most candidates->depth_count
  std::int32_t nodes_max = 0;
};

/// Best first: the most probable nodes given the block, parents before children, at most four children a node.
std::vector<DraftNode> best_tree(const BlockSearch& search);

/// At each depth the candidate that the target's rule draws from the block's scores after the one before.
std::vector<DraftNode> best_chain(const BlockSearch& search);

}  // namespace tensorfold
