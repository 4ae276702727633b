// Windows of decoding lanes (see draft_window.h).
#include "engine/draft/draft_window.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "base/limits.h"

namespace tensorfold {
namespace {

bool contains(const std::vector<std::int32_t>& tokens, std::int32_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

/// What a rule says of the token after one node (or after the pending token): asked once, however many children.
class RuleState {
 public:
  explicit RuleState(std::unique_ptr<PathRule> rule) : rule_(std::move(rule)) {}

  bool allows(std::int32_t token, std::int32_t vocabulary_size) {
    if (!is_asked_) ask(vocabulary_size);
    if (!forced_.empty()) return forced_[0] == token;
    return !is_masked_ || (bits_[static_cast<std::size_t>(token / 32)] >> (token % 32) & 1u) != 0;
  }

  /// The state after `token`, or null when the reply ends there.
  std::unique_ptr<RuleState> after(std::int32_t token) const {
    std::unique_ptr<PathRule> next = rule_->clone();
    if (next->advance(token) != PathRule::Verdict::kContinue) return nullptr;
    return std::make_unique<RuleState>(std::move(next));
  }

 private:
  void ask(std::int32_t vocabulary_size) {
    is_asked_ = true;
    forced_ = rule_->forced_tokens();
    if (!forced_.empty()) return;
    const std::size_t words = (static_cast<std::size_t>(vocabulary_size) + 31) / 32;
    bits_.assign(words, 0);
    is_masked_ = rule_->mask(bits_);
    bits_.resize(words, 0);
  }

  std::unique_ptr<PathRule> rule_;
  std::vector<std::int32_t> forced_;
  std::vector<std::uint32_t> bits_;
  bool is_asked_ = false, is_masked_ = false;
};

}  // namespace

bool is_tree(const std::vector<DraftNode>& nodes, std::int32_t count) {
  for (std::int32_t i = 0; i < count; ++i) {
    if (nodes[static_cast<std::size_t>(i)].parent != i - 1) return true;
  }
  return false;
}

std::vector<std::int32_t> node_depths(const std::vector<DraftNode>& nodes) {
  std::vector<std::int32_t> depths;
  depths.reserve(nodes.size());
  for (const DraftNode& node : nodes) {
    depths.push_back(node.parent < 0 ? 0 : depths[static_cast<std::size_t>(node.parent)] + 1);
  }
  return depths;
}

std::string proposal_fault(const DraftRequest& request, std::int32_t vocabulary_size) {
  const std::vector<DraftNode>& nodes = request.proposal.nodes;
  const auto count = static_cast<std::int32_t>(nodes.size());
  if (count > request.nodes_max) return fmt::format("{} nodes of {}", count, request.nodes_max);
  for (std::int32_t i = 0; i < count; ++i) {
    const DraftNode& node = nodes[static_cast<std::size_t>(i)];
    if (node.token < 0 || node.token >= vocabulary_size) return fmt::format("token {}", node.token);
    if (node.parent < -1 || node.parent >= i) return fmt::format("node {} has parent {}", i, node.parent);
    if (!(node.chance >= 0.0 && node.chance <= 1.0)) return fmt::format("node {} has chance {}", i, node.chance);
  }
  for (const std::int32_t depth : node_depths(nodes)) {
    if (depth >= request.depth_max) return fmt::format("depth {} of {}", depth + 1, request.depth_max);
  }
  if (!is_tree(nodes, count)) return "";
  if (!request.trees) return "a tree where a chain was asked";
  if (count >= limits::kTreeRowsMax) return fmt::format("a tree of {} nodes", count);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (nodes[i].parent == nodes[j].parent && nodes[i].token == nodes[j].token) return "siblings with the same token";
    }
  }
  return "";
}

void cut_proposal(std::vector<DraftNode>& nodes, const PathRule* rule, const std::vector<std::int32_t>& stop_tokens,
                  std::int32_t vocabulary_size) {
  std::unique_ptr<RuleState> root;
  if (rule != nullptr && !nodes.empty()) root = std::make_unique<RuleState>(rule->clone());
  std::vector<std::int32_t> new_index(nodes.size(), -1);
  std::vector<std::unique_ptr<RuleState>> states(nodes.size());
  std::size_t kept = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    DraftNode node = nodes[i];
    if (node.parent >= 0 && new_index[static_cast<std::size_t>(node.parent)] < 0) continue;
    if (contains(stop_tokens, node.token)) continue;
    if (rule != nullptr) {
      RuleState& before = node.parent < 0 ? *root : *states[static_cast<std::size_t>(node.parent)];
      try {
        if (before.allows(node.token, vocabulary_size)) states[i] = before.after(node.token);
      } catch (const std::exception&) {
        continue;  // the stream's own rule will say so, at the token where a serial run meets it
      }
      if (states[i] == nullptr) continue;
    }
    if (node.parent >= 0) node.parent = new_index[static_cast<std::size_t>(node.parent)];
    new_index[i] = static_cast<std::int32_t>(kept);
    nodes[kept++] = node;
  }
  nodes.resize(kept);
}

std::vector<DraftNode> forced_nodes(const PathRule& rule, const std::vector<std::int32_t>& stop_tokens,
                                    std::int32_t depth_max, std::int32_t vocabulary_size) {
  std::vector<DraftNode> nodes;
  const std::unique_ptr<PathRule> path = rule.clone();
  while (static_cast<std::int32_t>(nodes.size()) < depth_max) {
    const std::vector<std::int32_t> forced = path->forced_tokens();
    if (forced.empty()) break;
    const std::int32_t token = forced[0];
    if (token < 0 || token >= vocabulary_size || contains(stop_tokens, token)) break;
    if (path->advance(token) != PathRule::Verdict::kContinue) break;
    nodes.push_back({token, static_cast<std::int32_t>(nodes.size()) - 1, 1.0});
  }
  return nodes;
}

}  // namespace tensorfold
