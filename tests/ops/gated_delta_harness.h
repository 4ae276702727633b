// Lanes with fixed random projections that run through the Gated DeltaNet mixer in any schedule: committing chunks,
// windows that are cut short, trees, late replays. Shared by the tests of chains and of trees.
#pragma once

#include <algorithm>
#include <map>
#include <numeric>

#include "operation_test.h"

namespace tensorfold::ops {

inline constexpr int kWindowRows = 128;  // rows of a slot's window

/// Rows of one lane in a pass. `garbage` rows at the end of a window get inputs that must leave no trace.
struct GatedDeltaStep {
  int lane;
  int count;
  bool commits = true;
  int garbage = 0;
  /// A tree of `count` rows with inputs of their own (tree_input); the lane's position stays until accept().
  std::vector<std::int32_t> parents = {};
  unsigned seed = 0;
};

class GatedDeltaHarness {
 public:
  GatedDeltaHarness(std::unique_ptr<Backend> backend, const GatedDeltaGeometry& geometry, int lanes, int length,
                    bool sigmoid_gate = false)
      : backend_(std::move(backend)), geometry_(geometry), sigmoid_gate_(sigmoid_gate) {
    values_ = static_cast<std::int64_t>(geometry.v_heads) * geometry.v_dim;
    stride_ = geometry.conv_channels() + values_ + 2 * geometry.v_heads + 3;
    for (int lane = 0; lane < lanes; ++lane) {
      inputs_.push_back(random_floats(static_cast<std::size_t>(length * stride_), 40 + static_cast<unsigned>(lane)));
    }
    conv_weight_ = random_floats(static_cast<std::size_t>(geometry.conv_channels() * geometry.conv_kernel), 1, 0.5f);
    decay_ = random_floats(static_cast<std::size_t>(geometry.v_heads), 2, 0.3f);
    for (float& value : decay_) value = -std::abs(value);
    dt_bias_ = random_floats(static_cast<std::size_t>(geometry.v_heads), 3);
    norm_weight_ = random_floats(static_cast<std::size_t>(geometry.v_dim), 4);
    slot_bytes_ = backend_->gated_delta_state_bytes(geometry) +
                  kWindowRows * backend_->gated_delta_window_row_bytes(geometry) + 64;
    slots_ = backend_->allocate(slot_bytes_ * static_cast<std::size_t>(lanes + 1), "slots");
    const std::size_t state_bytes = backend_->gated_delta_state_bytes(geometry);
    for (int lane = 0; lane < lanes; ++lane) {  // stale windows
      std::memset(slot(lane) + state_bytes, 0xff, slot_bytes_ - state_bytes);
    }
    positions_.assign(static_cast<std::size_t>(lanes), 0);
    pending_.resize(static_cast<std::size_t>(lanes));
  }

  void pass(const std::vector<GatedDeltaStep>& steps) {
    std::vector<LaneSpan> spans;
    std::vector<float> projected;
    std::int32_t rows = 0;
    for (const GatedDeltaStep& step : steps) {
      const auto lane = static_cast<std::size_t>(step.lane);
      LaneSpan span;
      span.slot = step.lane + 1;
      span.first_row = rows;
      span.row_count = step.count;
      span.position = positions_[lane];
      span.commits = step.commits;
      span.replay_rows = pending_[lane].data();
      span.replay_count = static_cast<std::int32_t>(pending_[lane].size());
      if (!step.parents.empty()) {
        span.commits = false;
        span.parents = step.parents.data();
        for (std::int32_t row = 0; row < step.count; ++row) {
          const auto input = tree_input(step.seed, row);
          projected.insert(projected.end(), input.begin(), input.end());
        }
        rows += step.count;
        spans.push_back(span);
        continue;
      }
      spans.push_back(span);
      const auto begin = inputs_[lane].begin() + positions_[lane] * stride_;
      projected.insert(projected.end(), begin, begin + (step.count - step.garbage) * stride_);
      for (int row = 0; row < step.garbage; ++row) {
        const auto garbage = random_floats(static_cast<std::size_t>(stride_), 900 + static_cast<unsigned>(row));
        projected.insert(projected.end(), garbage.begin(), garbage.end());
        if (row % 2 == 1) std::fill(projected.end() - stride_, projected.end(), NAN);
      }
      rows += step.count;
    }
    std::vector<std::byte> out(static_cast<std::size_t>(rows * values_ * backend_->info().activation_bytes));
    run(spans, projected, out);
    const auto values = activations_of(backend_->info(), out);
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const auto lane = static_cast<std::size_t>(steps[s].lane);
      if (!steps[s].parents.empty()) {
        for (std::int32_t r = 0; r < steps[s].count; ++r) {
          const auto begin = values.begin() + (spans[s].first_row + r) * values_;
          tree_outputs_[{steps[s].lane, r}] = {begin, begin + values_};
        }
        pending_[lane].clear();
        continue;
      }
      const int accepted = steps[s].count - steps[s].garbage;
      for (int r = 0; r < accepted; ++r) {
        const auto begin = values.begin() + (spans[s].first_row + r) * values_;
        outputs_[{steps[s].lane, positions_[lane] + r}] = {begin, begin + values_};
      }
      positions_[lane] += accepted;
      pending_[lane].resize(steps[s].commits ? 0 : static_cast<std::size_t>(accepted));
      std::iota(pending_[lane].begin(), pending_[lane].end(), 0);
    }
  }

  std::vector<float> tree_input(unsigned seed, std::int32_t row) const {
    return random_floats(static_cast<std::size_t>(stride_), 7000 + seed * 100 + static_cast<unsigned>(row));
  }
  const std::vector<float>& tree_row(int lane, std::int32_t row) const { return tree_outputs_.at({lane, row}); }
  std::vector<float>& inputs(int lane) { return inputs_[static_cast<std::size_t>(lane)]; }
  void set_row(int lane, int position, const std::vector<float>& input) {
    std::copy(input.begin(), input.end(), inputs_[static_cast<std::size_t>(lane)].begin() + position * stride_);
  }
  /// The path (rows of the lane's last tree, row 0 first) becomes the lane's next rows, to be replayed.
  void accept(int lane, unsigned seed, const std::vector<std::int32_t>& path) {
    for (const std::int32_t row : path) {
      set_row(lane, positions_[static_cast<std::size_t>(lane)]++, tree_input(seed, row));
    }
    pending_[static_cast<std::size_t>(lane)] = path;
  }
  const std::vector<float>& row(int lane, int position) const { return outputs_.at({lane, position}); }

  /// A settled lane's slot, and the lane back at that point.
  std::vector<std::byte> save(int lane) { return {slot(lane), slot(lane) + slot_bytes_}; }
  void restore(int lane, int position, const std::vector<std::byte>& saved) {
    std::copy(saved.begin(), saved.end(), slot(lane));
    positions_[static_cast<std::size_t>(lane)] = position;
    pending_[static_cast<std::size_t>(lane)].clear();
  }

  void settle(int lane) {
    auto& pending = pending_[static_cast<std::size_t>(lane)];
    LaneSpan span;
    span.slot = lane + 1;
    span.replay_rows = pending.data();
    span.replay_count = static_cast<std::int32_t>(pending.size());
    GatedDeltaParams params;
    params.geometry = geometry_;
    params.conv_weight = conv_weight_.data();
    params.decay = decay_.data();
    params.dt_bias = dt_bias_.data();
    params.slots = slots_->data();
    params.slot_bytes = slot_bytes_;
    params.lanes = &span;
    params.lane_count = 1;
    backend_->gated_delta(params);
    pending.clear();
  }

  int position(int lane) const { return positions_[static_cast<std::size_t>(lane)]; }

  /// State and tail, without the window, whose content means nothing once settled.
  std::vector<float> canonical_state(int lane) {
    const auto* floats = reinterpret_cast<const float*>(slot(lane));
    return {floats, floats + backend_->gated_delta_state_bytes(geometry_) / sizeof(float)};
  }

  std::vector<float> all() const {
    std::vector<float> result;
    for (const auto& [key, values] : outputs_) result.insert(result.end(), values.begin(), values.end());
    return result;
  }

 private:
  std::byte* slot(int lane) {
    return static_cast<std::byte*>(slots_->data()) + static_cast<std::size_t>(lane + 1) * slot_bytes_;
  }
  void run(const std::vector<LaneSpan>& spans, const std::vector<float>& projected, std::vector<std::byte>& out) {
    GatedDeltaParams params;
    params.geometry = geometry_;
    params.projected = projected.data();
    params.stride = stride_;
    params.z_offset = geometry_.conv_channels();
    params.b_offset = params.z_offset + values_;
    params.a_offset = params.b_offset + geometry_.v_heads;
    params.conv_weight = conv_weight_.data();
    params.decay = decay_.data();
    params.dt_bias = dt_bias_.data();
    params.norm_weight = norm_weight_.data();
    params.epsilon = 1e-6f;
    params.sigmoid_gate = sigmoid_gate_;
    params.slots = slots_->data();
    params.slot_bytes = slot_bytes_;
    params.lanes = spans.data();
    params.lane_count = static_cast<std::int32_t>(spans.size());
    params.out = activations(out);
    backend_->gated_delta(params);
  }

  std::unique_ptr<Backend> backend_;
  GatedDeltaGeometry geometry_;
  bool sigmoid_gate_;
  std::int64_t values_ = 0, stride_ = 0;
  std::vector<std::vector<float>> inputs_;
  std::vector<float> conv_weight_, decay_, dt_bias_, norm_weight_;
  std::size_t slot_bytes_ = 0;
  std::unique_ptr<Buffer> slots_;
  std::vector<int> positions_;
  std::vector<std::vector<std::int32_t>> pending_;
  std::map<std::pair<int, int>, std::vector<float>> outputs_;
  std::map<std::pair<int, std::int32_t>, std::vector<float>> tree_outputs_;  // (lane, row of its last tree)
};

}  // namespace tensorfold::ops
