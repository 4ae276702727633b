// Attention of the CPU and CUDA backends: close to the reference; every row alone = that row in any batch, cut and thread count,
// bit for bit; nothing that a row may not see reaches it, even when it is a NaN.
#include "attention_harness.h"

namespace tensorfold::ops {
namespace {

using Attention = OperationTest;

using Shape = AttentionShape;
using Step = AttentionStep;
using Harness = AttentionHarness;

std::vector<float> one_by_one(std::unique_ptr<Backend> backend, const Shape& shape, int lanes, int length) {
  Harness harness(std::move(backend), shape, lanes, length);
  for (int lane = 0; lane < lanes; ++lane) {
    for (int row = 0; row < length; ++row) harness.pass({{lane, 1}});
  }
  return harness.all();
}

const Shape kShapes[] = {
    {.heads = 4, .kv_heads = 2, .head_dim = 8, .rotary_dims = 8},
    {.heads = 3, .kv_heads = 1, .head_dim = 16, .rotary_dims = 4, .norms = true},
    {.heads = 2, .kv_heads = 2, .head_dim = 24, .window = 50},
    {.heads = 6, .kv_heads = 2, .head_dim = 40, .window = 64, .rotary_dims = 40, .gated = true},
    {.heads = 9, .kv_heads = 3, .head_dim = 64, .rotary_dims = 64},
    {.heads = 5, .kv_heads = 1, .head_dim = 96, .window = 100},
    {.heads = 4, .kv_heads = 1, .head_dim = 128, .rotary_dims = 128, .norms = true},
    {.heads = 8, .kv_heads = 1, .head_dim = 256, .rotary_dims = 64, .norms = true, .gated = true},
    {.heads = 4, .kv_heads = 2, .head_dim = 192, .rotary_dims = 192},
    {.heads = 70, .kv_heads = 1, .head_dim = 64, .window = 90, .rotary_dims = 64},  // a row is more than a warpgroup's packed rows
};

TEST_F(Attention, IsCloseToTheReference) {
  constexpr int kLength = 150;
  for (const Shape& shape : kShapes) {
    Harness expected(make_reference_backend(Rounding::kBackend, 2), shape, 2, kLength);
    expected.pass({{0, kLength}, {1, kLength}});
    for (const std::string& path : available_paths()) {
      Harness actual(backend_under_test(2, path), shape, 2, kLength);
      actual.pass({{0, kLength}, {1, kLength}});
      // Two sources of difference: a q, k or P that rounds the other way, and the last rounding itself.
      EXPECT_TRUE(close_to(actual.all(), expected.all(), 1.0f, 0.01f)) << shape.head_dim << " on " << path;
    }
  }
}

/// Cuts `length` rows of every lane into passes of up to `rows_max` rows of random lanes.
void run_randomly(Harness& harness, int lanes, int length, int rows_max, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int> left(static_cast<std::size_t>(lanes), length);
  while (std::any_of(left.begin(), left.end(), [](int rows) { return rows > 0; })) {
    std::vector<Step> steps;
    for (int lane = 0; lane < lanes; ++lane) {
      int& rows = left[static_cast<std::size_t>(lane)];
      if (rows == 0 || random() % 3 == 0) continue;
      const int count = std::min<int>(rows, 1 + static_cast<int>(random() % static_cast<unsigned>(rows_max)));
      steps.push_back({lane, count});
      rows -= count;
    }
    std::shuffle(steps.begin(), steps.end(), random);
    if (!steps.empty()) harness.pass(steps);
  }
}

TEST_F(Attention, ARowAloneIsThatRowInAnyBatch) {
  constexpr int kLanes = 3, kLength = 200;
  for (const Shape& shape : kShapes) {
    const auto expected = one_by_one(backend_under_test(1, available_paths().front()), shape, kLanes, kLength);
    for (const std::string& path : available_paths()) {
      for (const int threads : thread_counts({1, 2, 5})) {
        for (const int rows_max : {3, 17, 90, 200}) {
          Harness harness(backend_under_test(threads, path), shape, kLanes, kLength);
          run_randomly(harness, kLanes, kLength, rows_max, static_cast<unsigned>(threads + rows_max));
          ASSERT_TRUE(same_bits(harness.all(), expected))
              << "head_dim " << shape.head_dim << ", " << path << ", " << threads << " threads, " << rows_max;
        }
      }
    }
  }
}

TEST_F(Attention, SegmentAndTileBoundaries) {
  // Keys before and after the boundary are filled without attention; the rows around it run alone, together, and split
  // over threads by segments.
  struct Case {
    int around;
    std::int32_t window;
  };
  Shape shape{.heads = 4, .kv_heads = 2, .head_dim = 16};
  for (const Case c :
       {Case{64, 0}, Case{128, 0}, Case{128, 64}, Case{2048, 0}, Case{2048, 1000}, Case{8192, 0}, Case{8192, 4096}}) {
    shape.window = c.window;
    const int first = c.around - 3, count = 7;
    Harness reference(make_reference_backend(Rounding::kBackend, 2), shape, 1, first + count);
    reference.fill(0, first);
    reference.pass({{0, count}});
    Harness alone(backend_under_test(1, available_paths().front()), shape, 1, first + count);
    alone.fill(0, first);
    for (int i = 0; i < count; ++i) alone.pass({{0, 1}});
    EXPECT_TRUE(close_to(alone.all(), reference.all(), 1.0f, 0.005f)) << c.around;
    for (const std::string& path : available_paths()) {
      for (const int threads : thread_counts({1, 2, 5})) {
        Harness together(backend_under_test(threads, path), shape, 1, first + count);
        together.fill(0, first);
        together.pass({{0, count}});
        EXPECT_TRUE(same_bits(together.all(), alone.all())) << c.around << " window " << c.window;
        Harness single(backend_under_test(threads, path), shape, 1, first + count);
        single.fill(0, first);
        for (int i = 0; i < count; ++i) single.pass({{0, 1}});
        EXPECT_TRUE(same_bits(single.all(), alone.all())) << c.around << " window " << c.window;
      }
    }
  }
}

TEST_F(Attention, RejectedRowsAndNaNNeighboursLeaveNoTrace) {
  for (const Shape& shape : kShapes) {
    const int length = 140;
    Harness clean(backend_under_test(2), shape, 2, length);
    clean.pass({{0, length}});
    Harness dirty(backend_under_test(2), shape, 2, length);
    dirty.poison_row(1, 0);
    for (int position = 0; position < length;) {
      const int window = std::min(8, length - position);
      dirty.pass({{1, 1}, {0, window}});
      dirty.rewind(1, 0);
      const int accepted = 1 + position % window;
      position += accepted;
      dirty.rewind(0, position);
    }
    for (int position = 0; position < length; ++position) {
      ASSERT_TRUE(same_bits(dirty.row(0, position), clean.row(0, position))) << shape.head_dim;
    }
  }
}

TEST_F(Attention, ANaNRowDoesNotReachEarlierRowsOfItsWindow) {
  for (const Shape& shape : kShapes) {
    Harness clean(backend_under_test(2), shape, 1, 100);
    clean.pass({{0, 90}});
    clean.pass({{0, 8}});
    for (int bad = 91; bad < 98; ++bad) {
      Harness dirty(backend_under_test(2), shape, 1, 100);
      dirty.poison_row(0, bad);
      dirty.pass({{0, 90}});
      dirty.pass({{0, 8}});
      for (int position = 90; position < bad; ++position) {
        ASSERT_TRUE(same_bits(dirty.row(0, position), clean.row(0, position))) << bad;
      }
      for (const float value : dirty.row(0, bad)) ASSERT_TRUE(std::isnan(value));
    }
  }
}

TEST_F(Attention, ReleasedPagesAreNeverRead) {
  const Shape shape{.heads = 4, .kv_heads = 2, .head_dim = 32, .window = 100};
  Harness kept(backend_under_test(2), shape, 1, 400);
  Harness released(backend_under_test(2), shape, 1, 400);
  for (Harness* harness : {&kept, &released}) harness->pass({{0, 300}});
  for (int page = 0; page < 3; ++page) released.release_page(0, page);  // position 300 sees keys from 201
  for (Harness* harness : {&kept, &released}) harness->pass({{0, 9}});
  EXPECT_TRUE(same_bits(released.all(), kept.all()));
}

}  // namespace
}  // namespace tensorfold::ops
