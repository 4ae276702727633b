// Traps of the Gated DeltaNet mixer that a plausible but wrong implementation falls into, and late commit.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "ops/reference/reference_backend.h"

namespace tensorfold::ops {
namespace {

/// A mixer of its own with slots, random weights and inputs.
class Mixer {
 public:
  explicit Mixer(GatedDeltaGeometry geometry, int rows, Rounding rounding = Rounding::kNone)
      : backend_(make_reference_backend(rounding, 2)), geometry_(geometry), rows_(rows) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& values, std::int64_t count, float scale) {
      values.resize(static_cast<std::size_t>(count));
      for (float& value : values) value = normal(random) * scale;
    };
    values_ = static_cast<std::int64_t>(geometry.v_heads) * geometry.v_dim;
    stride_ = geometry.conv_channels() + values_ + 2 * geometry.v_heads;
    fill(projected_, rows * stride_, 1.0f);
    fill(conv_weight_, geometry.conv_channels() * geometry.conv_kernel, 0.5f);
    fill(decay_, geometry.v_heads, 0.3f);
    for (float& value : decay_) value = -std::fabs(value);
    fill(dt_bias_, geometry.v_heads, 1.0f);
    fill(norm_weight_, geometry.v_dim, 1.0f);
    slot_bytes_ = backend_->gated_delta_state_bytes(geometry) + 16 * backend_->gated_delta_window_row_bytes(geometry);
    slots_ = backend_->allocate(slot_bytes_ * 4, "slots");
    out_.resize(static_cast<std::size_t>(rows * values_));
  }

  void run(std::vector<LaneSpan> lanes) {
    GatedDeltaParams params;
    params.geometry = geometry_;
    params.projected = projected_.data();
    params.stride = stride_;
    params.z_offset = geometry_.conv_channels();
    params.b_offset = params.z_offset + values_;
    params.a_offset = params.b_offset + geometry_.v_heads;
    params.conv_weight = conv_weight_.data();
    params.decay = decay_.data();
    params.dt_bias = dt_bias_.data();
    params.norm_weight = norm_weight_.data();
    params.epsilon = 1e-6f;
    params.slots = slots_->data();
    params.slot_bytes = slot_bytes_;
    params.lanes = lanes.data();
    params.lane_count = static_cast<std::int32_t>(lanes.size());
    params.out = reinterpret_cast<Activation*>(out_.data());
    backend_->gated_delta(params);
  }

  void settle(std::int32_t slot, const std::vector<std::int32_t>& rows) {
    LaneSpan span;
    span.slot = slot;
    span.replay_rows = rows.data();
    span.replay_count = static_cast<std::int32_t>(rows.size());
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
  }

  /// State and convolution tail of a slot: everything canonical in it.
  std::vector<float> canonical(std::int32_t slot) {
    const auto* begin = reinterpret_cast<const float*>(static_cast<std::byte*>(slots_->data()) +
                                                       static_cast<std::size_t>(slot) * slot_bytes_);
    const std::int64_t count = static_cast<std::int64_t>(geometry_.v_heads) * geometry_.k_dim * geometry_.v_dim +
                               (geometry_.conv_kernel - 1) * geometry_.conv_channels();
    return std::vector<float>(begin, begin + count);
  }

  std::unique_ptr<Backend> backend_;
  GatedDeltaGeometry geometry_;
  int rows_;
  std::int64_t values_ = 0, stride_ = 0;
  std::size_t slot_bytes_ = 0;
  std::vector<float> projected_, conv_weight_, decay_, dt_bias_, norm_weight_, out_;
  std::unique_ptr<Buffer> slots_;
};

LaneSpan span(std::int32_t slot, std::int32_t first, std::int32_t count, bool commits = true) {
  LaneSpan lane;
  lane.slot = slot;
  lane.first_row = first;
  lane.row_count = count;
  lane.position = first;
  lane.commits = commits;
  return lane;
}

TEST(ReferenceGatedDelta, FirstRowReadsTheUpdatedState) {
  // One row from the zero state: S = k δᵀ with δ = β v, so o = (k·q) β v. A read before the update would give zero.
  Mixer mixer({1, 1, 3, 4, 2}, 1);
  const auto silu = [](double x) { return x / (1.0 + std::exp(-x)); };
  std::array<double, 10> c;
  for (std::size_t i = 0; i < 10; ++i) {  // only the last tap meets an input
    c[i] = silu(static_cast<double>(mixer.conv_weight_[i * 2 + 1]) * static_cast<double>(mixer.projected_[i]));
  }
  double qq = 1e-6, kk = 1e-6, qk = 0.0;
  for (std::size_t i = 0; i < 3; ++i) {
    qq += c[i] * c[i];
    kk += c[3 + i] * c[3 + i];
    qk += c[i] * c[3 + i];
  }
  const double attention = qk / std::sqrt(qq * kk) / std::sqrt(3.0);
  const double beta = 1.0 / (1.0 + std::exp(-static_cast<double>(mixer.projected_[14])));
  std::array<double, 4> o;
  double square = 0.0;
  for (std::size_t j = 0; j < 4; ++j) {
    o[j] = attention * beta * c[6 + j];
    square += o[j] * o[j] / 4.0;
  }
  mixer.run({span(1, 0, 1)});
  double largest = 0.0;
  for (std::size_t j = 0; j < 4; ++j) {
    const double expected = o[j] / std::sqrt(square + 1e-6) * static_cast<double>(mixer.norm_weight_[j]) *
                            silu(static_cast<double>(mixer.projected_[10 + j]));
    EXPECT_NEAR(mixer.out_[j], expected, 1e-6) << j;
    largest = std::max(largest, std::fabs(expected));
  }
  EXPECT_GT(largest, 0.01) << "the inputs can't tell a right answer from zero";
}

TEST(ReferenceGatedDelta, ValueHeadsShareKeyHeadsInBlocks) {
  // 2 key heads, 4 value heads: heads 0, 1 read key head 0 (repeat-interleave), heads 2, 3 key head 1. Changing key
  // head 1's channels must leave heads 0 and 1 alone.
  const GatedDeltaGeometry geometry{2, 4, 3, 2, 4};
  Mixer before(geometry, 3);
  Mixer after(geometry, 3);
  for (int row = 0; row < 3; ++row) {
    for (int i = 3; i < 6; ++i) after.projected_[static_cast<std::size_t>(row * after.stride_ + i)] += 1.0f;
  }
  before.run({span(1, 0, 3)});
  after.run({span(1, 0, 3)});
  for (std::size_t i = 0; i < before.out_.size(); ++i) {
    if (i % 8 < 4) {
      EXPECT_EQ(before.out_[i], after.out_[i]) << i;
    } else {
      EXPECT_NE(before.out_[i], after.out_[i]) << i;
    }
  }
}

TEST(ReferenceGatedDelta, AnyCutGivesTheSameBits) {
  const GatedDeltaGeometry geometry{2, 6, 5, 7, 4};
  Mixer whole(geometry, 11);
  whole.run({span(1, 0, 11)});
  Mixer pieces(geometry, 11);
  for (const auto& [first, count] : {std::pair{0, 1}, {1, 2}, {3, 7}, {10, 1}}) pieces.run({span(2, first, count)});
  EXPECT_EQ(whole.out_, pieces.out_);
  EXPECT_EQ(whole.canonical(1), pieces.canonical(2));
}

TEST(ReferenceGatedDelta, LateCommitLeavesNoTraceOfRejectedRows) {
  const GatedDeltaGeometry geometry{1, 2, 4, 3, 4};
  Mixer plain(geometry, 8);
  plain.run({span(1, 0, 8)});

  Mixer late(geometry, 8);
  late.run({span(1, 0, 2)});
  const std::vector<float> committed = late.canonical(1);
  LaneSpan window = span(1, 2, 4, false);  // rows 2..5 as a window, of which 2, 3 and 4 are accepted
  late.run({window});
  EXPECT_EQ(late.canonical(1), committed) << "a window that doesn't commit must leave the state as it was";
  for (std::size_t i = 0; i < 6 * 6; ++i) EXPECT_EQ(late.out_[i], plain.out_[i]) << i;

  const std::vector<std::int32_t> accepted = {0, 1, 2};
  LaneSpan next = span(1, 5, 2, false);
  next.replay_rows = accepted.data();
  next.replay_count = 3;
  late.run({next});
  for (std::size_t i = 5 * 6; i < 7 * 6; ++i) EXPECT_EQ(late.out_[i], plain.out_[i]) << i;

  const std::vector<std::int32_t> both = {0, 1};
  LaneSpan last = span(1, 7, 1, true);
  last.replay_rows = both.data();
  last.replay_count = 2;
  late.run({last});
  EXPECT_EQ(late.out_, plain.out_);
  EXPECT_EQ(late.canonical(1), plain.canonical(1));
}

TEST(ReferenceGatedDelta, ReplayFollowsTheAcceptedPath) {
  // Window rows 0 and 2 accepted, 1 rejected: the state equals that of a chain without row 1.
  const GatedDeltaGeometry geometry{1, 1, 4, 4, 3};
  Mixer late(geometry, 3);
  late.run({span(1, 0, 3, false)});
  late.settle(1, {0, 2});
  Mixer chain(geometry, 3);
  chain.run({span(1, 0, 1)});
  chain.run({span(1, 2, 1)});
  EXPECT_EQ(late.canonical(1), chain.canonical(1));
}

TEST(ReferenceGatedDelta, LanesDontMeet) {
  const GatedDeltaGeometry geometry{1, 2, 4, 3, 4};
  Mixer alone(geometry, 6);
  alone.run({span(1, 2, 4)});
  Mixer beside(geometry, 6);
  for (std::int64_t i = 0; i < 2 * beside.stride_; ++i) beside.projected_[static_cast<std::size_t>(i)] = NAN;
  beside.run({span(3, 0, 2), span(1, 2, 4)});
  for (std::size_t i = 2 * 6; i < 6 * 6; ++i) EXPECT_EQ(alone.out_[i], beside.out_[i]) << i;
  EXPECT_EQ(alone.canonical(1), beside.canonical(1));
}

}  // namespace
}  // namespace tensorfold::ops
