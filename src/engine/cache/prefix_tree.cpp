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

PrefixTree::Elements block_of(PrefixTree::Elements elements, std::int32_t block, std::int32_t count) {
  return elements.subspan(static_cast<std::size_t>(block) * kPageTokens, static_cast<std::size_t>(count));
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

void PrefixTree::forget() {
  leaves_.clear();
  for (std::set<NodeKey>& order : window_pages_) order.clear();
  snapshots_.clear();
  for (auto& [scope, root] : roots_) {
    Node* node = root.get();
    while (node != nullptr) {  // from leaf to leaf: a chain may be too long to be taken apart by recursion
      if (!node->children.empty()) {
        node = node->children.begin()->second.get();
        continue;
      }
      for (const std::size_t g : paged_groups_) {
        if (node->parent != nullptr) release_page(*node, g);
      }
      Node* parent = node->parent;
      if (parent != nullptr) parent->children.erase(parent->children.begin());
      node = parent;
    }
  }
  roots_.clear();
  node_count_ = 0;
  snapshots_held_ = 0;
  for (const std::size_t g : paged_groups_) TF_ASSERT(held_[g] == 0);
}

std::uint64_t PrefixTree::bytes_held() const {
  std::uint64_t bytes = snapshot_bytes_held();
  for (const std::size_t g : paged_groups_) bytes += static_cast<std::uint64_t>(held_[g]) * groups_[g].page_bytes;
  return bytes;
}

// --- looking up ------------------------------------------------------------------------------------------------------

PrefixTree::Node* PrefixTree::find_root(const std::string& scope) const {
  const auto found = roots_.find(scope);
  return found == roots_.end() ? nullptr : found->second.get();
}

/// The child that shares most leading elements with `elements`. Siblings are ordered by their elements, so it is one of
/// the two beside the place where `elements` would stand; one that equals them is found before any other.
PrefixTree::Step PrefixTree::best_child(Node& node, Elements elements) {
  Step best;
  const auto after = node.children.lower_bound(elements);
  const auto consider = [&](const Children::value_type& entry) {
    const std::int32_t count = common_length(entry.first, elements);
    if (count > best.count) best = {entry.second.get(), count};
  };
  if (after != node.children.end()) consider(*after);
  if (after != node.children.begin()) consider(*std::prev(after));
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

bool PrefixTree::in_any_window(std::int32_t block, std::int32_t position) const {
  return std::any_of(window_groups_.begin(), window_groups_.end(),
                     [&](std::size_t g) { return in_window(g, block, position); });
}

/// Whether the windows of `position` are held, when its last block is `last` and those before are the path's.
bool PrefixTree::has_windows_of(const std::vector<Step>& path, const Node& last, std::int32_t position) const {
  const std::int32_t last_block = (position - 1) / kPageTokens;
  for (const std::size_t g : window_groups_) {
    if (last.pages[g] <= 0) return false;
    for (std::int32_t block = first_window_block(g, position); block < last_block; ++block) {
      if (path[static_cast<std::size_t>(block)].node->pages[g] <= 0) return false;
    }
  }
  return true;
}

/// Where inside a block a resume can be tried, furthest first: where a snapshot is, or (without recurrent groups) as
/// far as the path's own page reaches, and where a shorter block ends.
std::vector<std::pair<std::int32_t, PrefixTree::Node*>> PrefixTree::candidates(Node& root,
                                                                               const std::vector<Step>& path,
                                                                               std::int32_t block, Elements elements,
                                                                               std::int32_t offset_max) const {
  std::vector<std::pair<std::int32_t, Node*>> found;
  const Step& step = path[static_cast<std::size_t>(block)];
  const std::int32_t reach = std::min(step.count, offset_max);
  if (!is_recurrent()) {
    found.emplace_back(reach, step.node);
  } else if (step.node->size() <= reach && step.node->snapshot.state != nullptr) {
    found.emplace_back(step.node->size(), step.node);
  }
  Node& parent = block == 0 ? root : *path[static_cast<std::size_t>(block) - 1].node;
  for (auto length = parent.short_children.rbegin(); length != parent.short_children.rend(); ++length) {
    // Without recurrent groups a part of a shorter block serves as well.
    const bool is_there =
        static_cast<std::size_t>(block) * kPageTokens + static_cast<std::size_t>(length->first) <= elements.size();
    if (!is_there || (is_recurrent() && length->first > reach)) continue;
    const auto child = parent.children.find(block_of(elements, block, length->first));
    if (child == parent.children.end() || child->second.get() == step.node) continue;
    if (is_recurrent() && child->second->snapshot.state == nullptr) continue;
    found.emplace_back(std::min(length->first, offset_max), child->second.get());
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  return found;
}

PrefixTree::Resume PrefixTree::resumable(Node& root, const std::vector<Step>& path, Elements elements,
                                         std::int32_t position_max, std::span<const Range> uncut) const {
  if (position_max <= 0) return {};
  for (std::int32_t block = (position_max - 1) / kPageTokens; block >= 0; --block) {
    const std::int32_t offset_max = std::min(position_max - block * kPageTokens, kPageTokens);
    for (const auto& [offset, node] : candidates(root, path, block, elements, offset_max)) {
      const std::int32_t position = block * kPageTokens + offset;
      const auto cut = std::find_if(uncut.begin(), uncut.end(), [position](const Range& range) {
        return position > range.first && position < range.last;
      });
      if (cut != uncut.end()) {
        // Step back to where the range begins; what needs a resume point has one there or not.
        if (resumes_anywhere()) return resumable(root, path, elements, cut->first, uncut);
        continue;
      }
      if (has_windows_of(path, *node, position)) return {position, node};
    }
  }
  return {};
}

PrefixMatch PrefixTree::match(const std::string& scope, Elements elements, std::int32_t position_max,
                              std::span<const Range> uncut) const {
  PrefixMatch result;
  Node* root = find_root(scope);
  if (root == nullptr) return result;
  const std::vector<Step> path = walk(*root, elements);
  for (const Step& step : path) result.matched += step.count;
  const Resume resume = resumable(*root, path, elements, std::min(result.matched, position_max), uncut);
  if (resume.position == 0) return result;
  result.prefix.position = resume.position;
  result.prefix.tables.resize(groups_.size());
  const std::int32_t blocks = (resume.position - 1) / kPageTokens + 1;
  for (const std::size_t g : paged_groups_) {
    const bool slides = std::find(window_groups_.begin(), window_groups_.end(), g) != window_groups_.end();
    for (std::int32_t block = 0; block < blocks; ++block) {
      const Node* node = block + 1 == blocks ? resume.node : path[static_cast<std::size_t>(block)].node;
      const bool wanted = !slides || in_window(g, block, resume.position);
      result.prefix.tables[g].push_back(wanted ? node->pages[g] : -1);
    }
  }
  if (is_recurrent()) result.snapshot = resume.node->snapshot.state;
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
    const bool at_end = result.matched == static_cast<std::int32_t>(elements.size());
    if (at_end && step.count == step.node->size()) result.snapshot = step.node->snapshot.state;
  }
  return result;
}

void PrefixTree::touch(const std::string& scope, Elements elements, const PrefixMatch& match) {
  Node* root = find_root(scope);
  const std::int32_t position = match.prefix.position;
  if (root == nullptr || position == 0) return;
  const std::vector<Step> path = walk(*root, elements.first(static_cast<std::size_t>(position)));
  for (std::size_t block = 0; block < path.size(); ++block) {
    use(path[block].node, in_any_window(static_cast<std::int32_t>(block), position));
  }
  if (!path.empty() && path.back().count == path.back().node->size()) use_snapshot(path.back().node);
}

// --- keeping ---------------------------------------------------------------------------------------------------------

bool PrefixTree::keep(const std::string& scope, Elements elements, const std::vector<PageTable>& tables,
                      bool resume_point, std::shared_ptr<const StateSnapshot> snapshot) {
  TF_ASSERT(tables.size() == groups_.size());
  TF_ASSERT(resume_point || resumes_anywhere());
  TF_ASSERT((snapshot != nullptr) == (is_recurrent() && resume_point));
  if (elements.empty()) return true;
  std::unique_ptr<Node>& root = roots_[scope];
  if (root == nullptr) root = std::make_unique<Node>();

  // What is there already stays; count what has to be added, with nothing on the path at risk.
  const auto position = static_cast<std::int32_t>(elements.size());
  const std::vector<Step> path = walk(*root, elements);
  for (std::size_t block = 0; block < path.size(); ++block) {
    path[block].node->pinned = true;
    path[block].node->window_pinned = in_any_window(static_cast<std::int32_t>(block), position);
  }
  std::int32_t blocks = (position - 1) / kPageTokens + 1;
  bool whole = true;
  while (blocks > 0 && !make_room(pages_needed(path, position, blocks), blocks, snapshot != nullptr)) {
    whole = false;
    // The head of a prompt is what others share: of a plain model it is kept alone when the rest doesn't fit.
    blocks = resumes_anywhere() ? blocks - std::max(blocks / 8, 1) : 0;
  }
  Node* node = root.get();
  std::vector<Node*> kept;
  for (std::int32_t block = 0; block < blocks; ++block) {
    const std::int32_t count = std::min(position - block * kPageTokens, kPageTokens);
    node = place(node, block_of(elements, block, count));
    node->pinned = true;
    kept.push_back(node);
    attach_pages(*node, count, tables, in_any_window(block, position));
  }
  if (snapshot != nullptr && whole) attach_snapshot(*node, std::move(snapshot));
  for (const Step& step : path) step.node->pinned = step.node->window_pinned = false;
  for (Node* each : kept) each->pinned = false;
  if (kept.empty() && !path.empty()) prune(path.back().node);  // it may have lost what it led to
  if (root->children.empty()) roots_.erase(scope);
  return whole;
}

std::vector<std::int32_t> PrefixTree::pages_needed(const std::vector<Step>& path, std::int32_t position,
                                                   std::int32_t blocks) const {
  std::vector<std::int32_t> pages(groups_.size(), 0);
  for (std::int32_t block = 0; block < blocks; ++block) {
    const std::int32_t count = std::min(position - block * kPageTokens, kPageTokens);
    const Step step = static_cast<std::size_t>(block) < path.size() ? path[static_cast<std::size_t>(block)] : Step{};
    const bool is_held = step.node != nullptr && can_hold(step, count);
    for (const std::size_t g : full_groups_) pages[g] += is_held ? 0 : 1;
    for (const std::size_t g : window_groups_) {
      const bool has_page = is_held && step.node->pages[g] > 0;
      pages[g] += in_window(g, block, position) && !has_page ? 1 : 0;
    }
  }
  return pages;
}

/// Whether keeping `count` elements of a block needs no page beyond the node's: it is there, or it is a shorter block
/// that grows and gives its page up for a longer one.
bool PrefixTree::can_hold(const Step& step, std::int32_t count) const {
  if (!resumes_anywhere()) return step.count == count && step.node->size() == count;
  return step.count == count || step.count == step.node->size();
}

/// The child of `parent` that holds `block`: the one that is there, a shorter one grown, or a new one. Of a model that
/// can't be resumed anywhere a shorter block is a resume point and stays beside the longer one.
PrefixTree::Node* PrefixTree::place(Node* parent, Elements block) {
  const Step best = best_child(*parent, block);
  if (best.node != nullptr && can_hold(best, static_cast<std::int32_t>(block.size()))) {
    if (best.count < static_cast<std::int32_t>(block.size())) grow(*best.node, block);
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
  note_child(*parent, raw->size(), 1);
  index(parent);
  ++node_count_;
  raw->priority = leaf_clock_ + static_cast<double>(raw->size());
  index(raw);
  return raw;
}

/// Keeps count of the children that are shorter than a page.
void PrefixTree::note_child(Node& parent, std::int32_t size, std::int32_t change) {
  if (size == kPageTokens) return;
  std::int32_t& count = parent.short_children[size];
  count += change;
  if (count == 0) parent.short_children.erase(size);
}

/// A partly filled block goes on: its elements are extended, and its pages, which end too early, are given up.
void PrefixTree::grow(Node& child, Elements block) {
  TF_ASSERT(child.children.empty() && resumes_anywhere());
  std::vector<std::int32_t> elements(block.begin(), block.end());
  unindex(&child);
  note_child(*child.parent, child.size(), -1);
  note_child(*child.parent, static_cast<std::int32_t>(elements.size()), 1);
  // Out of the tree and in again without asking for memory: a child that is in no tree would take its pages with it.
  auto entry = child.parent->children.extract(Elements(child.elements));
  TF_ASSERT(!entry.empty());
  child.elements.swap(elements);
  entry.key() = Elements(child.elements);
  child.parent->children.insert(std::move(entry));
  for (const std::size_t g : paged_groups_) release_page(child, g);
  child.priority = leaf_clock_ + static_cast<double>(child.uses) * child.size();
  index(&child);
}

void PrefixTree::attach_pages(Node& node, std::int32_t count, const std::vector<PageTable>& tables, bool in_window) {
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
  if (in_window) {
    for (const std::size_t g : window_groups_) attach(g);
    node.window_priority = std::max(node.window_priority, window_clock_ + static_cast<double>(kPageTokens));
  }
  node.priority = std::max(node.priority, leaf_clock_ + static_cast<double>(node.uses) * node.size());
  index(&node);
}

/// Tokens that the snapshot at the node's end saves beyond the one before it.
std::int32_t PrefixTree::snapshot_distance(const Node& node) const {
  const std::int32_t position = node.depth * kPageTokens + node.size();
  for (const Node* before = node.parent; before->parent != nullptr; before = before->parent) {
    if (before->snapshot.state != nullptr) return position - (before->depth * kPageTokens + before->size());
  }
  return position;
}

void PrefixTree::attach_snapshot(Node& node, std::shared_ptr<const StateSnapshot> state) {
  if (node.snapshot.state != nullptr) return use_snapshot(&node);
  unindex(&node);
  node.snapshot.state = std::move(state);
  node.snapshot.uses = 1;
  node.snapshot.priority = snapshot_clock_ + static_cast<double>(snapshot_distance(node));
  ++snapshots_held_;
  index(&node);
}

}  // namespace tensorfold
