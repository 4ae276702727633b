// Lanes with fixed random projections that run through attention in any schedule, trees and replays included. Shared by
// the tests of chains (cpu_attention_test) and of trees (tree_attention_test).
#pragma once

#include <algorithm>
#include <map>
#include <numeric>

#include "operation_test.h"
#include "ops/row_tree.h"

namespace tensorfold::ops {

struct AttentionShape {
  std::int32_t heads = 4, kv_heads = 2, head_dim = 64;
  std::int32_t window = 0;
  std::int32_t rotary_dims = 0;
  bool norms = false;
  bool gated = false;
  std::int64_t q_head_stride() const { return gated ? 2 * head_dim : head_dim; }
  std::int64_t k_offset() const { return heads * q_head_stride(); }
  std::int64_t v_offset() const { return k_offset() + kv_heads * head_dim; }
  std::int64_t stride() const { return v_offset() + kv_heads * head_dim + 5; }
};

/// `count` rows of one lane, from the lane's next position; with parents a tree of that many rows, which leaves the
/// lane's position where it was, until accept().
struct AttentionStep {
  int lane;
  int count;
  std::vector<std::int32_t> parents = {};
  unsigned seed = 0;  // of the tree's inputs
};

/// Pages and slots start as NaN throughout.
class AttentionHarness {
 public:
  AttentionHarness(std::unique_ptr<Backend> backend, const AttentionShape& shape, int lanes, int length)
      : backend_(std::move(backend)), shape_(shape), length_(length), positions_(static_cast<std::size_t>(lanes), 0) {
    const int pages_per_lane = length / 64 + 1;
    page_bytes_ = backend_->kv_page_bytes({shape.kv_heads, shape.head_dim});
    tree_bytes_ = backend_->kv_tree_bytes({shape.kv_heads, shape.head_dim}) + 64;
    trees_ = backend_->allocate(tree_bytes_ * static_cast<std::size_t>(lanes + 1), "trees");
    std::memset(trees_->data(), 0xff, trees_->bytes());
    pending_.resize(static_cast<std::size_t>(lanes));
    const std::size_t pages = static_cast<std::size_t>(lanes * pages_per_lane) + 1;
    memory_ = backend_->allocate(page_bytes_ * pages, "pages");
    std::memset(memory_->data(), 0xff, page_bytes_ * pages);
    std::vector<std::int32_t> order(pages - 1);
    std::iota(order.begin(), order.end(), 1);
    std::shuffle(order.begin(), order.end(), std::mt19937(11));
    for (int lane = 0; lane < lanes; ++lane) {
      pages_.emplace_back(order.begin() + lane * pages_per_lane, order.begin() + (lane + 1) * pages_per_lane);
      qkv_.push_back(
          random_floats(static_cast<std::size_t>(length * shape.stride()), 100 + static_cast<unsigned>(lane)));
    }
    q_norm_ = random_floats(static_cast<std::size_t>(shape.head_dim), 1);
    k_norm_ = random_floats(static_cast<std::size_t>(shape.head_dim), 2);
    const std::int32_t half = shape.rotary_dims / 2;
    for (int position = 0; position < length; ++position) {
      for (int i = 0; i < half; ++i) {
        const double angle = position * std::pow(10000.0, -2.0 * i / shape.rotary_dims);
        cos_sin_.push_back(static_cast<float>(std::cos(angle)));
        cos_sin_.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }

  void release_page(int lane, int index) {
    pages_[static_cast<std::size_t>(lane)][static_cast<std::size_t>(index)] = -1;
  }
  void rewind(int lane, int position) { positions_[static_cast<std::size_t>(lane)] = position; }
  int position(int lane) const { return positions_[static_cast<std::size_t>(lane)]; }
  void poison_row(int lane, int row) {
    std::fill_n(qkv_[static_cast<std::size_t>(lane)].begin() + row * shape_.stride(), shape_.stride(), NAN);
  }

  /// Inputs of row `row` of the tree with this seed; a poisoned one is all NaN.
  std::vector<float> tree_input(unsigned seed, std::int32_t row) const {
    const auto width = static_cast<std::size_t>(shape_.stride());
    if (poisoned_.contains({seed, row})) return std::vector<float>(width, NAN);
    return random_floats(width, 5000 + seed * 100 + static_cast<unsigned>(row));
  }
  void poison_tree_row(unsigned seed, std::int32_t row) { poisoned_[{seed, row}] = true; }
  std::vector<float>& inputs(int lane) { return qkv_[static_cast<std::size_t>(lane)]; }
  void set_row(int lane, int position, const std::vector<float>& input) {
    std::copy(input.begin(), input.end(), qkv_[static_cast<std::size_t>(lane)].begin() + position * shape_.stride());
  }
  /// The path (rows of the lane's last tree, row 0 first) becomes the lane's next rows; its keys are replayed by the
  /// lane's next pass.
  void accept(int lane, unsigned seed, const std::vector<std::int32_t>& path) {
    for (const std::int32_t row : path) {
      set_row(lane, positions_[static_cast<std::size_t>(lane)]++, tree_input(seed, row));
    }
    pending_[static_cast<std::size_t>(lane)] = path;
  }
  const std::vector<float>& tree_row(int lane, std::int32_t row) const { return tree_outputs_.at({lane, row}); }

  /// Writes keys and values only.
  void fill(int lane, int count) { pass({{lane, count}}, false); }

  /// One pass over the steps; the output of every (lane, position) is kept, replacing an earlier one.
  void pass(const std::vector<AttentionStep>& steps, bool attend = true) {
    std::vector<LaneSpan> spans;
    std::vector<float> qkv;
    std::vector<std::int32_t> rope_positions;
    std::int32_t rows = 0;
    for (const AttentionStep& step : steps) {
      const auto lane = static_cast<std::size_t>(step.lane);
      const int position = positions_[lane];
      ASSERT_LE(position + step.count, length_);
      LaneSpan span;
      span.slot = step.lane + 1;
      span.first_row = rows;
      span.row_count = step.count;
      span.position = position;
      span.pages = pages_[lane].data();
      span.replay_rows = pending_[lane].data();
      span.replay_count = static_cast<std::int32_t>(pending_[lane].size());
      span.replay_tree = span.replay_count > 0;
      rows += step.count;
      if (step.parents.empty()) {
        const auto begin = qkv_[lane].begin() + position * shape_.stride();
        qkv.insert(qkv.end(), begin, begin + step.count * shape_.stride());
        for (int r = 0; r < step.count; ++r) rope_positions.push_back(position + r);
        positions_[lane] += step.count;
      } else {
        span.parents = step.parents.data();
        span.commits = false;
        const RowTree tree = row_tree(span);
        for (std::int32_t r = 0; r < step.count; ++r) {
          const auto input = tree_input(step.seed, r);
          qkv.insert(qkv.end(), input.begin(), input.end());
          rope_positions.push_back(position + tree.depth[static_cast<std::size_t>(r)]);
        }
      }
      spans.push_back(span);
    }
    replay(spans);
    std::vector<std::byte> q(
        static_cast<std::size_t>(rows * shape_.heads * shape_.head_dim * backend_->info().activation_bytes));
    prepare(spans, qkv, rope_positions, q);
    if (attend) keep(steps, spans, attention(spans, qkv, q));
  }

  const std::vector<float>& row(int lane, int position) const { return outputs_.at({lane, position}); }

  /// All kept outputs, in order.
  std::vector<float> all() const {
    std::vector<float> result;
    for (const auto& [key, values] : outputs_) result.insert(result.end(), values.begin(), values.end());
    return result;
  }

 private:
  KvPool pool() const { return {memory_->data(), page_bytes_, trees_->data(), tree_bytes_}; }

  void replay(const std::vector<LaneSpan>& spans) {
    AttentionReplayParams p;
    p.geometry = {shape_.kv_heads, shape_.head_dim};
    p.pool = pool();
    p.lanes = spans.data();
    p.lane_count = static_cast<std::int32_t>(spans.size());
    backend_->attention_replay(p);
    for (const LaneSpan& span : spans) pending_[static_cast<std::size_t>(span.slot - 1)].clear();
  }

  void prepare(const std::vector<LaneSpan>& spans, const std::vector<float>& qkv,
               const std::vector<std::int32_t>& rope_positions, std::vector<std::byte>& q) {
    AttentionPrepareParams p;
    p.geometry = {shape_.kv_heads, shape_.head_dim};
    p.heads = shape_.heads;
    p.qkv = qkv.data();
    p.stride = shape_.stride();
    p.q_head_stride = shape_.q_head_stride();
    p.k_offset = shape_.k_offset();
    p.v_offset = shape_.v_offset();
    p.q_norm = shape_.norms ? q_norm_.data() : nullptr;
    p.k_norm = shape_.norms ? k_norm_.data() : nullptr;
    p.epsilon = 1e-6f;
    p.rope = {cos_sin_.data(), shape_.rotary_dims, length_};
    p.rope_positions = rope_positions.data();
    p.lanes = spans.data();
    p.lane_count = static_cast<std::int32_t>(spans.size());
    p.pool = pool();
    p.q_out = activations(q);
    backend_->attention_prepare(p);
  }

  std::vector<float> attention(const std::vector<LaneSpan>& spans, const std::vector<float>& qkv,
                               std::vector<std::byte>& q) {
    std::vector<std::byte> out(q.size());
    AttentionParams p;
    p.geometry = {shape_.kv_heads, shape_.head_dim};
    p.heads = shape_.heads;
    p.q = activations(q);
    p.pool = pool();
    p.lanes = spans.data();
    p.lane_count = static_cast<std::int32_t>(spans.size());
    p.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    p.window = shape_.window;
    if (shape_.gated) {
      p.gate = qkv.data();
      p.gate_stride = shape_.stride();
      p.gate_offset = shape_.head_dim;
      p.gate_head_stride = shape_.q_head_stride();
    }
    p.out = activations(out);
    backend_->attention(p);
    return activations_of(backend_->info(), out);
  }

  void keep(const std::vector<AttentionStep>& steps, const std::vector<LaneSpan>& spans,
            const std::vector<float>& out) {
    const std::int64_t width = shape_.heads * shape_.head_dim;
    for (std::size_t s = 0; s < steps.size(); ++s) {
      for (std::int32_t r = 0; r < spans[s].row_count; ++r) {
        const auto begin = out.begin() + (spans[s].first_row + r) * width;
        if (spans[s].parents != nullptr) {
          tree_outputs_[{steps[s].lane, r}] = {begin, begin + width};
          continue;
        }
        outputs_[{steps[s].lane, spans[s].position + r}] = {begin, begin + width};
      }
    }
  }

  std::unique_ptr<Backend> backend_;
  AttentionShape shape_;
  int length_;
  std::vector<int> positions_;
  std::size_t page_bytes_ = 0;
  std::unique_ptr<Buffer> memory_;
  std::size_t tree_bytes_ = 0;
  std::unique_ptr<Buffer> trees_;
  std::vector<std::vector<std::int32_t>> pending_;
  std::map<std::pair<unsigned, std::int32_t>, bool> poisoned_;
  std::map<std::pair<int, std::int32_t>, std::vector<float>> tree_outputs_;  // (lane, row of its last tree)
  std::vector<std::vector<std::int32_t>> pages_;
  std::vector<std::vector<float>> qkv_;
  std::vector<float> q_norm_, k_norm_, cos_sin_;
  std::map<std::pair<int, int>, std::vector<float>> outputs_;
};

}  // namespace tensorfold::ops
