// Traps of attention: the window counts the row itself, pages may lie anywhere, what isn't visible is never read, and
// the two ways to compute the softmax agree.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "ops/reference/reference_backend.h"

namespace tensorfold::ops {
namespace {

constexpr int kHeads = 4;
constexpr int kKvHeads = 2;
constexpr int kWidth = 6;
constexpr int kStride = (kHeads + 2 * kKvHeads) * kWidth;

struct Layer {
  explicit Layer(int rows, Rounding rounding = Rounding::kNone, int pages = 8)
      : backend(make_reference_backend(rounding, 2)), rows_(rows) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    qkv.resize(static_cast<std::size_t>(rows * kStride));
    for (float& value : qkv) value = normal(random);
    q.resize(static_cast<std::size_t>(rows * kHeads * kWidth));
    out.resize(q.size());
    page_bytes = backend->kv_page_bytes({kKvHeads, kWidth});
    memory = backend->allocate(page_bytes * static_cast<std::size_t>(pages), "pages");
    auto* floats = static_cast<float*>(memory->data());
    std::fill_n(floats, page_bytes * static_cast<std::size_t>(pages) / sizeof(float), NAN);  // stale content
  }

  LaneSpan span(int first, int count, const std::vector<std::int32_t>& pages) const {
    LaneSpan lane;
    lane.first_row = first;
    lane.row_count = count;
    lane.position = first;
    lane.pages = pages.data();
    return lane;
  }

  void run(const std::vector<LaneSpan>& lanes, int window = 0, const float* gate = nullptr) {
    AttentionPrepareParams prepare;
    prepare.geometry = {kKvHeads, kWidth};
    prepare.heads = kHeads;
    prepare.qkv = qkv.data();
    prepare.stride = kStride;
    prepare.q_head_stride = kWidth;
    prepare.k_offset = kHeads * kWidth;
    prepare.v_offset = (kHeads + kKvHeads) * kWidth;
    prepare.lanes = lanes.data();
    prepare.lane_count = static_cast<std::int32_t>(lanes.size());
    prepare.pool = {memory->data(), page_bytes};
    prepare.q_out = reinterpret_cast<Activation*>(q.data());
    backend->attention_prepare(prepare);
    AttentionParams params;
    params.geometry = prepare.geometry;
    params.heads = kHeads;
    params.q = prepare.q_out;
    params.pool = prepare.pool;
    params.lanes = prepare.lanes;
    params.lane_count = prepare.lane_count;
    params.scale = 0.4f;
    params.window = window;
    params.gate = gate;
    params.gate_stride = kHeads * kWidth;
    params.gate_head_stride = kWidth;
    params.out = reinterpret_cast<Activation*>(out.data());
    backend->attention(params);
  }

  /// Softmax over keys [first, row] straight from the projections.
  std::vector<double> expected(int row, int head, int first) const {
    const auto at = [&](int r, int offset) {
      return static_cast<double>(qkv[static_cast<std::size_t>(r * kStride + offset)]);
    };
    const int kv = head / (kHeads / kKvHeads);
    std::vector<double> sum(kWidth);
    double total = 0.0;
    for (int key = first; key <= row; ++key) {
      double score = 0.0;
      for (int i = 0; i < kWidth; ++i) score += at(row, head * kWidth + i) * at(key, (kHeads + kv) * kWidth + i);
      const double weight = std::exp(score * 0.4);
      total += weight;
      for (int i = 0; i < kWidth; ++i)
        sum[static_cast<std::size_t>(i)] += weight * at(key, (kHeads + kKvHeads + kv) * kWidth + i);
    }
    for (double& value : sum) value /= total;
    return sum;
  }

  std::unique_ptr<Backend> backend;
  int rows_;
  std::vector<float> qkv, q, out;
  std::size_t page_bytes = 0;
  std::unique_ptr<Buffer> memory;
};

TEST(ReferenceAttention, MatchesTheTextbookOverScatteredPages) {
  Layer layer(150);
  const std::vector<std::int32_t> pages = {5, 2, 7};
  layer.run({layer.span(0, 150, pages)});
  for (const int row : {0, 1, 63, 64, 127, 128, 149}) {
    for (int head = 0; head < kHeads; ++head) {
      const std::vector<double> expected = layer.expected(row, head, 0);
      for (int i = 0; i < kWidth; ++i) {
        EXPECT_NEAR(layer.out[static_cast<std::size_t>((row * kHeads + head) * kWidth + i)],
                    expected[static_cast<std::size_t>(i)], 1e-5);
      }
    }
  }
}

TEST(ReferenceAttention, TheWindowCountsTheRowItself) {
  Layer layer(100);
  const std::vector<std::int32_t> pages = {1, 2};
  layer.run({layer.span(0, 100, pages)}, 5);
  for (const int row : {3, 4, 5, 66, 99}) {
    const std::vector<double> expected = layer.expected(row, 3, std::max(0, row - 4));
    for (int i = 0; i < kWidth; ++i) {
      EXPECT_NEAR(layer.out[static_cast<std::size_t>((row * kHeads + 3) * kWidth + i)],
                  expected[static_cast<std::size_t>(i)], 1e-5);
    }
  }
}

TEST(ReferenceAttention, ReleasedPagesAndNeighboursAreNeverRead) {
  Layer alone(70);
  const std::vector<std::int32_t> pages = {3, 4};
  alone.run({alone.span(0, 70, pages)}, 4);
  // The same rows in two passes, the first page released in between, next to a lane of NaN.
  Layer cut(70);
  cut.run({cut.span(0, 68, pages)}, 4);
  const std::vector<std::int32_t> released = {-1, 4};
  Layer* layer = &cut;
  LaneSpan own = layer->span(68, 2, released);
  // Rows 68 and 69 see keys 65 to 69 only.
  layer->run({own}, 4);
  for (std::size_t i = 0; i < alone.out.size(); ++i) EXPECT_EQ(alone.out[i], cut.out[i]) << i;

  Layer beside(3);
  Layer single(3);
  const std::vector<std::int32_t> first = {1};
  const std::vector<std::int32_t> second = {2};
  for (int i = 0; i < kStride; ++i) beside.qkv[static_cast<std::size_t>(2 * kStride + i)] = NAN;
  LaneSpan poisoned = beside.span(2, 1, second);
  poisoned.position = 0;
  beside.run({beside.span(0, 2, first), poisoned});
  single.run({single.span(0, 2, first)});
  for (std::size_t i = 0; i < 2 * kHeads * kWidth; ++i) EXPECT_EQ(beside.out[i], single.out[i]) << i;
}

TEST(ReferenceAttention, RoundedTilesStayWithinBf16OfThePlainSoftmax) {
  Layer plain(330);
  Layer rounded(330, Rounding::kBackend);
  const std::vector<std::int32_t> pages = {1, 2, 3, 4, 5, 6};
  plain.run({plain.span(0, 330, pages)});
  rounded.run({rounded.span(0, 330, pages)});
  double largest = 0.0;
  for (std::size_t i = 0; i < plain.out.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(plain.out[i]) - static_cast<double>(rounded.out[i])));
  }
  EXPECT_LT(largest, 0.02);  // values are of order 1, bf16 has 8 bits
  EXPECT_GT(largest, 1e-4) << "rounding to bf16 left no mark: it wasn't applied";
}

TEST(ReferenceAttention, GateAndRope) {
  Layer layer(2);
  std::vector<float> gate(2 * kHeads * kWidth, 0.0f);
  const std::vector<std::int32_t> pages = {1};
  layer.run({layer.span(0, 2, pages)});
  const std::vector<float> open = layer.out;
  layer.run({layer.span(0, 2, pages)}, 0, gate.data());
  for (std::size_t i = 0; i < open.size(); ++i) EXPECT_FLOAT_EQ(layer.out[i], open[i] * 0.5f);

  // A quarter turn of the first 4 of 6 dims: pairs are (0, 2) and (1, 3), not neighbours; the rest passes through.
  AttentionPrepareParams prepare;
  prepare.geometry = {kKvHeads, kWidth};
  prepare.heads = kHeads;
  prepare.qkv = layer.qkv.data();
  prepare.stride = kStride;
  prepare.q_head_stride = kWidth;
  prepare.k_offset = kHeads * kWidth;
  prepare.v_offset = (kHeads + kKvHeads) * kWidth;
  const std::vector<float> table = {1, 0, 1, 0, 0, 1, 0, 1};  // position 0: none, position 1: a quarter
  prepare.rope = {table.data(), 4, 2};
  const std::vector<std::int32_t> positions = {0, 1};
  prepare.rope_positions = positions.data();
  const LaneSpan lane = layer.span(0, 2, pages);
  prepare.lanes = &lane;
  prepare.lane_count = 1;
  prepare.pool = {layer.memory->data(), layer.page_bytes};
  prepare.q_out = reinterpret_cast<Activation*>(layer.q.data());
  layer.backend->attention_prepare(prepare);
  const float* x = layer.qkv.data() + kStride;
  const float* y = layer.q.data() + kHeads * kWidth;
  EXPECT_EQ(std::vector<float>(y, y + 6), (std::vector<float>{-x[2], -x[3], x[0], x[1], x[4], x[5]}));
}

}  // namespace
}  // namespace tensorfold::ops
