// The shape of a lane's tree of drafts, as the operations walk it: depths, and two orders of its rows. Derived from
// LaneSpan::parents in one place, so that every backend visits the same tree.
#pragma once

#include <array>
#include <cstdint>

#include "base/error.h"
#include "base/limits.h"
#include "ops/types.h"

namespace tensorfold::ops {

struct RowTree {
  using Rows = std::array<std::int32_t, limits::kTreeRowsMax>;
  std::int32_t row_count = 0;
  std::int32_t depth_max = 0;
  Rows parent{};
  Rows depth{};     // row 0 has depth 0
  Rows by_depth{};  // rows by ascending depth, then row: ascending positions
  Rows rank{};      // place of each row in by_depth
  Rows preorder{};  // depth first, children by ascending row: when a row is visited, the rows that were last visited at
                    // each smaller depth are its path
};

/// Requires lane.parents; checks that it is a tree (one root, parents before children, at most kTreeRowsMax rows).
inline RowTree row_tree(const LaneSpan& lane) {
  TF_ASSERT(lane.parents != nullptr && !lane.commits);
  TF_ASSERT(lane.row_count > 0 && lane.row_count <= limits::kTreeRowsMax && lane.parents[0] == -1);
  RowTree tree;
  tree.row_count = lane.row_count;
  tree.parent[0] = -1;
  for (std::int32_t row = 1; row < lane.row_count; ++row) {
    const std::int32_t parent = lane.parents[row];
    TF_ASSERT(parent >= 0 && parent < row);
    const auto at = static_cast<std::size_t>(row);
    tree.parent[at] = parent;
    tree.depth[at] = tree.depth[static_cast<std::size_t>(parent)] + 1;
    if (tree.depth[at] > tree.depth_max) tree.depth_max = tree.depth[at];
  }
  std::size_t placed = 0;
  for (std::int32_t depth = 0; depth <= tree.depth_max; ++depth) {
    for (std::int32_t row = 0; row < lane.row_count; ++row) {
      if (tree.depth[static_cast<std::size_t>(row)] != depth) continue;
      tree.rank[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(placed);
      tree.by_depth[placed++] = row;
    }
  }
  RowTree::Rows open{};  // rows found and not yet visited; pushed in descending order so that the smallest is on top
  std::size_t open_count = 1, visited = 0;
  while (open_count > 0) {
    const std::int32_t row = open[--open_count];
    tree.preorder[visited++] = row;
    for (std::int32_t child = lane.row_count - 1; child > row; --child) {
      if (tree.parent[static_cast<std::size_t>(child)] == row) open[open_count++] = child;
    }
  }
  return tree;
}

}  // namespace tensorfold::ops
