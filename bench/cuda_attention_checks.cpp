// The bits of attention on CUDA: a row alone is that row in every window, prompt, mix of lanes and kernel; a tree's row is its
// path as a chain; nothing stale, masked or of a neighbour reaches a row. And the numbers, against float64.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "cuda_attention_world.h"
#include "ops/random_trees.h"

namespace tensorfold::ops::cuda::bench {
namespace {

class Report {
 public:
  explicit Report(std::string name) : name_(std::move(name)) {}
  /// Compares bits; says where the first difference is.
  void same(const std::vector<std::uint16_t>& actual, const std::vector<std::uint16_t>& expected, const std::string& what,
            int head_dim) {
    ++rows_;
    if (actual == expected) return;
    if (++wrong_ > 3) return;
    std::size_t count = 0, first = actual.size();
    for (std::size_t i = 0; i < actual.size(); ++i) {
      if (actual[i] == expected[i]) continue;
      ++count;
      first = std::min(first, i);
    }
    std::printf("  %s: %s: %zu of %zu differ, first at head %zu dim %zu: %04x (%g) instead of %04x (%g)\n", name_.c_str(),
                what.c_str(), count, actual.size(), first / static_cast<std::size_t>(head_dim),
                first % static_cast<std::size_t>(head_dim), actual[first], static_cast<double>(float_of(actual[first])),
                expected[first], static_cast<double>(float_of(expected[first])));
  }
  void close(const std::vector<std::uint16_t>& actual, const std::vector<double>& expected, const std::string& what) {
    double error = 0.0, norm = 0.0;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const double difference = static_cast<double>(float_of(actual[i])) - expected[i];
      error += difference * difference;
      norm += expected[i] * expected[i];
    }
    const double relative = std::sqrt(error / norm);
    ++rows_;
    worst_ = std::max(worst_, std::isnan(relative) ? 1e9 : relative);
    if (relative <= 4e-3) return;
    ++wrong_;
    std::printf("  %s: %s: relative error %.2e\n", name_.c_str(), what.c_str(), relative);
  }
  void require(bool condition, const std::string& what) {
    ++rows_;
    if (condition) return;
    if (++wrong_ <= 3) std::printf("  %s: %s\n", name_.c_str(), what.c_str());
  }
  long finish() const {
    std::printf("%s: %ld rows, %ld wrong", name_.c_str(), rows_, wrong_);
    if (worst_ > 0.0) std::printf(", worst against float64 %.1e", worst_);
    std::printf("\n");
    std::fflush(stdout);
    return wrong_;
  }

 private:
  std::string name_;
  long rows_ = 0, wrong_ = 0;
  double worst_ = 0.0;
};

std::string name_of(const AttentionShape& s) {
  return std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + "/" + std::to_string(s.head_dim) +
         (s.window > 0 ? " window " + std::to_string(s.window) : "") + (s.gated ? " gated" : "") + (s.norms ? " normed" : "");
}

/// Chains: `contexts` are the lanes' committed rows; rows of the lanes run in many ways and must keep their bits.
class ChainCheck {
 public:
  static constexpr int kRows = 16;
  static constexpr std::int64_t kFewPartialBytes = 1 << 18;

  ChainCheck(BenchContext& context, const AttentionShape& shape, std::vector<int> contexts)
      : contexts_(std::move(contexts)),
        world_(context, shape, static_cast<int>(contexts_.size()),
               *std::max_element(contexts_.begin(), contexts_.end()) + 340),
        report_("chains " + name_of(shape)) {
    for (std::size_t lane = 0; lane < contexts_.size(); ++lane) world_.fill(static_cast<int>(lane), 0, contexts_[lane]);
  }

  long run(int prompt_context_max, int float64_context_max) {
    world_.context().use_hopper_paths(false);
    alone_.resize(contexts_.size());
    for (std::size_t lane = 0; lane < contexts_.size(); ++lane) {
      for (int i = 0; i < kRows; ++i) alone_[lane].push_back(world_.run({step(lane, i, 1)})[0]);
      if (contexts_[lane] <= float64_context_max) {
        for (const int i : {0, 15}) {
          report_.close(alone_[lane][static_cast<std::size_t>(i)], world_.expected(static_cast<int>(lane), contexts_[lane] + i), where(lane, i));
        }
      }
    }
    for (const bool hopper : {false, true}) {
      world_.context().use_hopper_paths(hopper);
      const std::string kernel = hopper ? "hopper" : "mma";
      windows(kernel);
      prompts(kernel, prompt_context_max);
      const std::int64_t usual = world_.context().facts().attention_partial_bytes_max;
      world_.context().limit_partials(kFewPartialBytes);
      windows(kernel + ", slices");
      world_.context().limit_partials(usual);
    }
    return report_.finish();
  }

 private:
  Step step(std::size_t lane, int first, int count) const { return {static_cast<int>(lane), contexts_[lane] + first, count}; }
  std::string where(std::size_t lane, int row) const {
    return "context " + std::to_string(contexts_[lane]) + " row " + std::to_string(row);
  }
  void poison() {
    for (std::size_t lane = 0; lane < contexts_.size(); ++lane) world_.poison(static_cast<int>(lane), contexts_[lane]);
  }
  /// Runs the steps and compares every row that is among those that ran alone.
  Rows compare(const std::vector<Step>& steps, const std::string& what) {
    const Rows rows = world_.run(steps);
    std::size_t at = 0;
    for (const Step& each : steps) {
      const auto lane = static_cast<std::size_t>(each.lane);
      for (int i = 0; i < each.count; ++i, ++at) {
        const int row = each.position + i - contexts_[lane];
        if (row < kRows) {
          report_.same(rows[at], alone_[lane][static_cast<std::size_t>(row)], what + ", " + where(lane, row), world_.shape().head_dim);
        }
      }
    }
    return rows;
  }

  void windows(const std::string& kernel) {
    std::mt19937 random(3);
    poison();
    std::vector<Step> all;
    for (std::size_t lane = 0; lane < contexts_.size(); ++lane) all.push_back(step(lane, 0, kRows));
    compare(all, kernel + ": windows of 16");
    for (const int width : {1, 4, 8}) {
      poison();
      for (int first = 0; first < kRows; first += width) {
        std::vector<Step> steps;
        for (std::size_t lane = 0; lane < contexts_.size(); ++lane) steps.push_back(step(lane, first, width));
        std::shuffle(steps.begin(), steps.end(), random);
        compare(steps, kernel + ": windows of " + std::to_string(width));
      }
    }
    poison();
    world_.context().set_padding_rows(5);
    for (std::size_t lane = 0; lane < contexts_.size(); ++lane) {
      compare({step(lane, 0, 1)}, kernel + ": one row and padding");
      compare({step(lane, 1, 3)}, kernel + ": window of 3, lane alone");
      compare({step(lane, 4, 12)}, kernel + ": window of 12, lane alone");
    }
    world_.context().set_padding_rows(0);
  }

  void prompts(const std::string& kernel, int context_max) {
    std::vector<Step> mix;
    for (std::size_t lane = 0; lane < contexts_.size(); ++lane) {
      mix.push_back(step(lane, 0, lane % 2 == 0 ? 3 : 16));
      if (contexts_[lane] > context_max) continue;
      poison();
      const Rows prompt = compare({step(lane, 0, 300)}, kernel + ": prompt of 300");
      if (prompt_.size() <= lane) prompt_.resize(lane + 1);
      if (prompt_[lane].empty()) prompt_[lane] = prompt;
      for (std::size_t i = 0; i < prompt.size(); ++i) {
        report_.same(prompt[i], prompt_[lane][i], kernel + ": prompt, " + where(lane, static_cast<int>(i)), world_.shape().head_dim);
      }
      poison();
      compare_prompt({step(lane, 0, 100)}, lane, 0, kernel + ": window of 100");
      compare_prompt({step(lane, 100, 150)}, lane, 100, kernel + ": prompt of 150");
      compare_prompt({step(lane, 250, 1)}, lane, 250, kernel + ": one row after them");
      compare_prompt({step(lane, 251, 17)}, lane, 251, kernel + ": 17 rows after them");
    }
    mix.front().count = 140;  // a prompt among windows
    poison();
    compare(mix, kernel + ": prompt among windows");
  }
  void compare_prompt(const std::vector<Step>& steps, std::size_t lane, int first, const std::string& what) {
    const Rows rows = world_.run(steps);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto row = static_cast<std::size_t>(first) + i;
      report_.same(rows[i], prompt_[lane][row], what + ", " + where(lane, static_cast<int>(row)), world_.shape().head_dim);
    }
  }

  std::vector<int> contexts_;
  World world_;
  Report report_;
  std::vector<Rows> alone_, prompt_;
};

long check_trees(BenchContext& context, const AttentionShape& shape, const std::vector<int>& positions) {
  Report report("trees " + name_of(shape));
  std::mt19937 random(17);
  World world(context, shape, 2, *std::max_element(positions.begin(), positions.end()) + 60);
  world.fill(1, 0, 40);
  unsigned seed = 0;
  for (const int position : positions) {
    world.poison(0, 0);
    world.fill(0, 0, position);
    const auto rows = static_cast<std::int32_t>(position % 3 == 0 ? 16 : 1 + random() % 16);
    Step tree{0, position, rows};
    tree.parents = random_tree(random, rows);
    ++seed;
    for (int row = 0; row < rows; ++row) tree.sources.push_back(world.tree_source(seed, row));
    context.use_hopper_paths(false);
    const Rows together = world.run({{1, 40, 5}, tree});
    const Rows other = world.run({tree});
    context.use_hopper_paths(true);
    const Rows hopper = world.run({tree, {1, 40, 2}});
    std::vector<std::int32_t> accepted;
    Rows after;
    for (std::int32_t leaf = 0; leaf < rows; ++leaf) {
      if (!is_leaf(tree.parents, leaf)) continue;
      const auto path = path_to(tree.parents, leaf);
      Step chain{0, position, static_cast<int>(path.size())};
      for (const auto row : path) chain.sources.push_back(tree.sources[static_cast<std::size_t>(row)]);
      const Rows expected = world.run({chain});
      for (std::size_t i = 0; i < path.size(); ++i) {
        const auto row = static_cast<std::size_t>(path[i]);
        const std::string what = "position " + std::to_string(position) + " row " + std::to_string(row) + " of " + std::to_string(rows);
        report.same(together[5 + row], expected[i], what + " beside a chain", shape.head_dim);
        report.same(other[row], expected[i], what, shape.head_dim);
        report.same(hopper[row], expected[i], what + " hopper", shape.head_dim);
      }
      accepted = path;
      after = world.run({{0, position + static_cast<int>(path.size()), 3}});
    }
    // The last path is accepted: what follows must be what followed the chain.
    world.poison(0, position);
    world.run({tree});
    Step next{0, position + static_cast<int>(accepted.size()), 3};
    next.replay_rows = accepted;
    const Rows replayed = world.run({{1, 45, 2}, next});
    for (std::size_t i = 0; i < 3; ++i) {
      report.same(replayed[2 + i], after[i], "after replay at " + std::to_string(position), shape.head_dim);
    }
  }
  return report.finish();
}

long check_mutual(BenchContext& context, const AttentionShape& shape) {
  Report report("mutual blocks " + name_of(shape));
  const std::vector<int> contexts = {12, 60, 0, 130, 63, 250};
  for (const bool hopper : {false, true}) {
    context.use_hopper_paths(hopper);
    for (const int rows : {2, 7, 16}) {
      World world(context, shape, static_cast<int>(contexts.size()), 300);
      std::vector<Step> steps;
      for (std::size_t lane = 0; lane < contexts.size(); ++lane) {
        world.fill(static_cast<int>(lane), 0, contexts[lane]);
        steps.push_back({static_cast<int>(lane), contexts[lane], rows});
        steps.back().mutual = true;
      }
      const Rows together = world.run(steps);
      // The last row of a block is the last row of a chain; the others see keys that a chain would hide.
      for (std::size_t lane = 0; lane < contexts.size(); ++lane) {
        const Rows chain = world.run({{static_cast<int>(lane), contexts[lane], rows}});
        const auto first = lane * static_cast<std::size_t>(rows);
        report.same(together[first + static_cast<std::size_t>(rows) - 1], chain.back(), "last row of " + std::to_string(contexts[lane]), shape.head_dim);
        report.require(together[first] != chain[0], "the first row doesn't see the block");
      }
    }
  }
  return report.finish();
}

/// A row that isn't finite reaches itself and later rows only.
long check_isolation(BenchContext& context, const AttentionShape& shape) {
  Report report("NaN rows " + name_of(shape));
  for (const bool hopper : {false, true}) {
    context.use_hopper_paths(hopper);
    World world(context, shape, 1, 200);
    world.fill(0, 0, 90);
    const Rows clean = world.run({{0, 90, 8}});
    for (int bad = 1; bad < 8; ++bad) {
      Step step{0, 90, 8};
      for (int i = 0; i < 8; ++i) step.sources.push_back(i == bad ? world.nan_source() : world.source(0, 90 + i));
      const Rows dirty = world.run({step});
      for (std::size_t i = 0; i < 8; ++i) {
        if (static_cast<int>(i) < bad) {
          report.same(dirty[i], clean[i], "before a NaN row", shape.head_dim);
        } else {
          report.require(std::all_of(dirty[i].begin(), dirty[i].end(), [](std::uint16_t x) { return std::isnan(float_of(x)); }),
                         "a row that sees a NaN isn't NaN");
        }
      }
    }
  }
  return report.finish();
}

}  // namespace

long check_attention_trees(BenchContext& context) {
  return check_trees(context, {6, 1, 256, 0, 64, true, true}, {0, 61, 120});
}

long check_attention(BenchContext& context, bool quick) {
  const std::vector<int> edges = {0, 1, 63, 127, 255, 511, 700, 2040, 2047};
  const std::vector<int> longer = {1, 64, 128 - 8, 2048, 5000, 8190, 30011};
  long wrong = 0;
  if (quick) {  // for the sanitizer
    wrong += ChainCheck(context, {2, 1, 64, 0, 64}, {70}).run(100, 0);
    wrong += ChainCheck(context, {4, 2, 128, 100}, {130}).run(0, 0);
    wrong += ChainCheck(context, {6, 1, 256, 0, 64, true, true}, {0}).run(100, 0);
    return wrong + check_trees(context, {6, 2, 256}, {61});
  }
  wrong += ChainCheck(context, {6, 1, 256, 0, 64, true, true}, edges).run(511, 2047);
  wrong += ChainCheck(context, {9, 3, 64, 0, 64}, edges).run(511, 700);
  wrong += ChainCheck(context, {8, 2, 128, 0, 128}, edges).run(511, 700);
  wrong += ChainCheck(context, {6, 1, 256}, longer).run(5000, 0);
  wrong += ChainCheck(context, {3, 1, 64}, longer).run(5000, 0);
  wrong += ChainCheck(context, {4, 1, 128}, longer).run(5000, 0);
  wrong += ChainCheck(context, {4, 1, 256, 512, 256, true}, edges).run(2047, 700);
  wrong += ChainCheck(context, {4, 2, 80, 100, 80}, edges).run(511, 511);
  wrong += ChainCheck(context, {3, 1, 16, 0, 4}, edges).run(127, 511);
  wrong += ChainCheck(context, {5, 1, 192}, edges).run(127, 511);
  const std::vector<int> places = {0, 1, 9, 36, 48, 50, 57, 63, 64, 65, 120, 127, 128, 500, 2040, 2047, 2048};
  wrong += check_trees(context, {6, 1, 256, 0, 64, true, true}, places);
  wrong += check_trees(context, {9, 3, 64, 0, 64}, places);
  wrong += check_trees(context, {16, 1, 128, 0, 64, true, true}, places);
  wrong += check_trees(context, {3, 3, 24, 10}, places);
  wrong += check_trees(context, {4, 1, 192, 50}, places);
  wrong += check_mutual(context, {4, 2, 64});
  wrong += check_mutual(context, {4, 1, 256, 40});
  wrong += check_isolation(context, {4, 2, 64, 0, 64});
  wrong += check_isolation(context, {6, 1, 256, 0, 0, true});
  return wrong;
}

}  // namespace tensorfold::ops::cuda::bench
