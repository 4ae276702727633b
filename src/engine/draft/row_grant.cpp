// The row grant (see row_grant.h).
#include "engine/draft/row_grant.h"

#include <algorithm>

namespace tensorfold {
namespace {
/// Drafting must beat not drafting by this much: measured costs and chances are estimates.
constexpr double kPlainGuard = 1.05;

double rate(double tokens, double seconds) {
  return seconds > 0.0 ? tokens / seconds : tokens;
}
}  // namespace

std::vector<std::int32_t> grant_draft_rows(const std::vector<const std::vector<double>*>& bids, std::int32_t extra_max,
                                           const CostModel& costs) {
  std::vector<std::int32_t> taken(bids.size(), 0), best(bids.size(), 0);
  std::vector<double> next_chance(bids.size(), 0.0);  // kept non-increasing, whatever a source says
  for (std::size_t i = 0; i < bids.size(); ++i) {
    if (!bids[i]->empty()) next_chance[i] = bids[i]->front();
  }
  auto rows = static_cast<std::int32_t>(bids.size());
  auto expected = static_cast<double>(rows);
  double best_rate = kPlainGuard * rate(expected, costs.predict(rows));
  for (std::int32_t extra = 0; extra < extra_max; ++extra) {
    const auto winner = std::max_element(next_chance.begin(), next_chance.end());
    if (winner == next_chance.end() || *winner <= 0.0) break;
    const auto lane = static_cast<std::size_t>(winner - next_chance.begin());
    expected += *winner;
    const std::vector<double>& chances = *bids[lane];
    const auto next = static_cast<std::size_t>(++taken[lane]);
    *winner = next < chances.size() ? std::min(*winner, chances[next]) : 0.0;
    const double now = rate(expected, costs.predict(++rows));
    if (now <= best_rate) continue;
    best_rate = now;
    best = taken;
  }
  return best;
}

double best_token_rate(const std::vector<double>& chances, std::int32_t lanes, const CostModel& costs) {
  double expected = 1.0, best = 0.0;
  for (std::size_t i = 0; i < chances.size(); ++i) {
    expected += chances[i];
    best = std::max(best, rate(lanes * expected, costs.predict(lanes * (2 + static_cast<std::int32_t>(i)))));
  }
  return best;
}

}  // namespace tensorfold
