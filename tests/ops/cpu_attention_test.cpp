// Attention of the CPU backend: close to the reference; every row alone = that row in any batch, cut and thread count,
// bit for bit; nothing that a row may not see reaches it, even when it is a NaN.
#include <algorithm>
#include <map>
#include <numeric>

#include "cpu_test_support.h"

namespace tensorfold::ops {
namespace {

struct Shape {
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

/// `count` rows of one lane, from the lane's next position.
struct Step {
  int lane;
  int count;
};

/// Lanes with fixed random projections, run in any schedule. Pages start as NaN throughout.
class Harness {
 public:
  Harness(std::unique_ptr<Backend> backend, const Shape& shape, int lanes, int length)
      : backend_(std::move(backend)), shape_(shape), length_(length), positions_(static_cast<std::size_t>(lanes), 0) {
    const int pages_per_lane = length / 64 + 1;
    page_bytes_ = backend_->kv_page_bytes({shape.kv_heads, shape.head_dim});
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
  void poison_row(int lane, int row) {
    std::fill_n(qkv_[static_cast<std::size_t>(lane)].begin() + row * shape_.stride(), shape_.stride(), NAN);
  }

  /// Writes keys and values only.
  void fill(int lane, int count) { pass({{lane, count}}, false); }

  /// One pass over the steps; the output of every (lane, position) is kept, replacing an earlier one.
  void pass(const std::vector<Step>& steps, bool attend = true) {
    std::vector<LaneSpan> spans;
    std::vector<float> qkv;
    std::vector<std::int32_t> rope_positions;
    std::int32_t rows = 0;
    for (const Step& step : steps) {
      const auto lane = static_cast<std::size_t>(step.lane);
      const int position = positions_[lane];
      ASSERT_LE(position + step.count, length_);
      LaneSpan span;
      span.first_row = rows;
      span.row_count = step.count;
      span.position = position;
      span.pages = pages_[lane].data();
      spans.push_back(span);
      const auto begin = qkv_[lane].begin() + position * shape_.stride();
      qkv.insert(qkv.end(), begin, begin + step.count * shape_.stride());
      for (int r = 0; r < step.count; ++r) rope_positions.push_back(position + r);
      rows += step.count;
      positions_[lane] += step.count;
    }
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
    p.pool = {memory_->data(), page_bytes_};
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
    p.pool = {memory_->data(), page_bytes_};
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

  void keep(const std::vector<Step>& steps, const std::vector<LaneSpan>& spans, const std::vector<float>& out) {
    const std::int64_t width = shape_.heads * shape_.head_dim;
    for (std::size_t s = 0; s < steps.size(); ++s) {
      for (std::int32_t r = 0; r < spans[s].row_count; ++r) {
        const auto begin = out.begin() + (spans[s].first_row + r) * width;
        outputs_[{steps[s].lane, spans[s].position + r}] = {begin, begin + width};
      }
    }
  }

  std::unique_ptr<Backend> backend_;
  Shape shape_;
  int length_;
  std::vector<int> positions_;
  std::size_t page_bytes_ = 0;
  std::unique_ptr<Buffer> memory_;
  std::vector<std::vector<std::int32_t>> pages_;
  std::vector<std::vector<float>> qkv_;
  std::vector<float> q_norm_, k_norm_, cos_sin_;
  std::map<std::pair<int, int>, std::vector<float>> outputs_;
};

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
};

TEST(CpuAttention, IsCloseToTheReference) {
  constexpr int kLength = 150;
  for (const Shape& shape : kShapes) {
    Harness expected(make_reference_backend(Rounding::kBackend, 2), shape, 2, kLength);
    expected.pass({{0, kLength}, {1, kLength}});
    for (const std::string& path : available_paths()) {
      Harness actual(cpu_backend(2, path), shape, 2, kLength);
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

TEST(CpuAttention, ARowAloneIsThatRowInAnyBatch) {
  constexpr int kLanes = 3, kLength = 200;
  for (const Shape& shape : kShapes) {
    const auto expected = one_by_one(cpu_backend(1, available_paths().front()), shape, kLanes, kLength);
    for (const std::string& path : available_paths()) {
      for (const int threads : {1, 2, 5}) {
        for (const int rows_max : {3, 17, 90, 200}) {
          Harness harness(cpu_backend(threads, path), shape, kLanes, kLength);
          run_randomly(harness, kLanes, kLength, rows_max, static_cast<unsigned>(threads + rows_max));
          ASSERT_TRUE(same_bits(harness.all(), expected))
              << "head_dim " << shape.head_dim << ", " << path << ", " << threads << " threads, " << rows_max;
        }
      }
    }
  }
}

TEST(CpuAttention, SegmentAndTileBoundaries) {
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
    Harness alone(cpu_backend(1, available_paths().front()), shape, 1, first + count);
    alone.fill(0, first);
    for (int i = 0; i < count; ++i) alone.pass({{0, 1}});
    EXPECT_TRUE(close_to(alone.all(), reference.all(), 1.0f, 0.005f)) << c.around;
    for (const std::string& path : available_paths()) {
      for (const int threads : {1, 2, 5}) {
        Harness together(cpu_backend(threads, path), shape, 1, first + count);
        together.fill(0, first);
        together.pass({{0, count}});
        EXPECT_TRUE(same_bits(together.all(), alone.all())) << c.around << " window " << c.window;
        Harness single(cpu_backend(threads, path), shape, 1, first + count);
        single.fill(0, first);
        for (int i = 0; i < count; ++i) single.pass({{0, 1}});
        EXPECT_TRUE(same_bits(single.all(), alone.all())) << c.around << " window " << c.window;
      }
    }
  }
}

TEST(CpuAttention, RejectedRowsAndNaNNeighboursLeaveNoTrace) {
  for (const Shape& shape : kShapes) {
    const int length = 140;
    Harness clean(cpu_backend(2), shape, 2, length);
    clean.pass({{0, length}});
    Harness dirty(cpu_backend(2), shape, 2, length);
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

TEST(CpuAttention, ANaNRowDoesNotReachEarlierRowsOfItsWindow) {
  for (const Shape& shape : kShapes) {
    Harness clean(cpu_backend(2), shape, 1, 100);
    clean.pass({{0, 90}});
    clean.pass({{0, 8}});
    for (int bad = 91; bad < 98; ++bad) {
      Harness dirty(cpu_backend(2), shape, 1, 100);
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

TEST(CpuAttention, ReleasedPagesAreNeverRead) {
  const Shape shape{.heads = 4, .kv_heads = 2, .head_dim = 32, .window = 100};
  Harness kept(cpu_backend(2), shape, 1, 400);
  Harness released(cpu_backend(2), shape, 1, 400);
  for (Harness* harness : {&kept, &released}) harness->pass({{0, 300}});
  for (int page = 0; page < 3; ++page) released.release_page(0, page);  // position 300 sees keys from 201
  for (Harness* harness : {&kept, &released}) harness->pass({{0, 9}});
  EXPECT_TRUE(same_bits(released.all(), kept.all()));
}

}  // namespace
}  // namespace tensorfold::ops
