// The tree of reusable prefixes (see prefix_tree.h): looking up, keeping and growing. prefix_eviction.cpp holds what
// decides who goes.
#include "engine/cache/prefix_tree.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/limits.h"

namespace tensorfold {
namespace {

constexpr std::int32_t kPageTokens = limits::kKvPageTokens;

bool lexicographic(PrefixTree::Elements a, PrefixTree::Elements b) {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
}

std::int32_t common_length(PrefixTree::Elements a, PrefixTree::Elements b) {
  const std::size_t most = std::min(a.size(), b.size());
  return static_cast<std::int32_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(most), b.begin()).first - a.begin());
}

}  // namespace

PrefixTree::Node::Node() : children(lexicographic) {}

PrefixTree::PrefixTree(LanguageModel& model, PagePool& pool, PrefixBudget budget)
    : pool_(pool), groups_(model.facts().groups), budget_(std::move(budget)) {
  TF_ASSERT(budget_.page_counts.size() == groups_.size());
  bool recurrent = false;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    recurrent = recurrent || groups_[g].kind == CacheKind::kRecurrent;
    if (groups_[g].page_bytes == 0) continue;
    paged_groups_.push_back(g);
    const bool slides = groups_[g].kind == CacheKind::kSliding && groups_[g].window > 0;
    (slides ? window_groups_ : full_groups_).push_back(g);
  }
  if (recurrent) snapshot_bytes_ = std::max<std::uint64_t>(model.slot_state_bytes(), 1);
  held_.assign(groups_.size(), 0);
  window_pages_.resize(groups_.size());
}

PrefixTree::~PrefixTree() {
  clear();
}

void PrefixTree::clear() {
  while (!leaves_.empty()) drop_leaf(leaves_.begin()->node);
  roots_.clear();
  TF_ASSERT(node_count_ == 0 && snapshots_held_ == 0);
}

std::uint64_t PrefixTree::bytes_held() const {
  std::uint64_t bytes = snapshot_bytes_held();
  for (const std::size_t g : paged_groups_) bytes += static_cast<std::uint64_t>(held_[g]) * groups_[g].page_bytes;
  return bytes;
}

PrefixTree::Node* PrefixTree::find_root(const std::string& scope) const {
  const auto found = roots_.find(scope);
  return found == roots_.end() ? nullptr : found->second.get();
}

/// The child that shares most leading elements with `elements`. Siblings are ordered by their elements, so it is one of
/// the two beside the place where `elements` would stand.
PrefixTree::Step PrefixTree::best_child(Node& node, Elements elements) {
  Step best;
  const auto after = node.children.lower_bound(elements);
  const auto consider = [&](const Children::value_type& entry) {
    const std::int32_t count = common_length(entry.first, elements);
    if (count > best.count) best = {entry.second.get(), count};
  };
  if (after != node.children.begin()) consider(*std::prev(after));
  if (after != node.children.end()) consider(*after);
  return best;
}

std::vector<PrefixTree::Step> PrefixTree::walk(Node& root, Elements elements) const {
  std::vector<Step> path;
  Node* node = &root;
  while (!elements.empty()) {
    const Elements block = elements.first(std::min<std::size_t>(elements.size(), kPageTokens));
    const Step step = best_child(*node, block);
    if (step.count == 0) break;
    path.push_back(step);
    if (step.count < kPageTokens) break;
    node = step.node;
    elements = elements.subspan(block.size());
  }
  return path;
}

std::int32_t PrefixTree::first_window_block(std::size_t group, std::int32_t position) const {
  return std::max(position - groups_[group].window + 1, 0) / kPageTokens;
}

bool PrefixTree::in_window(std::size_t group, std::int32_t block, std::int32_t position) const {
  return block >= first_window_block(group, position);
}

/// The highest block that resuming at `position` needs and whose window page is gone, or -1.
std::int32_t PrefixTree::highest_missing_block(const std::vector<Step>& path, std::int32_t position) const {
  std::int32_t missing = -1;
  for (const std::size_t g : window_groups_) {
    for (std::int32_t block = (position - 1) / kPageTokens; block >= 0 && in_window(g, block, position); --block) {
      if (path[static_cast<std::size_t>(block)].node->pages[g] > 0) continue;
      missing = std::max(missing, block);
      break;
    }
  }
  return missing;
}

std::int32_t PrefixTree::resumable(const std::vector<Step>& path, std::int32_t position_max,
                                   std::span<const Range> uncut) const {
  std::int32_t position = position_max;
  while (position > 0) {
    const auto range = std::find_if(uncut.begin(), uncut.end(), [position](const Range& each) {
      return position > each.first && position < each.last;
    });
    if (range != uncut.end()) {
      position = range->first;
      continue;
    }
    const std::int32_t block = (position - 1) / kPageTokens;
    if (is_recurrent()) {
      // The last snapshot of this block at or before the position, or on to the block before.
      const auto& snapshots = path[static_cast<std::size_t>(block)].node->snapshots;
      const auto after = snapshots.upper_bound(position - block * kPageTokens);
      const std::int32_t found = after == snapshots.begin() ? 0 : std::prev(after)->first;
      if (block * kPageTokens + found != position) {
        position = block * kPageTokens + found;
        continue;
      }
    }
    const std::int32_t missing = highest_missing_block(path, position);
    if (missing < 0) return position;
    // No position whose window reaches over that block will do.
    position = std::min(position - 1, missing * kPageTokens);
  }
  return 0;
}

PrefixMatch PrefixTree::match(const std::string& scope, Elements elements, std::int32_t position_max,
                              std::span<const Range> uncut) const {
  PrefixMatch result;
  Node* root = find_root(scope);
  if (root == nullptr) return result;
  const std::vector<Step> path = walk(*root, elements);
  for (const Step& step : path) result.matched += step.count;
  const std::int32_t position = resumable(path, std::min(result.matched, position_max), uncut);
  if (position == 0) return result;
  result.prefix.position = position;
  result.prefix.tables.resize(groups_.size());
  const std::int32_t blocks = (position - 1) / kPageTokens + 1;
  for (const std::size_t g : paged_groups_) {
    const bool slides = std::find(window_groups_.begin(), window_groups_.end(), g) != window_groups_.end();
    for (std::int32_t block = 0; block < blocks; ++block) {
      const bool wanted = !slides || in_window(g, block, position);
      result.prefix.tables[g].push_back(wanted ? path[static_cast<std::size_t>(block)].node->pages[g] : -1);
    }
  }
  if (is_recurrent()) {
    result.snapshot =
        path[static_cast<std::size_t>(blocks - 1)].node->snapshots.at(position - (blocks - 1) * kPageTokens).state;
  }
  return result;
}

HeldPrefix PrefixTree::held(const std::string& scope, Elements elements) const {
  HeldPrefix result;
  result.tables.resize(groups_.size());
  Node* root = find_root(scope);
  if (root == nullptr) return result;
  for (const Step& step : walk(*root, elements)) {
    result.matched += step.count;
    for (const std::size_t g : paged_groups_) {
      result.tables[g].push_back(step.node->pages[g] > 0 ? step.node->pages[g] : -1);
    }
    const auto snapshot = step.node->snapshots.find(step.count);
    const bool at_end = result.matched == static_cast<std::int32_t>(elements.size());
    if (at_end && snapshot != step.node->snapshots.end()) result.snapshot = snapshot->second.state;
  }
  return result;
}

void PrefixTree::touch(const std::string& scope, Elements elements, const PrefixMatch& match) {
  Node* root = find_root(scope);
  if (root == nullptr || match.prefix.position == 0) return;
  const std::int32_t position = match.prefix.position;
  const std::vector<Step> path = walk(*root, elements.first(static_cast<std::size_t>(position)));
  for (std::size_t block = 0; block < path.size(); ++block) {
    const bool visible = std::any_of(window_groups_.begin(), window_groups_.end(), [&](std::size_t g) {
      return in_window(g, static_cast<std::int32_t>(block), position);
    });
    use(path[block].node, visible);
  }
  if (!is_recurrent() || path.empty()) return;
  const std::int32_t offset = position - static_cast<std::int32_t>(path.size() - 1) * kPageTokens;
  if (path.back().node->snapshots.count(offset) > 0) use_snapshot(path.back().node, offset);
}

bool PrefixTree::keep(const std::string& scope, Elements elements, const std::vector<PageTable>& tables,
                      bool resume_point, std::shared_ptr<const StateSnapshot> snapshot) {
  TF_ASSERT(tables.size() == groups_.size());
  TF_ASSERT(resume_point || resumes_anywhere());
  TF_ASSERT((snapshot != nullptr) == (is_recurrent() && resume_point));
  if (elements.empty()) return true;
  std::unique_ptr<Node>& root = roots_[scope];
  if (root == nullptr) root = std::make_unique<Node>();

  // What is there already stays; count what has to be added, with nothing on the path at risk.
  std::vector<Step> path = walk(*root, elements);
  for (const Step& step : path) step.node->pinned = true;
  const std::int32_t position = static_cast<std::int32_t>(elements.size());
  std::int32_t blocks = (position - 1) / kPageTokens + 1;
  bool whole = true;
  const auto needed = [&] {
    std::vector<std::int32_t> pages(groups_.size(), 0);
    for (std::int32_t block = 0; block < blocks; ++block) {
      const std::int32_t wanted = std::min(position - block * kPageTokens, kPageTokens);
      const Step step = static_cast<std::size_t>(block) < path.size() ? path[static_cast<std::size_t>(block)] : Step{};
      // There already, or a shorter block that grows and gives its pages up for longer ones.
      const bool held = step.node != nullptr && (step.count == wanted || step.count == step.node->size());
      for (const std::size_t g : full_groups_) pages[g] += held ? 0 : 1;
      for (const std::size_t g : window_groups_) {
        const bool has = held && step.node->pages[g] > 0;
        pages[g] += in_window(g, block, position) && !has ? 1 : 0;
      }
    }
    return pages;
  };
  while (blocks > 0 && !make_room(needed(), blocks, snapshot != nullptr)) {
    whole = false;
    // The head of a prompt is what others share: of a plain model it is kept alone when the rest doesn't fit.
    blocks = resumes_anywhere() ? blocks - std::max(blocks / 8, 1) : 0;
  }
  Node* node = root.get();
  std::vector<Node*> kept;
  for (std::int32_t block = 0; block < blocks; ++block) {
    const std::int32_t count = std::min(position - block * kPageTokens, kPageTokens);
    const bool had_window =
        static_cast<std::size_t>(block) < path.size() && has_window_page(*path[static_cast<std::size_t>(block)].node);
    node =
        place(node, elements.subspan(static_cast<std::size_t>(block) * kPageTokens, static_cast<std::size_t>(count)));
    node->pinned = true;
    kept.push_back(node);
    const bool visible = resume_point && std::any_of(window_groups_.begin(), window_groups_.end(),
                                                     [&](std::size_t g) { return in_window(g, block, position); });
    attach_pages(*node, count, tables, visible || had_window);
  }
  if (snapshot != nullptr && whole) {
    attach_snapshot(*node, position - (blocks - 1) * kPageTokens, std::move(snapshot));
  }
  for (const Step& step : path) step.node->pinned = false;
  for (Node* each : kept) each->pinned = false;
  if (kept.empty() && !path.empty()) prune(path.back().node);  // it may have lost what it led to
  if (root->children.empty()) roots_.erase(scope);
  return whole;
}

bool PrefixTree::has_window_page(const Node& node) const {
  return std::any_of(window_groups_.begin(), window_groups_.end(),
                     [&node](std::size_t g) { return node.pages[g] > 0; });
}

/// The child of `parent` that holds `block` (or begins with it): the one that is there, a shorter one grown, or a new
/// one.
PrefixTree::Node* PrefixTree::place(Node* parent, Elements block) {
  const Step best = best_child(*parent, block);
  const std::int32_t count = static_cast<std::int32_t>(block.size());
  if (best.count == count) return best.node;
  if (best.node != nullptr && best.count == best.node->size()) {
    grow(*best.node, block);
    return best.node;
  }
  auto node = std::make_unique<Node>();
  Node* raw = node.get();
  raw->parent = parent;
  raw->depth = parent->parent == nullptr ? 0 : parent->depth + 1;
  raw->elements.assign(block.begin(), block.end());
  raw->pages.assign(groups_.size(), 0);
  unindex(parent);
  parent->children.emplace(Elements(raw->elements), std::move(node));
  index(parent);
  ++node_count_;
  raw->priority = leaf_clock_ + static_cast<double>(raw->size());
  index(raw);
  return raw;
}

/// A partly filled block goes on: its elements are extended, and its pages, which end too early, are given up.
void PrefixTree::grow(Node& child, Elements block) {
  TF_ASSERT(child.children.empty());
  unindex(&child);
  auto entry = child.parent->children.extract(Elements(child.elements));
  TF_ASSERT(!entry.empty());
  child.elements.assign(block.begin(), block.end());
  entry.key() = Elements(child.elements);
  child.parent->children.insert(std::move(entry));
  for (const std::size_t g : paged_groups_) release_page(child, g);
  child.priority = leaf_clock_ + static_cast<double>(child.uses) * child.size();
  index(&child);
}

void PrefixTree::attach_pages(Node& node, std::int32_t count, const std::vector<PageTable>& tables, bool window) {
  unindex(&node);
  const auto attach = [&](std::size_t g) {
    // A page that ends before the block's last element can't stand for the block.
    if (node.pages[g] > 0 || count < node.size()) return;
    const PageTable& table = tables[g];
    TF_ASSERT(static_cast<std::size_t>(node.depth) < table.size());
    const std::int32_t page = table[static_cast<std::size_t>(node.depth)];
    if (page <= 0) return;
    pool_.add_reference(static_cast<std::int32_t>(g), page);
    node.pages[g] = page;
    ++held_[g];
  };
  for (const std::size_t g : full_groups_) attach(g);
  if (window) {
    for (const std::size_t g : window_groups_) attach(g);
    node.window_priority = std::max(node.window_priority, window_clock_ + static_cast<double>(kPageTokens));
  }
  node.priority = std::max(node.priority, leaf_clock_ + static_cast<double>(node.uses) * node.size());
  index(&node);
}

std::int32_t PrefixTree::snapshot_distance(const Node& node, std::int32_t offset) const {
  const std::int32_t position = node.depth * kPageTokens + offset;
  const auto here = node.snapshots.lower_bound(offset);
  if (here != node.snapshots.begin()) return offset - std::prev(here)->first;
  for (const Node* before = node.parent; before != nullptr && before->parent != nullptr; before = before->parent) {
    if (before->snapshots.empty()) continue;
    return position - (before->depth * kPageTokens + before->snapshots.rbegin()->first);
  }
  return position;
}

void PrefixTree::attach_snapshot(Node& node, std::int32_t offset, std::shared_ptr<const StateSnapshot> state) {
  if (node.snapshots.count(offset) > 0) {
    use_snapshot(&node, offset);
    return;
  }
  unindex(&node);
  Snapshot entry;
  entry.state = std::move(state);
  entry.priority = snapshot_clock_ + static_cast<double>(snapshot_distance(node, offset));
  node.snapshots.emplace(offset, std::move(entry));
  ++snapshots_held_;
  index(&node);
}

}  // namespace tensorfold
