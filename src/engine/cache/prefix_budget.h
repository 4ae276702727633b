// How much the tree of kept prefixes may hold, as capacity planning hands it to the cache: apart from both, so that
// neither has to know the other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tensorfold {

struct PrefixBudget {
  std::vector<std::int32_t> page_counts;  // per cache group
  std::uint64_t snapshot_bytes = 0;       // of recurrent states, in host memory
  std::uint64_t bytes = 0;                // all of it

  /// Nothing is kept at all.
  bool is_empty() const { return bytes == 0; }
};

}  // namespace tensorfold
