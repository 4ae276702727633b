// The Gated DeltaNet mixer over trees of drafts and wide windows, on every path of the backend under test and on the reference: every row has the
// bits of its path run row by row, and replaying an accepted path leaves the state of a plain run.
#include <functional>

#include "gated_delta_harness.h"
#include "random_trees.h"

namespace tensorfold::ops {
namespace {

using TreeGatedDelta = OperationTest;

using Harness = GatedDeltaHarness;
using Step = GatedDeltaStep;

struct NamedBackend {
  std::string name;
  std::function<std::unique_ptr<Backend>(int threads)> make;
};

std::vector<NamedBackend> backends() {
  std::vector<NamedBackend> result;
  for (const std::string& path : available_paths()) {
    result.push_back({path, [path](int threads) { return backend_under_test(threads, path); }});
  }
  if (kTestsCuda) return result;  // the CPU's program has the reference
  result.push_back({"reference", [](int threads) { return make_reference_backend(Rounding::kNone, threads); }});
  result.push_back(
      {"reference, rounded", [](int threads) { return make_reference_backend(Rounding::kBackend, threads); }});
  return result;
}

const GatedDeltaGeometry kGeometries[] = {
    {.k_heads = 2, .v_heads = 6, .k_dim = 16, .v_dim = 24, .conv_kernel = 4},
    {.k_heads = 1, .v_heads = 1, .k_dim = 24, .v_dim = 16, .conv_kernel = 2},
    {.k_heads = 3, .v_heads = 3, .k_dim = 10, .v_dim = 7, .conv_kernel = 8},
    {.k_heads = 1, .v_heads = 2, .k_dim = 64, .v_dim = 32, .conv_kernel = 4},
};

/// Rounds of several lanes: trees, windows and chunks on `tested_`; each row alone, committed at once, on `plain_`.
class Rounds {
 public:
  Rounds(const NamedBackend& backend, const GatedDeltaGeometry& geometry, int threads, int lanes, int length,
         unsigned seed)
      : name_(backend.name),
        lanes_(lanes),
        length_(length),
        random_(seed),
        seed_(seed * 1000),
        tested_(backend.make(threads), geometry, lanes, length),
        plain_(backend.make(1), geometry, lanes, length) {}

  bool run() {
    std::vector<Step> steps;
    for (int lane = 0; lane < lanes_; ++lane) {
      const int left = length_ - tested_.position(lane) - 16;
      if (left <= 0 || draw(4) == 0) continue;
      if (draw(5) == 0) settle(lane);
      const int kind = draw(5);
      if (kind == 0) {
        steps.push_back({lane, 1 + draw(std::min(left, 40))});
      } else if (kind == 1) {
        const int garbage = draw(5);
        steps.push_back({lane, 1 + draw(10) + garbage, false, garbage});
      } else {
        const auto rows = static_cast<std::int32_t>(1 + draw(16));
        steps.push_back({lane, rows, false, 0, random_tree(random_, rows), ++seed_});
      }
    }
    std::shuffle(steps.begin(), steps.end(), random_);
    if (!steps.empty()) tested_.pass(steps);
    for (const Step& step : steps) step.parents.empty() ? check_chain(step) : check_tree(step);
    bool more = false;
    for (int lane = 0; lane < lanes_; ++lane) more = more || tested_.position(lane) + 16 < length_;
    for (int lane = 0; !more && lane < lanes_; ++lane) settle(lane);
    return more;
  }

 private:
  int draw(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  void settle(int lane) {
    tested_.settle(lane);
    EXPECT_TRUE(same_bits(tested_.canonical_state(lane), plain_.canonical_state(lane))) << name_;
  }

  void check_chain(const Step& step) {
    for (int row = 0; row < step.count - step.garbage; ++row) {
      const int position = plain_.position(step.lane);
      plain_.pass({{step.lane, 1}});
      ASSERT_TRUE(same_bits(tested_.row(step.lane, position), plain_.row(step.lane, position))) << name_;
    }
  }

  void run_path(const Step& step, const std::vector<std::int32_t>& path) {
    for (const std::int32_t row : path) {
      const int position = plain_.position(step.lane);
      plain_.set_row(step.lane, position, plain_.tree_input(step.seed, row));
      plain_.pass({{step.lane, 1}});
      ASSERT_TRUE(same_bits(tested_.tree_row(step.lane, row), plain_.row(step.lane, position)))
          << name_ << ", row " << row << " of " << step.count;
    }
  }

  void check_tree(const Step& step) {
    const int position = plain_.position(step.lane);
    const auto saved = plain_.save(step.lane);
    const auto inputs = plain_.inputs(step.lane);
    for (std::int32_t leaf = 0; leaf < step.count; ++leaf) {
      if (!is_leaf(step.parents, leaf)) continue;
      plain_.restore(step.lane, position, saved);
      run_path(step, path_to(step.parents, leaf));
    }
    const auto path = path_to(step.parents, draw(step.count));
    plain_.restore(step.lane, position, saved);
    plain_.inputs(step.lane) = inputs;
    run_path(step, path);
    tested_.accept(step.lane, step.seed, path);
  }

  std::string name_;
  int lanes_, length_;
  std::mt19937 random_;
  unsigned seed_;
  Harness tested_, plain_;
};

TEST_F(TreeGatedDelta, EveryRowIsItsPathAndReplayIsAPlainRun) {
  for (const NamedBackend& backend : backends()) {
    for (const GatedDeltaGeometry& geometry : kGeometries) {
      for (unsigned seed = 1; seed <= 3; ++seed) {
        Rounds rounds(backend, geometry, 1 + static_cast<int>(seed), 3, 90, seed);
        while (rounds.run()) {
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(TreeGatedDelta, ARejectedTreeLeavesTheStateUntouched) {
  for (const NamedBackend& backend : backends()) {
    Harness harness(backend.make(2), kGeometries[0], 1, 60);
    harness.pass({{0, 20}});
    const auto before = harness.canonical_state(0);
    harness.pass({{0, 7, false, 0, {-1, 0, 0, 1, 1, 2, 5}, 9}});
    EXPECT_TRUE(same_bits(harness.canonical_state(0), before)) << backend.name;
    harness.settle(0);
    EXPECT_TRUE(same_bits(harness.canonical_state(0), before)) << backend.name;
  }
}

TEST_F(TreeGatedDelta, WideWindowsAreSinglesAndReplay) {
  for (const NamedBackend& backend : backends()) {
    for (const int accepted : {17, 40, 64, 100, 120}) {
      Harness wide(backend.make(2), kGeometries[0], 1, 160);
      Harness single(backend.make(1), kGeometries[0], 1, 160);
      wide.pass({{0, 10}});
      wide.pass({{0, accepted + 8, false, 8}});
      wide.pass({{0, 20, false, 3}});
      for (int row = 0; row < 10 + accepted + 17; ++row) single.pass({{0, 1}});
      wide.settle(0);
      EXPECT_TRUE(same_bits(wide.all(), single.all())) << backend.name << ", " << accepted;
      EXPECT_TRUE(same_bits(wide.canonical_state(0), single.canonical_state(0))) << backend.name << ", " << accepted;
    }
  }
}

}  // namespace
}  // namespace tensorfold::ops
