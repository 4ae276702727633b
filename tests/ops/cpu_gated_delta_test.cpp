// The Gated DeltaNet mixer of the CPU backend: close to the reference; the same bits for any batch, cut, thread count
// and path; and windows that were cut short, replayed late or settled leave the state of a plain run.
#include <algorithm>
#include <map>
#include <numeric>

#include "cpu_test_support.h"

namespace tensorfold::ops {
namespace {

const GatedDeltaGeometry kGeometries[] = {
    {.k_heads = 2, .v_heads = 6, .k_dim = 16, .v_dim = 24, .conv_kernel = 4},
    {.k_heads = 1, .v_heads = 1, .k_dim = 24, .v_dim = 16, .conv_kernel = 2},
    {.k_heads = 3, .v_heads = 3, .k_dim = 10, .v_dim = 7, .conv_kernel = 8},
    {.k_heads = 2, .v_heads = 4, .k_dim = 128, .v_dim = 128, .conv_kernel = 4},
};

/// Rows of one lane in a pass. `garbage` rows at the end of a window get inputs that must leave no trace.
struct Step {
  int lane;
  int count;
  bool commits = true;
  int garbage = 0;
};

class Harness {
 public:
  Harness(std::unique_ptr<Backend> backend, const GatedDeltaGeometry& geometry, int lanes, int length,
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
    slot_bytes_ = backend_->gated_delta_slot_bytes(geometry) + 64;
    slots_ = backend_->allocate(slot_bytes_ * static_cast<std::size_t>(lanes + 1), "slots");
    positions_.assign(static_cast<std::size_t>(lanes), 0);
    pending_.resize(static_cast<std::size_t>(lanes));
  }

  void pass(const std::vector<Step>& steps) {
    std::vector<LaneSpan> spans;
    std::vector<float> projected;
    std::int32_t rows = 0;
    for (const Step& step : steps) {
      const auto lane = static_cast<std::size_t>(step.lane);
      LaneSpan span;
      span.slot = step.lane + 1;
      span.first_row = rows;
      span.row_count = step.count;
      span.position = positions_[lane];
      span.commits = step.commits;
      span.replay_rows = pending_[lane].data();
      span.replay_count = static_cast<std::int32_t>(pending_[lane].size());
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

  void settle(int lane) {
    auto& pending = pending_[static_cast<std::size_t>(lane)];
    GatedDeltaSettleParams params;
    params.geometry = geometry_;
    params.conv_weight = conv_weight_.data();
    params.decay = decay_.data();
    params.dt_bias = dt_bias_.data();
    params.slots = slots_->data();
    params.slot_bytes = slot_bytes_;
    params.slot = lane + 1;
    params.replay_rows = pending.data();
    params.replay_count = static_cast<std::int32_t>(pending.size());
    backend_->gated_delta_settle(params);
    pending.clear();
  }

  int position(int lane) const { return positions_[static_cast<std::size_t>(lane)]; }

  /// State and tail, without the window, whose content means nothing once settled.
  std::vector<float> canonical_state(int lane) {
    const auto* slot = reinterpret_cast<const float*>(static_cast<const std::byte*>(slots_->data()) +
                                                      static_cast<std::size_t>(lane + 1) * slot_bytes_);
    const std::int64_t floats = geometry_.v_heads * ((geometry_.v_dim + 15) / 16 * 16) * geometry_.k_dim +
                                (geometry_.conv_kernel - 1) * geometry_.conv_channels();
    return {slot, slot + floats};
  }

  std::vector<float> all() const {
    std::vector<float> result;
    for (const auto& [key, values] : outputs_) result.insert(result.end(), values.begin(), values.end());
    return result;
  }

 private:
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
};

TEST(CpuGatedDelta, IsCloseToTheReference) {
  for (const GatedDeltaGeometry& geometry : kGeometries) {
    for (const bool sigmoid_gate : {false, true}) {
      Harness expected(make_reference_backend(Rounding::kBackend, 2), geometry, 1, 70, sigmoid_gate);
      expected.pass({{0, 70}});
      for (const std::string& path : available_paths()) {
        Harness actual(cpu_backend(2, path), geometry, 1, 70, sigmoid_gate);
        actual.pass({{0, 70}});
        EXPECT_TRUE(close_to(actual.all(), expected.all(), 1.0f, 1e-4f)) << geometry.k_dim << " on " << path;
      }
    }
  }
}

struct Outcome {
  std::vector<float> outputs;
  std::vector<std::vector<float>> states;
};

Outcome outcome_of(Harness& harness, int lanes) {
  Outcome outcome;
  outcome.outputs = harness.all();
  for (int lane = 0; lane < lanes; ++lane) {
    harness.settle(lane);
    outcome.states.push_back(harness.canonical_state(lane));
  }
  return outcome;
}

void expect_same(const Outcome& actual, const Outcome& expected, const std::string& what) {
  EXPECT_TRUE(same_bits(actual.outputs, expected.outputs)) << what;
  for (std::size_t lane = 0; lane < expected.states.size(); ++lane) {
    EXPECT_TRUE(same_bits(actual.states[lane], expected.states[lane])) << what << ", state of lane " << lane;
  }
}

/// Random passes: committing chunks, and windows of which a random part is garbage that gets rejected.
Outcome random_schedule(Harness& harness, int lanes, int length, unsigned seed) {
  std::mt19937 random(seed);
  const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (bool done = false; !done;) {
    std::vector<Step> steps;
    done = true;
    for (int lane = 0; lane < lanes; ++lane) {
      const int left = length - harness.position(lane);
      if (left == 0) continue;
      done = false;
      if (draw(4) == 0) continue;
      if (draw(6) == 0) harness.settle(lane);
      if (draw(2) == 0) {
        steps.push_back({lane, 1 + draw(std::min(left, 40))});
      } else {
        const int accepted = std::min(left, draw(9)), garbage = draw(8);
        if (accepted + garbage > 0) steps.push_back({lane, accepted + garbage, false, garbage});
      }
    }
    std::shuffle(steps.begin(), steps.end(), random);
    if (!steps.empty()) harness.pass(steps);
  }
  return outcome_of(harness, lanes);
}

TEST(CpuGatedDelta, AnyScheduleHasTheBitsOfOneRowAtATime) {
  constexpr int kLanes = 3, kLength = 90;
  for (const GatedDeltaGeometry& geometry : kGeometries) {
    Harness plain(cpu_backend(1, available_paths().front()), geometry, kLanes, kLength);
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int row = 0; row < kLength; ++row) plain.pass({{lane, 1}});
    }
    const Outcome expected = outcome_of(plain, kLanes);
    for (const std::string& path : available_paths()) {
      Harness whole(cpu_backend(2, path), geometry, kLanes, kLength);
      whole.pass({{0, kLength}, {1, kLength}, {2, kLength}});
      expect_same(outcome_of(whole, kLanes), expected, "whole on " + path);
      for (const int threads : {1, 2, 5}) {
        for (unsigned seed = 0; seed < 4; ++seed) {
          Harness harness(cpu_backend(threads, path), geometry, kLanes, kLength);
          expect_same(random_schedule(harness, kLanes, kLength, seed), expected,
                      path + ", seed " + std::to_string(seed) + ", threads " + std::to_string(threads));
        }
      }
    }
  }
}

TEST(CpuGatedDelta, ARejectedWindowLeavesTheStateUntouched) {
  const GatedDeltaGeometry& geometry = kGeometries[0];
  Harness harness(cpu_backend(2), geometry, 1, 40);
  harness.pass({{0, 20}});
  const auto before = harness.canonical_state(0);
  harness.pass({{0, 7, false, 7}});
  EXPECT_TRUE(same_bits(harness.canonical_state(0), before));
  harness.settle(0);
  EXPECT_TRUE(same_bits(harness.canonical_state(0), before));
}

TEST(CpuGatedDelta, ANaNLaneDoesNotReachItsNeighbour) {
  const GatedDeltaGeometry& geometry = kGeometries[0];
  Harness alone(cpu_backend(2), geometry, 1, 30);
  alone.pass({{0, 30}});
  Harness beside(cpu_backend(2), geometry, 2, 30);
  beside.pass({{1, 8, false, 8}, {0, 30}});
  EXPECT_TRUE(same_bits(beside.all(), alone.all()));
}

}  // namespace
}  // namespace tensorfold::ops
