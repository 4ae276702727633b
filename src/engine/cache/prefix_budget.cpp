// Dividing the budget of kept prefixes (see prefix_budget.h).
#include "engine/cache/prefix_budget.h"

#include <algorithm>

#include "base/limits.h"

namespace tensorfold {
namespace {

constexpr std::int32_t kSpacingMin = 512, kSpacingMax = 4096;
constexpr std::uint64_t kPageTokens = limits::kKvPageTokens;
constexpr std::int32_t kPagesMax = 1 << 30;

bool slides(const CacheGroup& group) {
  return group.kind == CacheKind::kSliding && group.window > 0;
}

std::uint64_t window_pages(const CacheGroup& group) {
  return (static_cast<std::uint64_t>(group.window) + kPageTokens - 2) / kPageTokens + 1;  // at any offset in a page
}

struct Costs {
  std::uint64_t page = 0;      // a page of every full group
  std::uint64_t point = 0;     // a resume point's snapshot and windows
  std::uint64_t snapshot = 0;  // the snapshot alone
};

Costs costs_of(const std::vector<CacheGroup>& groups) {
  Costs costs;
  for (const CacheGroup& group : groups) {
    if (group.kind == CacheKind::kRecurrent) {
      costs.snapshot += group.slot_bytes;
      costs.point += group.slot_bytes;
    } else if (slides(group)) {
      costs.point += group.page_bytes * window_pages(group);
    } else {
      costs.page += group.page_bytes;
    }
  }
  return costs;
}

}  // namespace

std::int32_t resume_point_spacing(const std::vector<CacheGroup>& groups) {
  const Costs costs = costs_of(groups);
  const std::uint64_t tokens = costs.page == 0 ? kSpacingMax : costs.point / costs.page * kPageTokens;
  return static_cast<std::int32_t>(std::clamp<std::uint64_t>(tokens, kSpacingMin, kSpacingMax));
}

PrefixBudget plan_prefix_budget(const std::vector<CacheGroup>& groups, std::uint64_t bytes) {
  const Costs costs = costs_of(groups);
  PrefixBudget budget;
  budget.page_counts.assign(groups.size(), 0);
  if (bytes < costs.page + costs.point || costs.page + costs.point == 0) return budget;
  std::uint64_t points = 0;
  if (costs.point > 0) {
    // Shares in the proportion in which one resume point and the pages between two of them cost.
    const std::uint64_t spacing_pages = static_cast<std::uint64_t>(resume_point_spacing(groups)) / kPageTokens;
    points = std::max<std::uint64_t>(bytes / (costs.point + spacing_pages * costs.page), 1);
  }
  const std::uint64_t pages = costs.page == 0 ? 0 : (bytes - points * costs.point) / costs.page;
  const auto count = [](std::uint64_t number) {
    return static_cast<std::int32_t>(std::min<std::uint64_t>(number, kPagesMax));
  };
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].page_bytes == 0) continue;
    budget.page_counts[g] = count(slides(groups[g]) ? points * window_pages(groups[g]) : pages);
  }
  budget.snapshot_bytes = points * costs.snapshot;
  budget.bytes = points * costs.point + pages * costs.page;
  return budget;
}

}  // namespace tensorfold
