// See draft_tree.h.
#include "engine/draft/draft_tree.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <span>

#include "base/error.h"
#include "base/math_exact.h"
#include "engine/float_mode.h"
#include "ops/sampler.h"

namespace tensorfold {
namespace {

// Published for DFlash2 (engine.md 4.2).
constexpr double kPairWeight = 0.6;
constexpr double kNoiseWeight = 0.7;
constexpr double kScale = 1.5;
constexpr std::size_t kChildrenMax = 4;

struct Child {
  std::int32_t token = 0;
  double log_chance = 0.0;  // given the parent
};

/// A node that may join the tree.
struct Candidate {
  double cost = 0.0;  // -log of the chance that the whole path lands
  std::uint64_t order = 0;
  std::int32_t parent = -1;
  std::int32_t depth = 0;
  Child child;
};

struct Later {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return a.cost > b.cost || (a.cost == b.cost && a.order > b.order);
  }
};

void check(const BlockSearch& search) {
  TF_ASSERT(search.candidates != nullptr);
  const BlockCandidates& candidates = *search.candidates;
  TF_ASSERT(candidates.depth_count >= 0 && candidates.candidate_count > 0);
  const std::size_t size =
      static_cast<std::size_t>(candidates.depth_count) * static_cast<std::size_t>(candidates.candidate_count);
  TF_ASSERT(candidates.tokens.size() == size && candidates.unary.size() == size);
}

std::span<const std::int32_t> tokens_at(const BlockCandidates& candidates, std::int32_t depth) {
  const auto count = static_cast<std::size_t>(candidates.candidate_count);
  return std::span(candidates.tokens).subspan(static_cast<std::size_t>(depth) * count, count);
}

std::span<const float> unary_at(const BlockCandidates& candidates, std::int32_t depth) {
  const auto count = static_cast<std::size_t>(candidates.candidate_count);
  return std::span(candidates.unary).subspan(static_cast<std::size_t>(depth) * count, count);
}

std::vector<float> pair_scores(const BlockSearch& search, std::int32_t depth, std::int32_t predecessor) {
  std::vector<float> scores(static_cast<std::size_t>(search.candidates->candidate_count), 0.0f);
  if (search.pair_scores) search.pair_scores(depth, predecessor, scores.data());
  return scores;
}

std::uint64_t noise_row(const BlockSearch& search, std::int32_t depth) {
  return sampling::row_key(sampling::request_key(search.sampling.seed),
                           static_cast<std::uint64_t>(search.first_position + depth));
}

/// The best children of a node, by what they are worth; none when a score isn't finite.
std::vector<Child> children_of(const BlockSearch& search, std::int32_t depth, std::int32_t predecessor) {
  const std::span<const std::int32_t> tokens = tokens_at(*search.candidates, depth);
  const std::span<const float> unary = unary_at(*search.candidates, depth);
  const std::vector<float> pair = pair_scores(search, depth, predecessor);
  const bool samples = search.sampling.temperature > 0.0;
  const double temperature = samples ? sampling::effective_temperature(search.sampling.temperature) : 1.0;
  const std::uint64_t row = noise_row(search, depth);
  std::vector<Child> children;
  double largest = -INFINITY;
  for (std::size_t c = 0; c < tokens.size(); ++c) {
    double value = (static_cast<double>(unary[c]) + kPairWeight * static_cast<double>(pair[c])) / temperature;
    if (samples) value += kNoiseWeight * sampling::gumbel(sampling::noise_bits(row, tokens[c]));
    value /= kScale;
    if (!std::isfinite(value)) continue;
    children.push_back({tokens[c], value});
    largest = std::max(largest, value);
  }
  double sum = 0.0;
  for (const Child& child : children) sum += exp_exact(child.log_chance - largest);
  const double log_sum = children.empty() ? 0.0 : largest + log_exact(sum);
  for (Child& child : children) child.log_chance = std::min(child.log_chance - log_sum, 0.0);
  const std::size_t kept = std::min(kChildrenMax, children.size());
  std::partial_sort(children.begin(), children.begin() + static_cast<std::ptrdiff_t>(kept), children.end(),
                    [](const Child& a, const Child& b) {
                      return a.log_chance > b.log_chance || (a.log_chance == b.log_chance && a.token < b.token);
                    });
  children.resize(kept);
  return children;
}

std::int32_t levels(const BlockSearch& search) {
  return std::min(search.depth_max, search.candidates->depth_count);
}

}  // namespace

std::vector<DraftNode> best_tree(const BlockSearch& search) {
  check(search);
  const ScopedIeeeMode mode;
  std::vector<DraftNode> nodes;
  std::priority_queue<Candidate, std::vector<Candidate>, Later> open;
  std::uint64_t order = 0;
  const auto open_children = [&](std::int32_t parent, std::int32_t depth, std::int32_t predecessor, double cost) {
    if (depth >= levels(search)) return;
    for (const Child& child : children_of(search, depth, predecessor)) {
      open.push({cost - child.log_chance, order++, parent, depth, child});
    }
  };
  open_children(-1, 0, search.pending_token, 0.0);
  while (!open.empty() && static_cast<std::int32_t>(nodes.size()) < search.nodes_max) {
    const Candidate next = open.top();
    open.pop();
    nodes.push_back({next.child.token, next.parent, exp_exact(next.child.log_chance)});
    open_children(static_cast<std::int32_t>(nodes.size()) - 1, next.depth + 1, next.child.token, next.cost);
  }
  return nodes;
}

std::vector<DraftNode> best_chain(const BlockSearch& search) {
  check(search);
  const ScopedIeeeMode mode;
  const SamplingRule& rule = search.sampling;
  std::vector<DraftNode> nodes;
  std::int32_t predecessor = search.pending_token;
  const std::int32_t depth_max = std::min(levels(search), search.nodes_max);
  for (std::int32_t depth = 0; depth < depth_max; ++depth) {
    const std::span<const std::int32_t> tokens = tokens_at(*search.candidates, depth);
    const std::span<const float> unary = unary_at(*search.candidates, depth);
    const std::vector<float> pair = pair_scores(search, depth, predecessor);
    std::vector<sampling::Candidate> candidates;
    for (std::size_t c = 0; c < tokens.size(); ++c) {
      const float score = unary[c] + pair[c];
      if (std::isfinite(score)) candidates.push_back({score, tokens[c]});
    }
    if (candidates.empty()) break;
    std::sort(candidates.begin(), candidates.end(), sampling::comes_before);
    if (rule.top_k > 0) candidates.resize(std::min(candidates.size(), static_cast<std::size_t>(rule.top_k)));
    std::size_t drawn = 0;
    double temperature = 1.0;
    if (rule.temperature > 0.0) {
      temperature = sampling::effective_temperature(rule.temperature);
      drawn = static_cast<std::size_t>(sampling::draw_from_top(
          candidates.data(), static_cast<std::int32_t>(candidates.size()), rule, noise_row(search, depth)));
    }
    const double first = sampling::scaled(candidates[0].logit, temperature);
    double sum = 0.0;
    for (const sampling::Candidate& c : candidates) sum += exp_exact(sampling::scaled(c.logit, temperature) - first);
    const double chance = exp_exact(sampling::scaled(candidates[drawn].logit, temperature) - first) / sum;
    nodes.push_back({candidates[drawn].token, depth - 1, std::min(chance, 1.0)});
    predecessor = candidates[drawn].token;
  }
  return nodes;
}

}  // namespace tensorfold
