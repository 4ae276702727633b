// Who leaves the tree of prefixes, and in which order (the rule is in prefix_tree.h).
#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "base/limits.h"
#include "engine/cache/prefix_tree.h"

namespace tensorfold {

bool PrefixTree::NodeKey::operator<(const NodeKey& other) const {
  return std::make_tuple(priority, -depth, node) < std::make_tuple(other.priority, -other.depth, other.node);
}

void PrefixTree::index(Node* node) {
  if (node->parent == nullptr) return;
  if (node->children.empty()) leaves_.insert({node->priority, node->depth, node});
  for (const std::size_t g : window_groups_) {
    if (node->pages[g] > 0) window_pages_[g].insert({node->window_priority, node->depth, node});
  }
  if (node->snapshot.state != nullptr) snapshots_.insert({node->snapshot.priority, node->depth, node});
}

void PrefixTree::unindex(Node* node) {
  if (node->parent == nullptr) return;
  leaves_.erase({node->priority, node->depth, node});
  for (const std::size_t g : window_groups_) window_pages_[g].erase({node->window_priority, node->depth, node});
  snapshots_.erase({node->snapshot.priority, node->depth, node});
}

void PrefixTree::use(Node* node, bool in_window) {
  unindex(node);
  ++node->uses;
  const double uses = static_cast<double>(node->uses);
  node->priority = leaf_clock_ + uses * node->size();
  if (in_window) node->window_priority = window_clock_ + uses * limits::kKvPageTokens;
  index(node);
}

void PrefixTree::use_snapshot(Node* node) {
  if (node->snapshot.state == nullptr) return;
  unindex(node);
  ++node->snapshot.uses;
  node->snapshot.priority =
      snapshot_clock_ + static_cast<double>(node->snapshot.uses) * static_cast<double>(snapshot_distance(*node));
  index(node);
}

/// Evicts until the budget holds this much more. False: it never will, or not without what is in use.
bool PrefixTree::make_room(const std::vector<std::int32_t>& pages, std::int32_t nodes, bool snapshot) {
  for (const std::size_t g : paged_groups_) {
    if (pages[g] > budget_.page_counts[g]) return false;
  }
  if (snapshot && snapshot_bytes_ > budget_.snapshot_bytes) return false;
  for (const std::size_t g : paged_groups_) {
    while (held_[g] + pages[g] > budget_.page_counts[g]) {
      if (!drop_one(static_cast<std::int32_t>(g))) return false;
    }
  }
  while (snapshot && (snapshots_held_ + 1) * snapshot_bytes_ > budget_.snapshot_bytes) {
    const bool is_reclaimed = reclaim_snapshot();
    TF_ASSERT(is_reclaimed);
  }
  while (node_count_ + static_cast<std::size_t>(nodes) > limits::kPrefixNodesMax) {
    const auto least =
        std::find_if(leaves_.begin(), leaves_.end(), [](const NodeKey& key) { return !key.node->pinned; });
    if (least == leaves_.end()) return false;
    drop_leaf(least->node);
  }
  return true;
}

bool PrefixTree::reclaim(std::int32_t group) {
  return drop_one(group);
}

bool PrefixTree::reclaim_snapshot() {
  if (snapshots_.empty()) return false;
  snapshot_clock_ = std::max(snapshot_clock_, snapshots_.begin()->priority);
  drop_snapshot(snapshots_.begin()->node);  // even on the path: who resumed there has its copy
  return true;
}

bool PrefixTree::drop_one(std::int32_t group) {
  const std::size_t g = static_cast<std::size_t>(group);
  const bool slides = std::find(window_groups_.begin(), window_groups_.end(), g) != window_groups_.end();
  std::set<NodeKey>& order = slides ? window_pages_[g] : leaves_;
  const auto least = std::find_if(order.begin(), order.end(), [g, slides](const NodeKey& key) {
    return !(slides ? key.node->window_pinned : key.node->pinned) && key.node->pages[g] > 0;
  });
  if (least == order.end()) return false;
  double& clock = slides ? window_clock_ : leaf_clock_;
  clock = std::max(clock, least->priority);
  if (slides) {
    drop_window_page(least->node, g);
  } else {
    drop_leaf(least->node);
  }
  return true;
}

void PrefixTree::release_page(Node& node, std::size_t group) {
  if (node.pages[group] <= 0) return;
  pool_.release(static_cast<std::int32_t>(group), node.pages[group]);
  node.pages[group] = 0;
  --held_[group];
}

/// Drops the leaf, and then those before it that were kept for it alone.
void PrefixTree::drop_leaf(Node* leaf) {
  for (Node* parent = remove_leaf(leaf); is_useless(*parent);) parent = remove_leaf(parent);
}

PrefixTree::Node* PrefixTree::remove_leaf(Node* leaf) {
  TF_ASSERT(leaf->children.empty() && leaf->parent != nullptr);
  unindex(leaf);
  for (const std::size_t g : paged_groups_) release_page(*leaf, g);
  snapshots_held_ -= leaf->snapshot.state != nullptr ? 1 : 0;
  Node* parent = leaf->parent;
  unindex(parent);
  note_child(*parent, leaf->size(), -1);
  parent->children.erase(Elements(leaf->elements));  // destroys the leaf
  --node_count_;
  index(parent);
  return parent;
}

void PrefixTree::drop_window_page(Node* node, std::size_t group) {
  unindex(node);
  release_page(*node, group);
  index(node);
  prune(node);
}

void PrefixTree::drop_snapshot(Node* node) {
  unindex(node);
  node->snapshot = {};
  --snapshots_held_;
  index(node);
  prune(node);
}

/// A leaf in which nothing can be resumed is of no use to anybody.
bool PrefixTree::is_useless(const Node& node) const {
  return node.parent != nullptr && !node.pinned && node.children.empty() && !can_resume_in(node);
}

void PrefixTree::prune(Node* node) {
  if (is_useless(*node)) drop_leaf(node);
}

bool PrefixTree::can_resume_in(const Node& leaf) const {
  if (is_recurrent() && leaf.snapshot.state == nullptr) return false;
  return std::all_of(window_groups_.begin(), window_groups_.end(),
                     [&leaf](std::size_t g) { return leaf.pages[g] > 0; });
}

}  // namespace tensorfold
