// The radix tree of reusable prefixes. An edge is a block of up to 64 key elements, the tokens of one KV page, so that
// a node owns exactly one page of every paged group; siblings are ordered by their elements and found by comparing
// them, never by a hash. Pages are shared with streams by reference (PagePool), snapshots of recurrent state are host
// memory.
//
// Where a prefix can be resumed: models with full attention only, at any token. Sliding groups need the pages of the
// window before the position, so those are kept at resume points. Recurrent groups need a snapshot of exactly that
// position. A resume point inside a page is a short block of its own, beside the longer blocks that begin like it.
//
// What is given up first: each of three kinds of thing has a worth = times used x tokens that it saves (a leaf: its
// block; a snapshot: the distance from the snapshot before it; a page behind a sliding window: its block), and things
// of one kind have one size, so this is worth per byte. The one with the least `clock + worth` goes, where `clock` is
// that sum of what went last (so that what was worth much long ago leaves in the end). A node goes only as a leaf, and
// a leaf from which nothing can be resumed goes at once. The path that is being kept or resumed never goes.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/cache/page_pool.h"
#include "engine/cache/prefix_budget.h"
#include "engine/cache/snapshot_pool.h"
#include "engine/cache/stream_cache.h"

namespace tensorfold {

struct PrefixMatch {
  std::int32_t matched = 0;  // leading elements that the tree holds
  SharedPrefix prefix;       // position 0: nothing to resume from
  std::shared_ptr<const StateSnapshot> snapshot;
};

/// What the tree holds of a sequence of elements, resumable or not.
struct HeldPrefix {
  std::int32_t matched = 0;
  std::vector<PageTable> tables;                  // per group, for the matched blocks; -1: not held
  std::shared_ptr<const StateSnapshot> snapshot;  // of exactly all the elements
};

class PrefixTree {
 public:
  PrefixTree(LanguageModel& model, PagePool& pool, PrefixBudget budget);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  using Elements = std::span<const std::int32_t>;

  /// The longest resumable prefix of `elements` of at most `position_max` elements. Positions inside [first, last) of a
  /// range in `uncut` aren't resumed. Changes nothing.
  struct Range {
    std::int32_t first = 0, last = 0;
  };
  PrefixMatch match(const std::string& scope, Elements elements, std::int32_t position_max,
                    std::span<const Range> uncut = {}) const;
  HeldPrefix held(const std::string& scope, Elements elements) const;
  /// Counts a use of the match's path.
  void touch(const std::string& scope, Elements elements, const PrefixMatch& match);

  /// Keeps the prefix `elements` whose pages are in `tables`. As a resume point it also keeps the pages that the
  /// sliding windows need, and `snapshot` where the model is recurrent; otherwise the pages of the full groups alone.
  /// False when it isn't kept whole (the budget is too small): a model with full attention only keeps the part that
  /// fits.
  bool keep(const std::string& scope, Elements elements, const std::vector<PageTable>& tables, bool resume_point,
            std::shared_ptr<const StateSnapshot> snapshot);

  /// Gives up one thing that holds a page of `group`; false when there is none.
  bool reclaim(std::int32_t group);
  /// Gives up the snapshot that is worth least; false when there is none.
  bool reclaim_snapshot();
  void clear();
  /// As clear(), for a tree that a failed change has left half-done: pages and memory come back, whatever the eviction
  /// orders say. Needs no memory.
  void forget();

  /// Blocks of a sliding group that resuming at `position` needs: this one to the last.
  std::int32_t first_window_block(std::size_t group, std::int32_t position) const;
  const std::vector<std::size_t>& full_groups() const { return full_groups_; }
  const std::vector<std::size_t>& window_groups() const { return window_groups_; }
  std::uint64_t snapshot_bytes() const { return snapshot_bytes_; }  // of one
  bool is_recurrent() const { return snapshot_bytes_ > 0; }
  bool has_windows() const { return !window_groups_.empty(); }
  bool resumes_anywhere() const { return !is_recurrent() && !has_windows(); }
  std::int32_t pages_held(std::int32_t group) const { return held_[static_cast<std::size_t>(group)]; }
  std::uint64_t snapshot_bytes_held() const { return snapshots_held_ * snapshot_bytes_; }
  std::size_t node_count() const { return node_count_; }
  std::uint64_t bytes_held() const;

 private:
  struct Node;
  using Children = std::map<Elements, std::unique_ptr<Node>, bool (*)(Elements, Elements)>;
  struct Snapshot {
    std::shared_ptr<const StateSnapshot> state;
    std::uint64_t uses = 1;
    double priority = 0;
  };
  struct Node {
    Node* parent = nullptr;  // null: a root
    std::int32_t depth = 0;  // blocks before it
    std::vector<std::int32_t> elements;
    std::vector<std::int32_t> pages;  // per group; 0: none
    Snapshot snapshot;                // of the state after its last element
    Children children;
    std::map<std::int32_t, std::int32_t> short_children;  // number of children by size, where that is less than a page
    std::uint64_t uses = 1;
    double priority = 0;         // as a leaf
    double window_priority = 0;  // of its pages in sliding groups
    bool pinned = false;         // on the path that is being kept
    bool window_pinned = false;  // ... and in its windows

    Node();
    std::int32_t size() const { return static_cast<std::int32_t>(elements.size()); }
  };
  struct Step {
    Node* node = nullptr;
    std::int32_t count = 0;  // elements of the node that match
  };
  struct NodeKey {  // among equals the deepest goes first, so that an entry goes from its end
    double priority = 0;
    std::int32_t depth = 0;
    Node* node = nullptr;
    bool operator<(const NodeKey& other) const;
  };

  static Step best_child(Node& node, Elements elements);
  std::vector<Step> walk(Node& root, Elements elements) const;
  Node* find_root(const std::string& scope) const;
  struct Resume {
    std::int32_t position = 0;
    Node* node = nullptr;  // holds its last block
  };
  Resume resumable(Node& root, const std::vector<Step>& path, Elements elements, std::int32_t position_max,
                   std::span<const Range> uncut) const;
  std::vector<std::pair<std::int32_t, Node*>> candidates(Node& root, const std::vector<Step>& path, std::int32_t block,
                                                         Elements elements, std::int32_t offset_max) const;
  bool has_windows_of(const std::vector<Step>& path, const Node& last, std::int32_t position) const;
  bool in_any_window(std::int32_t block, std::int32_t position) const;

  std::vector<std::int32_t> pages_needed(const std::vector<Step>& path, std::int32_t position,
                                         std::int32_t blocks) const;
  bool make_room(const std::vector<std::int32_t>& pages, std::int32_t nodes, bool snapshot);
  bool drop_one(std::int32_t group);
  void drop_leaf(Node* leaf);
  Node* remove_leaf(Node* leaf);  // returns its parent
  bool is_useless(const Node& node) const;
  void drop_window_page(Node* node, std::size_t group);
  void drop_snapshot(Node* node);
  void prune(Node* leaf);
  bool can_resume_in(const Node& leaf) const;
  void release_page(Node& node, std::size_t group);

  Node* place(Node* parent, Elements block);
  void grow(Node& child, Elements block);
  bool can_hold(const Step& step, std::int32_t count) const;
  static void note_child(Node& parent, std::int32_t size, std::int32_t change);
  void attach_pages(Node& node, std::int32_t count, const std::vector<PageTable>& tables, bool in_window);
  void attach_snapshot(Node& node, std::shared_ptr<const StateSnapshot> state);
  std::int32_t snapshot_distance(const Node& node) const;

  bool in_window(std::size_t group, std::int32_t block, std::int32_t position) const;
  void index(Node* node);    // enters it into the eviction orders it belongs to
  void unindex(Node* node);  // takes it out of all of them
  void use(Node* node, bool in_window);
  void use_snapshot(Node* node);

  PagePool& pool_;
  std::vector<CacheGroup> groups_;
  std::vector<std::size_t> paged_groups_, full_groups_, window_groups_;
  PrefixBudget budget_;
  std::uint64_t snapshot_bytes_ = 0;  // of one; 0: the model isn't recurrent
  std::map<std::string, std::unique_ptr<Node>> roots_;
  std::vector<std::int32_t> held_;  // pages by group
  std::uint64_t snapshots_held_ = 0;
  std::size_t node_count_ = 0;
  std::set<NodeKey> leaves_;
  std::vector<std::set<NodeKey>> window_pages_;  // by group
  std::set<NodeKey> snapshots_;
  double leaf_clock_ = 0, window_clock_ = 0, snapshot_clock_ = 0;
};

}  // namespace tensorfold
