// Every path that the machine has, against the scalar specification: all formats, widths and depths with tails, any
// number of rows and threads. Paths that the machine lacks are skipped by name.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>

#include "base/error.h"
#include "linear_spec.h"
#include "ops/cpu/linear.h"
#include "sample_weights.h"

namespace tensorfold::ops::cpu {
namespace {

constexpr float kSentinel = 12345.0f;

Bf16 ordinary_input(std::mt19937& random) {
  std::normal_distribution<float> normal(0.0f, 1.0f);
  return to_bf16(normal(random));
}

std::vector<Bf16> ordinary_inputs(std::size_t count, std::mt19937& random) {
  std::vector<Bf16> x(count);
  for (Bf16& value : x) value = ordinary_input(random);
  return x;
}

// Magnitudes whose products and sums are often denormal, with denormals, zeros of both signs and a few large values.
std::vector<Bf16> extreme_inputs(std::size_t count, std::mt19937& random, bool infinities) {
  std::vector<Bf16> x(count);
  for (Bf16& value : x) {
    const std::uint32_t draw = random();
    const std::uint32_t kind = (draw >> 16) & 63;
    std::uint32_t exponent = 5 + (draw >> 24) % 16;
    if (kind < 8) exponent = 0;
    if (kind == 9) exponent = 130;
    if (kind == 10 && infinities) exponent = 255;
    const std::uint32_t mantissa = exponent == 255 ? 0 : draw & 0x7f;
    value.bits = static_cast<std::uint16_t>(((draw >> 8) & 0x80) << 8 | exponent << 7 | mantissa);
  }
  return x;
}

const Activation* as_activation(const std::vector<Bf16>& x) {
  return reinterpret_cast<const Activation*>(x.data());
}

// What all rows of x give, by the specification.
std::vector<float> spec_outputs(const WeightView& view, std::int64_t expert, const std::vector<Bf16>& x) {
  const std::size_t rows = x.size() / static_cast<std::size_t>(view.columns);
  const std::size_t outputs = static_cast<std::size_t>(view.rows);
  std::vector<float> y(rows * outputs);
  for (std::size_t n = 0; n < outputs; ++n) {
    const std::vector<Bf16> weights = spec_weight_row(view, expert, static_cast<std::int64_t>(n));
    for (std::size_t r = 0; r < rows; ++r) {
      y[r * outputs + n] = spec_dot(weights, x.data() + r * static_cast<std::size_t>(view.columns));
    }
  }
  return y;
}

std::int64_t count_differences(const std::vector<float>& expected, const float* actual, std::int64_t rows,
                               std::int64_t outputs, std::int64_t stride) {
  std::int64_t differences = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t n = 0; n < outputs; ++n) {
      differences += !same_value(expected[static_cast<std::size_t>(r * outputs + n)], actual[r * stride + n]);
    }
  }
  return differences;
}

std::unique_ptr<CpuLinear> pack_one(const WeightView& view, CpuPath path, ThreadPool& pool) {
  LinearSource source;
  source.name = view.name;
  source.parts = {view};
  return pack_linear(source, path, pool);
}

struct Pools {
  ThreadPool one{1, set_compute_thread_mode};
  ThreadPool two{2, set_compute_thread_mode};
  ThreadPool five{5, set_compute_thread_mode};
  ThreadPool& of(int index) { return index % 3 == 0 ? one : index % 3 == 1 ? two : five; }
};

Pools& pools() {
  static Pools instance;
  return instance;
}

class LinearPathTest : public testing::TestWithParam<CpuPath> {
 protected:
  void SetUp() override {
    if (!cpu_path_available(GetParam())) GTEST_SKIP() << cpu_path_name(GetParam()) << " isn't available here";
    std::printf("path %s runs\n", cpu_path_name(GetParam()));
  }

  // Runs the first `rows` rows of x and compares with the specification's.
  void expect_rows(const CpuLinear& weight, const std::vector<Bf16>& x, std::int64_t rows,
                   const std::vector<float>& expected, ThreadPool& pool) {
    const std::int64_t stride = weight.rows() + 3;
    std::vector<float> y(static_cast<std::size_t>(rows * stride), kSentinel);
    LinearParams params;
    params.weight = &weight;
    params.x = as_activation(x);
    params.rows = rows;
    params.y = y.data();
    params.y_stride = stride;
    linear(pool, params);
    EXPECT_EQ(count_differences(expected, y.data(), rows, weight.rows(), stride), 0)
        << rows << " rows, " << pool.thread_count() << " threads";
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t n = weight.rows(); n < stride; ++n)
        ASSERT_EQ(y[static_cast<std::size_t>(r * stride + n)], kSentinel);
    }
  }
};

std::vector<std::int64_t> depths_of(const SampleFormat& format) {
  const std::int64_t multiple = sample_column_multiple(format);
  if (multiple == 1) return {1, 32, 48, 80, 576};
  if (multiple == 256) return {256, 768};
  return {multiple, 3 * multiple, 640};
}

TEST_P(LinearPathTest, EveryFormatShapeAndRowCountMatchesTheSpecification) {
  std::mt19937 random(1);
  int turn = 0;
  for (const SampleFormat& format : all_sample_formats()) {
    for (const std::int64_t columns : depths_of(format)) {
      for (const std::int64_t outputs : {1, 17, 100}) {
        SCOPED_TRACE(sample_format_name(format) + " " + std::to_string(outputs) + " x " + std::to_string(columns));
        const SampleMatrix sample = make_sample(format, 1, outputs, columns, random);
        const auto weight = pack_one(sample.view, GetParam(), pools().one);
        const auto x = ordinary_inputs(static_cast<std::size_t>(33 * columns), random);
        const auto expected = spec_outputs(sample.view, 0, x);
        for (const std::int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 17, 24, 25, 31, 32, 33}) {
          expect_rows(*weight, x, rows, expected, pools().of(turn++));
        }
      }
    }
  }
}

TEST_P(LinearPathTest, DeepAndTallLayersMatchTheSpecification) {
  std::mt19937 random(2);
  using enum WeightFormat;
  for (const SampleFormat& format : {SampleFormat{kQ4_1}, SampleFormat{kQ4_K}, SampleFormat{kQ6_K}, SampleFormat{kF32},
                                     SampleFormat{kAffine, 4, 64, kBF16}, SampleFormat{kAffine, 3, 128, kF16}}) {
    SCOPED_TRACE(sample_format_name(format));
    const SampleMatrix sample = make_sample(format, 1, 70, 5120, random);
    const auto weight = pack_one(sample.view, GetParam(), pools().two);
    const auto x = ordinary_inputs(512 * 5120, random);
    const auto expected = spec_outputs(sample.view, 0, x);
    for (int turn = 0; const std::int64_t rows : {1, 33, 100, 512}) {
      expect_rows(*weight, x, rows, expected, pools().of(turn++));
      expect_rows(*weight, x, rows, expected, pools().of(turn++));
    }
  }
}

TEST_P(LinearPathTest, DenormalsAreFlushedAndInfinitiesKept) {
  std::mt19937 random(3);
  for (const SampleFormat& format : all_sample_formats()) {
    const std::int64_t columns = 2 * std::max(sample_column_multiple(format), 48);
    for (const bool infinities : {false, true}) {
      SCOPED_TRACE(sample_format_name(format));
      const SampleMatrix sample = make_sample(format, 1, 40, columns, random);
      const auto weight = pack_one(sample.view, GetParam(), pools().one);
      const auto x = extreme_inputs(static_cast<std::size_t>(19 * columns), random, infinities);
      const auto expected = spec_outputs(sample.view, 0, x);
      for (const std::int64_t rows : {1, 5, 16, 19}) expect_rows(*weight, x, rows, expected, pools().two);
    }
  }
}

TEST_P(LinearPathTest, TinyScalesDecodeAsOnAnyThread) {
  std::mt19937 random(4);
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const WeightFormat scales : {WeightFormat::kF32, WeightFormat::kBF16}) {
      const SampleFormat format{WeightFormat::kAffine, bits, 64, scales};
      SCOPED_TRACE(sample_format_name(format));
      for (const ScaleRange range : {ScaleRange::kSmall, ScaleRange::kTiny}) {
        const SampleMatrix sample = make_sample(format, 1, 40, 192, random, range);
        const auto weight = pack_one(sample.view, GetParam(), pools().one);
        std::vector<Bf16> x = ordinary_inputs(18 * 192, random);
        for (Bf16& value : x) value = to_bf16(to_float(value) * 0x1p60f);
        const auto expected = spec_outputs(sample.view, 0, x);
        for (const std::int64_t rows : {1, 4, 18}) expect_rows(*weight, x, rows, expected, pools().two);
      }
    }
  }
}

TEST_P(LinearPathTest, NeighboursAndPaddingCannotLeak) {
  std::mt19937 random(5);
  const Bf16 nan{0x7fff};
  for (const std::int64_t columns : {48, 80, 96, 1}) {
    const SampleMatrix sample = make_sample({WeightFormat::kBF16}, 1, 33, columns, random);
    const auto weight = pack_one(sample.view, GetParam(), pools().one);
    const std::size_t width = static_cast<std::size_t>(columns);
    const auto clean = ordinary_inputs(20 * width, random);
    const auto expected = spec_outputs(sample.view, 0, clean);
    // Every other row of x is poison, and so is what follows the last row.
    std::vector<Bf16> x(41 * width + 64, nan);
    std::vector<std::int32_t> rows(20);
    for (std::size_t r = 0; r < 20; ++r) {
      rows[r] = static_cast<std::int32_t>(2 * (19 - r) + 1);
      std::copy_n(clean.begin() + static_cast<std::ptrdiff_t>(r * width), width,
                  x.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rows[r]) * width));
    }
    for (const std::int64_t count : {1, 3, 17, 20}) {
      std::vector<float> y(20 * 33, kSentinel);
      LinearParams params;
      params.weight = weight.get();
      params.x = as_activation(x);
      params.rows = count;
      params.y = y.data();
      params.y_stride = 33;
      params.row_index = rows.data();
      linear(pools().two, params);
      EXPECT_EQ(count_differences(expected, y.data(), count, 33, 33), 0) << columns << " columns";
    }
  }
}

TEST_P(LinearPathTest, StackedPartsRowOrdersBiasAndAccumulation) {
  std::mt19937 random(6);
  using enum WeightFormat;
  const std::int64_t columns = 512;
  const SampleMatrix q = make_sample({kQ4_K}, 1, 40, columns, random);
  const SampleMatrix k = make_sample({kQ6_K}, 1, 16, columns, random);
  const SampleMatrix v = make_sample({kAffine, 5, 64, kF16}, 1, 7, columns, random);
  LinearSource source;
  source.name = "qkv";
  source.parts = {q.view, k.view, v.view};
  source.row_orders.resize(3);
  source.row_orders[0].resize(40);
  std::iota(source.row_orders[0].begin(), source.row_orders[0].end(), 0);
  std::shuffle(source.row_orders[0].begin(), source.row_orders[0].end(), random);
  for (int n = 0; n < 63; ++n) source.bias.push_back(static_cast<float>(n) * 0.37f - 9.0f);
  const auto weight = pack_linear(source, GetParam(), pools().two);
  ASSERT_EQ(weight->rows(), 63);
  const auto x = ordinary_inputs(static_cast<std::size_t>(21 * columns), random);
  for (const std::int64_t rows : {1, 2, 21}) {
    for (const bool accumulate : {false, true}) {
      std::vector<float> y(static_cast<std::size_t>(rows) * 63, 0.3f);
      LinearParams params{weight.get(), as_activation(x), rows, y.data(), 63, accumulate, nullptr};
      linear(pools().five, params);
      for (std::int64_t n = 0; n < 63; ++n) {
        const WeightView& view = n < 40 ? q.view : n < 56 ? k.view : v.view;
        const std::int64_t in_part = n < 40   ? source.row_orders[0][static_cast<std::size_t>(n)]
                                     : n < 56 ? n - 40
                                              : n - 56;
        const auto weights = spec_weight_row(view, 0, in_part);
        for (std::int64_t r = 0; r < rows; ++r) {
          float expected = spec_dot(weights, x.data() + r * columns) + source.bias[static_cast<std::size_t>(n)];
          if (accumulate) expected = 0.3f + expected;
          ASSERT_TRUE(same_value(y[static_cast<std::size_t>(r * 63 + n)], expected)) << n << " of row " << r;
        }
      }
    }
  }
}

TEST_P(LinearPathTest, ExpertJobsMatchTheSpecification) {
  std::mt19937 random(7);
  const std::int64_t columns = 256;
  const SampleMatrix sample = make_sample({WeightFormat::kQ4_K}, 5, 30, columns, random);
  const auto weight = pack_one(sample.view, GetParam(), pools().two);
  ASSERT_EQ(weight->experts(), 5);
  const auto x = ordinary_inputs(static_cast<std::size_t>(40 * columns), random);
  const std::vector<std::vector<std::int32_t>> chosen = {{3}, {}, {39, 0, 7}, {5, 6}, {}};
  std::vector<std::vector<std::int32_t>> rows = chosen;
  for (std::int32_t r = 0; r < 40; ++r) rows[4].push_back(r);
  std::vector<std::vector<float>> y(5);
  std::vector<ExpertJob> jobs;
  for (int e = 4; e >= 0; --e) {
    const auto at = static_cast<std::size_t>(e);
    y[at].assign(std::max<std::size_t>(rows[at].size(), 1) * 30, kSentinel);
    jobs.push_back({e, rows[at].data(), static_cast<std::int64_t>(rows[at].size()), y[at].data()});
  }
  linear_experts(pools().two, *weight, x.data(), jobs, 30);
  for (std::size_t e = 0; e < 5; ++e) {
    const auto expected = spec_outputs(sample.view, static_cast<std::int64_t>(e), x);
    for (std::size_t r = 0; r < rows[e].size(); ++r) {
      const std::size_t from = static_cast<std::size_t>(rows[e][r]) * 30;
      const std::vector<float> row(expected.begin() + static_cast<std::ptrdiff_t>(from),
                                   expected.begin() + static_cast<std::ptrdiff_t>(from + 30));
      EXPECT_EQ(count_differences(row, y[e].data() + r * 30, 1, 30, 30), 0) << "expert " << e;
    }
  }
  std::vector<float> alone(30);
  linear_expert(pools().one, *weight, 2, x.data(), 1, rows[2].data(), alone.data(), 30);
  EXPECT_EQ(count_differences(alone, y[2].data(), 1, 30, 30), 0);
}

INSTANTIATE_TEST_SUITE_P(Paths, LinearPathTest, testing::ValuesIn(kCpuPaths),
                         [](const auto& info) { return std::string(cpu_path_name(info.param)); });

}  // namespace
}  // namespace tensorfold::ops::cpu
