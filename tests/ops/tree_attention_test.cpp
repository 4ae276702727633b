// Attention over trees of drafts, on every path of the backend under test and on both forms of the reference: every row has the bits of its
// path run as a chain and row by row, wherever the window lies; what was accepted is replayed into the pages; and
// nothing stale, rejected or of another branch reaches a row.
#include <functional>

#include "attention_harness.h"
#include "random_trees.h"

namespace tensorfold::ops {
namespace {

using TreeAttention = OperationTest;

using Shape = AttentionShape;
using Harness = AttentionHarness;
using Step = AttentionStep;

struct NamedBackend {
  std::string name;
  std::function<std::unique_ptr<Backend>(int threads)> make;
  bool is_reference = false;
};

std::vector<NamedBackend> backends() {
  std::vector<NamedBackend> result;
  for (const std::string& path : available_paths()) {
    result.push_back({path, [path](int threads) { return backend_under_test(threads, path); }});
  }
  if (kTestsCuda) return result;  // the CPU's program has the reference
  result.push_back({"reference", [](int threads) { return make_reference_backend(Rounding::kNone, threads); }, true});
  result.push_back(
      {"reference, rounded", [](int threads) { return make_reference_backend(Rounding::kBackend, threads); }, true});
  return result;
}

const Shape kShapes[] = {
    {.heads = 4, .kv_heads = 2, .head_dim = 16, .rotary_dims = 16},
    {.heads = 6, .kv_heads = 2, .head_dim = 40, .window = 64, .rotary_dims = 40, .norms = true, .gated = true},
    {.heads = 3, .kv_heads = 3, .head_dim = 24, .window = 10},
    {.heads = 9, .kv_heads = 1, .head_dim = 64, .window = 50, .rotary_dims = 32},
    {.heads = 16, .kv_heads = 1, .head_dim = 128, .rotary_dims = 64, .norms = true, .gated = true},
};

/// Compares every row of the tree that `tree` last ran on `lane` with its path on `plain`, whose lane stands at the
/// same position: leaf by leaf, as one chain or row by row.
void expect_paths(const Harness& tree, Harness& plain, const Step& step, const std::string& what) {
  const int position = plain.position(step.lane);
  const auto inputs = plain.inputs(step.lane);
  for (std::int32_t leaf = 0; leaf < step.count; ++leaf) {
    if (!is_leaf(step.parents, leaf)) continue;
    const auto path = path_to(step.parents, leaf);
    plain.rewind(step.lane, position);
    for (std::size_t i = 0; i < path.size(); ++i) {
      plain.set_row(step.lane, position + static_cast<int>(i), plain.tree_input(step.seed, path[i]));
    }
    if (leaf % 2 == 0) {
      plain.pass({{step.lane, static_cast<int>(path.size())}});
    } else {
      for (std::size_t i = 0; i < path.size(); ++i) plain.pass({{step.lane, 1}});
    }
    for (std::size_t i = 0; i < path.size(); ++i) {
      ASSERT_TRUE(same_bits(tree.tree_row(step.lane, path[i]), plain.row(step.lane, position + static_cast<int>(i))))
          << what << ", row " << path[i] << " at position " << position + static_cast<int>(i);
    }
  }
  plain.rewind(step.lane, position);
  plain.inputs(step.lane) = inputs;
}

TEST_F(TreeAttention, EveryRowIsItsPathAtEveryBoundary) {
  std::mt19937 random(17);
  unsigned seed = 0;
  for (const NamedBackend& backend : backends()) {
    for (const Shape& shape : kShapes) {
      for (const int position : {0, 1, 9, 36, 48, 57, 63, 64, 65, 113, 120, 127, 128}) {
        if (backend.is_reference && position % 3 != 0) continue;  // slow, and it has no tiles of its own to get wrong
        const auto rows = static_cast<std::int32_t>(1 + random() % 16);
        const Step step{0, rows, random_tree(random, rows), ++seed};
        Harness tree(backend.make(1 + static_cast<int>(seed % 3)), shape, 1, position + 40);
        Harness plain(backend.make(1), shape, 1, position + 40);
        for (Harness* harness : {&tree, &plain}) harness->fill(0, position);
        tree.pass({step});
        expect_paths(tree, plain, step, backend.name + ", head_dim " + std::to_string(shape.head_dim));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(TreeAttention, LongContextsAcrossLongerSegments) {
  std::mt19937 random(23);
  unsigned seed = 1000;
  for (const NamedBackend& backend : backends()) {
    for (const std::int32_t window : {0, 1000}) {
      const Shape shape{.heads = 4, .kv_heads = 2, .head_dim = 16, .window = window, .rotary_dims = 8};
      for (const int position : {2040, 2047, 2048, 8190}) {
        if (backend.is_reference && position != 2040) continue;
        const Step step{0, 16, random_tree(random, 16), ++seed};
        Harness tree(backend.make(2), shape, 1, position + 40);
        Harness plain(backend.make(1), shape, 1, position + 40);
        for (Harness* harness : {&tree, &plain}) harness->fill(0, position);
        tree.pass({step});
        expect_paths(tree, plain, step, backend.name + ", window " + std::to_string(window));
        if (HasFatalFailure()) return;
      }
    }
  }
}

/// Random rounds of several lanes: trees of which a random path is accepted, chains of which a random part is, prompts.
class Rounds {
 public:
  Rounds(const NamedBackend& backend, const Shape& shape, int threads, int lanes, int length, unsigned seed)
      : name_(backend.name),
        lanes_(lanes),
        length_(length),
        random_(seed),
        seed_(seed * 1000),
        tested_(backend.make(threads), shape, lanes, length),
        plain_(backend.make(1), shape, lanes, length) {}

  bool run() {
    std::vector<Step> steps;
    for (int lane = 0; lane < lanes_; ++lane) {
      const int left = length_ - tested_.position(lane) - 16;
      if (left <= 0 || draw(4) == 0) continue;
      if (draw(3) == 0) {
        steps.push_back({lane, 1 + draw(std::min(left, 50))});
      } else {
        const auto rows = static_cast<std::int32_t>(1 + draw(16));
        steps.push_back({lane, rows, random_tree(random_, rows), ++seed_});
      }
    }
    std::shuffle(steps.begin(), steps.end(), random_);
    if (!steps.empty()) tested_.pass(steps);
    for (const Step& step : steps) check_and_accept(step);
    for (int lane = 0; lane < lanes_; ++lane) {
      if (tested_.position(lane) + 16 < length_) return true;
    }
    return false;
  }

 private:
  int draw(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  void check_and_accept(const Step& step) {
    const int position = plain_.position(step.lane);
    if (step.parents.empty()) {
      for (int row = 0; row < step.count; ++row) {
        plain_.pass({{step.lane, 1}});
        ASSERT_TRUE(same_bits(tested_.row(step.lane, position + row), plain_.row(step.lane, position + row))) << name_;
      }
      const int accepted = 1 + draw(step.count);
      for (Harness* harness : {&tested_, &plain_}) harness->rewind(step.lane, position + accepted);
      return;
    }
    expect_paths(tested_, plain_, step, name_);
    const auto path = path_to(step.parents, draw(step.count));
    tested_.accept(step.lane, step.seed, path);
    for (const std::int32_t row : path) {
      plain_.set_row(step.lane, plain_.position(step.lane), plain_.tree_input(step.seed, row));
      plain_.pass({{step.lane, 1}});
    }
  }

  std::string name_;
  int lanes_, length_;
  std::mt19937 random_;
  unsigned seed_;
  Harness tested_, plain_;
};

TEST_F(TreeAttention, AcceptedPathsAreReplayedIntoThePages) {
  for (const NamedBackend& backend : backends()) {
    unsigned seed = 0;
    for (const Shape& shape : kShapes) {
      ++seed;
      Rounds rounds(backend, shape, 1 + static_cast<int>(seed % 3), 3, backend.is_reference ? 90 : 160, seed);
      while (rounds.run()) {
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(TreeAttention, ANaNRowReachesItsDescendantsOnly) {
  const std::vector<std::int32_t> parents = {-1, 0, 0, 1, 1, 2, 3, 5, 5, 7};
  for (const NamedBackend& backend : backends()) {
    for (const int position : {20, 60}) {
      Harness clean(backend.make(2), kShapes[0], 1, 100);
      clean.fill(0, position);
      clean.pass({{0, 10, parents, 1}});
      for (std::int32_t bad = 0; bad < 10; ++bad) {
        Harness dirty(backend.make(2), kShapes[0], 1, 100);
        dirty.poison_tree_row(1, bad);
        dirty.fill(0, position);
        dirty.pass({{0, 10, parents, 1}});
        for (std::int32_t row = 0; row < 10; ++row) {
          const auto path = path_to(parents, row);
          if (std::find(path.begin(), path.end(), bad) != path.end()) {
            for (const float value : dirty.tree_row(0, row)) ASSERT_TRUE(std::isnan(value)) << backend.name;
          } else {
            ASSERT_TRUE(same_bits(dirty.tree_row(0, row), clean.tree_row(0, row))) << backend.name << ", row " << row;
          }
        }
      }
    }
  }
}

TEST_F(TreeAttention, ATreeLeavesThePagesAlone) {
  // Rows after a rejected tree see what they would have seen without it, though it lay across a page's end.
  for (const NamedBackend& backend : backends()) {
    Harness with(backend.make(2), kShapes[0], 1, 100);
    Harness without(backend.make(2), kShapes[0], 1, 100);
    for (Harness* harness : {&with, &without}) harness->fill(0, 60);
    with.pass({{0, 8, {-1, 0, 1, 2, 3, 4, 5, 0}, 3}});
    for (Harness* harness : {&with, &without}) harness->pass({{0, 12}});
    EXPECT_TRUE(same_bits(with.all(), without.all())) << backend.name;
  }
}

TEST_F(TreeAttention, ReplayPassesReleasedPagesBy) {
  // A window of 10 keys: when the tree's path is replayed, its first page may have been released already.
  const Shape shape = kShapes[2];
  for (const NamedBackend& backend : backends()) {
    Harness tree(backend.make(2), shape, 1, 100);
    Harness plain(backend.make(1), shape, 1, 100);
    for (Harness* harness : {&tree, &plain}) harness->fill(0, 60);
    std::vector<std::int32_t> parents(16);
    std::iota(parents.begin(), parents.end(), -1);
    parents[15] = 3;
    const Step step{0, 16, parents, 5};
    tree.pass({step});
    const auto path = path_to(parents, 14);
    tree.accept(0, 5, path);
    tree.release_page(0, 0);  // position 75 sees keys from 66
    tree.pass({{0, 9}});
    for (const std::int32_t row : path) {
      plain.set_row(0, plain.position(0), plain.tree_input(5, row));
      plain.pass({{0, 1}});
    }
    plain.pass({{0, 9}});
    for (int position = 75; position < 84; ++position) {
      ASSERT_TRUE(same_bits(tree.row(0, position), plain.row(0, position))) << backend.name;
    }
  }
}

TEST_F(TreeAttention, WideChainsAreSingles) {
  for (const NamedBackend& backend : backends()) {
    const Shape& shape = kShapes[1];
    for (const int rows : {17, 64, 128}) {
      Harness wide(backend.make(2), shape, 1, 250);
      Harness single(backend.make(1), shape, 1, 250);
      for (Harness* harness : {&wide, &single}) harness->fill(0, 90);
      wide.pass({{0, rows}});
      for (int row = 0; row < rows; ++row) single.pass({{0, 1}});
      EXPECT_TRUE(same_bits(wide.all(), single.all())) << backend.name << ", " << rows << " rows";
    }
  }
}

}  // namespace
}  // namespace tensorfold::ops
