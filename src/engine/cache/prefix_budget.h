// How much of the caches may hold kept prefixes, and how a number of bytes becomes pages and snapshots. Apart from the
// tree and from capacity planning, so that neither has to know the other.
#pragma once

#include <cstdint>
#include <vector>

#include "model/language_model.h"

namespace tensorfold {

struct PrefixBudget {
  std::vector<std::int32_t> page_counts;  // per cache group
  std::uint64_t snapshot_bytes = 0;       // of recurrent states, in host memory
  std::uint64_t bytes = 0;                // all of it; 0: nothing is kept

  bool is_empty() const { return bytes == 0; }
};

/// Tokens between resume points. A resume point costs a snapshot of the recurrent groups and a window of pages of the
/// sliding ones: it pays about every so many tokens as cost the same in pages of the full groups, within bounds.
std::int32_t resume_point_spacing(const std::vector<CacheGroup>& groups);

/// Divides `bytes` between pages of the full groups and resume points. Empty when not even one prefix would fit.
PrefixBudget plan_prefix_budget(const std::vector<CacheGroup>& groups, std::uint64_t bytes);

}  // namespace tensorfold
