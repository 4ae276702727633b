// Random trees of drafts, and the paths in them, for tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace tensorfold::ops {

/// Parents of a random tree: of any shape, a chain, a star, a comb, or one whose branches stay near the newest row.
inline std::vector<std::int32_t> random_tree(std::mt19937& random, std::int32_t rows) {
  const auto draw = [&](std::int32_t n) { return static_cast<std::int32_t>(random() % static_cast<unsigned>(n)); };
  const std::int32_t shape = draw(5);
  std::vector<std::int32_t> parents = {-1};
  for (std::int32_t row = 1; row < rows; ++row) {
    switch (shape) {
      case 0:
        parents.push_back(row - 1);
        break;
      case 1:
        parents.push_back(0);
        break;
      case 2:
        parents.push_back(row % 2 == 1 ? std::max(0, row - 2) : row - 1);
        break;
      case 3:
        parents.push_back(row - 1 - draw(std::min(row, 3)));
        break;
      default:
        parents.push_back(draw(row));
        break;
    }
  }
  return parents;
}

/// Rows from row 0 to `row`.
inline std::vector<std::int32_t> path_to(const std::vector<std::int32_t>& parents, std::int32_t row) {
  std::vector<std::int32_t> path;
  for (; row >= 0; row = parents[static_cast<std::size_t>(row)]) path.push_back(row);
  std::reverse(path.begin(), path.end());
  return path;
}

inline bool is_leaf(const std::vector<std::int32_t>& parents, std::int32_t row) {
  return std::find(parents.begin(), parents.end(), row) == parents.end();
}

}  // namespace tensorfold::ops
