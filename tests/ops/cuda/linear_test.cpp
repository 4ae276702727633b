// Linear layers of the CUDA backend, for every stored format: which weights reach the product, what the product is, and that
// a row's bits don't depend on the rows beside it, on the kernels that run or on where the row came from.
#include <algorithm>
#include <numeric>

#include "checkpoint/weight_format.h"
#include "ops/linear/sample_weights.h"
#include "ops/operation_test.h"

namespace tensorfold::ops {
namespace {

using cpu::make_sample;
using cpu::SampleFormat;
using cpu::SampleMatrix;
using CudaLinear = OperationTest;

constexpr float kSentinel = 12345.0f;

std::unique_ptr<Linear> load(Backend& backend, const WeightView& view) {
  LinearSource source;
  source.name = view.name;
  source.parts = {view};
  return backend.load_linear(source);
}

std::vector<Bf16> random_inputs(std::size_t count, unsigned seed) {
  std::vector<Bf16> x;
  for (const float value : random_floats(count, seed)) x.push_back(to_bf16(value));
  return x;
}

/// Rows [first, first + rows) of x.
std::vector<float> product(Backend& backend, const Linear& weight, const std::vector<Bf16>& x, std::int64_t first,
                           std::int64_t rows) {
  std::vector<float> y(static_cast<std::size_t>(rows * weight.rows()));
  LinearParams params;
  params.weight = &weight;
  params.x = reinterpret_cast<const Activation*>(x.data() + first * weight.columns());
  params.rows = rows;
  params.y = y.data();
  params.y_stride = weight.rows();
  backend.linear(params);
  return y;
}

/// One rounding of q · scale + bias where both are bf16; otherwise the fp32 value, rounded.
float weight_in_product(const WeightView& view, const float* decoded, std::int64_t row, std::int64_t column) {
  if (view.format != WeightFormat::kAffine || view.scale_format != WeightFormat::kBF16) {
    return to_float(to_bf16(decoded[column]));
  }
  const std::int64_t group = row * (view.columns / view.group_size) + column / view.group_size;
  const auto value = [group](const std::byte* values) {
    Bf16 result;
    std::memcpy(&result, values + 2 * group, 2);
    return static_cast<double>(to_float(result));
  };
  const double scale = value(view.scales), bias = value(view.biases);
  // The code, from the decoded value: exact enough to be rounded to the integer that it was.
  const double code = scale != 0.0 ? std::nearbyint((static_cast<double>(decoded[column]) - bias) / scale) : 0.0;
  const double exact = code * scale + bias;
  // Rounding twice would differ from rounding once at ties alone: nudge the fp32 value off them.
  float single = static_cast<float>(exact);
  if ((std::bit_cast<std::uint32_t>(single) & 0xffffu) == 0x8000u && static_cast<double>(single) != exact) {
    single = std::nextafter(single, exact > static_cast<double>(single) ? INFINITY : -INFINITY);
  }
  return to_float(to_bf16(single));
}

bool equal_or_denormal(float a, float b) {
  constexpr float kLeastNormal = 0x1p-126f;
  return a == b || (std::abs(a) < kLeastNormal && std::abs(b) < kLeastNormal);
}

std::vector<std::int64_t> depths_of(const SampleFormat& format) {
  const std::int64_t multiple = cpu::sample_column_multiple(format);
  if (multiple == 1) return {32, 48, 576};
  if (multiple == 256) return {256, 1280};
  return {multiple, 3 * multiple, 1152};
}

/// Every weight of the matrix, by products with unit vectors.
void expect_weights(Backend& backend, const SampleMatrix& sample, const std::string& what) {
  const std::int64_t columns = sample.view.columns, outputs = sample.view.rows;
  const auto weight = load(backend, sample.view);
  std::vector<Bf16> unit(static_cast<std::size_t>(columns * columns));
  for (std::int64_t k = 0; k < columns; ++k) unit[static_cast<std::size_t>(k * columns + k)] = to_bf16(1.0f);
  const auto y = product(backend, *weight, unit, 0, columns);
  std::vector<float> decoded(static_cast<std::size_t>(columns));
  int wrong = 0;
  for (std::int64_t n = 0; n < outputs; ++n) {
    decode_row(sample.view, 0, n, decoded.data());
    for (std::int64_t k = 0; k < columns; ++k) {
      const float expected = weight_in_product(sample.view, decoded.data(), n, k);
      const float actual = y[static_cast<std::size_t>(k * outputs + n)];
      if (equal_or_denormal(actual, expected)) continue;
      if (++wrong == 1) ADD_FAILURE() << what << ": weight " << n << ", " << k << " is " << actual << ", expected " << expected;
    }
  }
  EXPECT_EQ(wrong, 0) << what;
}

TEST_F(CudaLinear, WeightsReachTheProductAsTheHeaderSays) {
  std::mt19937 random(1);
  for (const std::string& path : available_paths()) {
    const auto backend = backend_under_test(1, path);
    for (const SampleFormat& format : cpu::all_sample_formats()) {
      const SampleMatrix sample = make_sample(format, 1, 40, depths_of(format)[1], random);
      expect_weights(*backend, sample, path + ", " + sample_format_name(format));
    }
  }
}

/// Four bits with small scales are stored in a form of their own, whose bound a matrix may keep to or not.
TEST_F(CudaLinear, ScalesAroundTheBoundOfSmallOnes) {
  const std::vector<float> small = {0.125f, 0.25f, 0.375f, 0.498046875f, 0x1p-20f}, any = {0.498046875f, 0.5f, 0.75f, 3.0f, 500.0f};
  std::mt19937 random(3);
  for (const std::string& path : available_paths()) {
    const auto backend = backend_under_test(1, path);
    for (const std::vector<float>& scales : {small, any}) {
      SampleMatrix sample = make_sample({WeightFormat::kAffine, 4, 64, WeightFormat::kBF16}, 1, 40, 192, random);
      for (std::size_t i = 0; 2 * i < sample.scales.size(); ++i) {
        const Bf16 scale = to_bf16((random() & 1 ? 1.0f : -1.0f) * scales[i % scales.size()]);
        std::memcpy(sample.scales.data() + 2 * i, &scale, 2);
      }
      expect_weights(*backend, sample, path + ", scales up to " + std::to_string(scales.back()));
    }
  }
}

TEST_F(CudaLinear, IsCloseToTheReferenceInEveryFormatAndShape) {
  std::mt19937 random(2);
  const auto reference = make_reference_backend(Rounding::kBackend, 2);
  for (const SampleFormat& format : cpu::all_sample_formats()) {
    for (const std::int64_t columns : depths_of(format)) {
      for (const std::int64_t outputs : {1, 17, 100}) {
        const SampleMatrix sample = make_sample(format, 1, outputs, columns, random);
        const auto x = random_inputs(static_cast<std::size_t>(33 * columns), 7);
        std::vector<std::byte> exact_x;
        for (const Bf16 value : x) {
          const float wide = to_float(value);
          const auto* bytes = reinterpret_cast<const std::byte*>(&wide);
          exact_x.insert(exact_x.end(), bytes, bytes + sizeof(float));
        }
        const auto exact_weight = load(*reference, sample.view);
        std::vector<float> expected(static_cast<std::size_t>(33 * outputs));
        LinearParams params;
        params.weight = exact_weight.get();
        params.x = activations(exact_x);
        params.rows = 33;
        params.y = expected.data();
        params.y_stride = outputs;
        reference->linear(params);
        float largest = 0.0f;
        for (const float value : expected) largest = std::max(largest, std::abs(value));
        for (const std::string& path : available_paths()) {
          const auto backend = backend_under_test(1, path);
          const auto weight = load(*backend, sample.view);
          ASSERT_EQ(weight->rows(), outputs);
          ASSERT_EQ(weight->columns(), columns);
          // A weight may round the other way (bf16 scales are applied with one rounding); sums are fp32.
          EXPECT_TRUE(close_to(product(*backend, *weight, x, 0, 33), expected, 0.2f, 0.01f * largest))
              << path << ", " << sample_format_name(format) << " " << outputs << " x " << columns;
        }
      }
    }
  }
}

/// Batches of these sizes against rows alone, on both kinds of kernels.
void expect_invariant(const SampleFormat& format, std::int64_t outputs, std::int64_t columns,
                      const std::vector<std::int64_t>& row_counts, unsigned seed, bool segment_tree) {
  std::mt19937 random(seed);
  const SampleMatrix sample = make_sample(format, 1, outputs, columns, random);
  const std::int64_t rows_max = *std::max_element(row_counts.begin(), row_counts.end());
  const auto x = random_inputs(static_cast<std::size_t>(rows_max * columns), seed);
  LinearSource source;
  source.name = sample.view.name;
  source.parts = {sample.view};
  source.segment_tree = segment_tree;
  std::vector<float> alone;  // [rows_max, outputs]
  for (const std::string& path : available_paths()) {
    const auto backend = backend_under_test(1, path);
    const auto weight = backend->load_linear(source);
    if (alone.empty()) {
      for (std::int64_t row = 0; row < rows_max; ++row) {
        // Rows of large batches are compared with themselves alone here and there; of small ones, all.
        if (row >= 160 && row % 97 != 0 && row + 3 < rows_max) {
          alone.resize(alone.size() + static_cast<std::size_t>(outputs), NAN);
          continue;
        }
        const auto one = product(*backend, *weight, x, row, 1);
        alone.insert(alone.end(), one.begin(), one.end());
      }
    }
    for (const std::int64_t rows : row_counts) {
      const auto batch = product(*backend, *weight, x, 0, rows);
      std::int64_t differing = 0, first = -1;
      for (std::size_t i = 0; i < batch.size(); ++i) {
        if (std::isnan(alone[i])) continue;
        if (std::bit_cast<std::uint32_t>(batch[i]) == std::bit_cast<std::uint32_t>(alone[i])) continue;
        if (differing++ == 0) first = static_cast<std::int64_t>(i);
      }
      EXPECT_EQ(differing, 0) << path << ", " << sample_format_name(format) << " " << outputs << " x " << columns << ", "
                              << rows << " rows: first at row " << first / outputs << ", output " << first % outputs;
    }
  }
}

TEST_F(CudaLinear, ARowAloneIsThatRowInAnyBatch) {
  unsigned seed = 100;
  for (const SampleFormat& format : cpu::all_sample_formats()) {
    const std::int64_t columns = depths_of(format).back();
    expect_invariant(format, 72, columns, {1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 31, 32, 33, 64, 65, 129}, ++seed, false);
  }
}

TEST_F(CudaLinear, ARowAloneIsThatRowInPromptsOfLargeLayers) {
  using enum WeightFormat;
  const std::vector<std::int64_t> rows = {1, 8, 16, 24, 48, 96, 127, 128, 129, 255, 256, 300, 511, 512, 640};
  unsigned seed = 200;
  for (const SampleFormat& format : {SampleFormat{kAffine, 4, 64, kBF16}, SampleFormat{kBF16}, SampleFormat{kQ4_K},
                                     SampleFormat{kQ6_K}, SampleFormat{kQ8_0}, SampleFormat{kAffine, 8, 64, kBF16}}) {
    for (const bool tree : {false, true}) {
      expect_invariant(format, 1024, 2048, rows, ++seed, tree);
      expect_invariant(format, 200, 5120, {1, 16, 33, 128, 257}, ++seed, tree);
    }
  }
}

TEST_F(CudaLinear, NeighboursAndGatheredRowsStayApart) {
  const Bf16 nan{0x7fff};
  for (const std::string& path : available_paths()) {
    const auto backend = backend_under_test(1, path);
    for (const std::int64_t columns : {48, 128, 1152}) {
      std::mt19937 random(5);
      const SampleMatrix sample = make_sample({WeightFormat::kBF16}, 1, 33, columns, random);
      const auto weight = load(*backend, sample.view);
      const auto clean = random_inputs(static_cast<std::size_t>(150 * columns), 8);
      // Every other row of x is poison, and so is what follows the last one.
      std::vector<Bf16> x(static_cast<std::size_t>(301 * columns + 64), nan);
      std::vector<std::int32_t> rows(150);
      for (std::int32_t r = 0; r < 150; ++r) {
        rows[static_cast<std::size_t>(r)] = 2 * (149 - r) + 1;
        std::copy_n(clean.begin() + r * columns, columns, x.begin() + (2 * (149 - r) + 1) * columns);
      }
      const auto expected = product(*backend, *weight, clean, 0, 150);
      for (const std::int64_t count : {1, 3, 8, 17, 64, 128, 150}) {
        constexpr std::int64_t kStride = 40;
        std::vector<float> y(static_cast<std::size_t>(150 * kStride), kSentinel);
        LinearParams params;
        params.weight = weight.get();
        params.x = reinterpret_cast<const Activation*>(x.data());
        params.rows = count;
        params.y = y.data();
        params.y_stride = kStride;
        params.row_index = rows.data();
        backend->linear(params);
        for (std::int64_t r = 0; r < 150; ++r) {
          for (std::int64_t n = 0; n < kStride; ++n) {
            const bool written = r < count && n < 33;
            const float wanted = written ? expected[static_cast<std::size_t>(r * 33 + n)] : kSentinel;
            ASSERT_EQ(y[static_cast<std::size_t>(r * kStride + n)], wanted)
                << path << ", " << columns << " columns, " << count << " rows: row " << r << ", output " << n;
          }
        }
      }
    }
  }
}

TEST_F(CudaLinear, StackedPartsRowOrdersBiasAndAccumulation) {
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
  const auto x = random_inputs(static_cast<std::size_t>(130 * columns), 9);
  for (const std::string& path : available_paths()) {
    const auto backend = backend_under_test(1, path);
    const auto stacked = backend->load_linear(source);
    ASSERT_EQ(stacked->rows(), 63);
    std::vector<std::vector<float>> parts;
    for (const auto* each : {&q, &k, &v}) parts.push_back(product(*backend, *load(*backend, each->view), x, 0, 130));
    for (const std::int64_t rows : {1, 2, 21, 130}) {
      for (const bool accumulate : {false, true}) {
        const std::vector<float> before = random_floats(static_cast<std::size_t>(rows) * 63, 11);
        std::vector<float> y = before;
        backend->linear({stacked.get(), reinterpret_cast<const Activation*>(x.data()), rows, y.data(), 63, accumulate,
                         nullptr});
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t n = 0; n < 63; ++n) {
            const float sum = n < 40   ? parts[0][static_cast<std::size_t>(
                                           r * 40 + source.row_orders[0][static_cast<std::size_t>(n)])]
                              : n < 56 ? parts[1][static_cast<std::size_t>(r * 16 + n - 40)]
                                       : parts[2][static_cast<std::size_t>(r * 7 + n - 56)];
            float expected = sum + source.bias[static_cast<std::size_t>(n)];
            if (accumulate) expected = before[static_cast<std::size_t>(r * 63 + n)] + expected;
            ASSERT_EQ(y[static_cast<std::size_t>(r * 63 + n)], expected) << path << ", output " << n << " of row " << r;
          }
        }
      }
    }
  }
}

/// What is there differs from element to element: a sum that is added to a neighbour's shows.
TEST_F(CudaLinear, SumsAreAddedEachToItsOwnPlace) {
  std::mt19937 random(12);
  constexpr std::int64_t kColumns = 2048, kOutputs = 213, kStride = kOutputs + 5, kRows = 200;
  const auto x = random_inputs(static_cast<std::size_t>(kRows * kColumns), 13);
  const std::vector<float> before = random_floats(static_cast<std::size_t>(kRows * kStride), 14);
  const SampleFormat formats[] = {{WeightFormat::kAffine, 4, 64, WeightFormat::kBF16}, {WeightFormat::kQ4_1}, {WeightFormat::kBF16}};
  for (const std::string& path : available_paths()) {
    const auto backend = backend_under_test(1, path);
    for (const SampleFormat& format : formats) {
      const SampleMatrix sample = make_sample(format, 1, kOutputs, kColumns, random);
      for (const bool tree : {false, true}) {
        LinearSource source;
        source.name = "sums";
        source.parts = {sample.view};
        source.segment_tree = tree;
        const auto weight = backend->load_linear(source);
        const auto sums = product(*backend, *weight, x, 0, kRows);
        for (const std::int64_t rows : {1, 2, 7, 16, 17, 33, 64, 65, 129, 200}) {
          std::vector<float> y = before;
          backend->linear({weight.get(), reinterpret_cast<const Activation*>(x.data()), rows, y.data(), kStride, true, nullptr});
          int wrong = 0;
          for (std::int64_t i = 0; i < kRows * kStride; ++i) {
            const std::int64_t row = i / kStride, output = i % kStride;
            const bool is_there = row < rows && output < kOutputs;
            const float old = before[static_cast<std::size_t>(i)];
            const float expected = is_there ? old + sums[static_cast<std::size_t>(row * kOutputs + output)] : old;
            wrong += y[static_cast<std::size_t>(i)] != expected;
          }
          EXPECT_EQ(wrong, 0) << path << ", " << sample_format_name(format) << ", " << rows << " rows, " << (tree ? "tree" : "chain");
        }
      }
    }
  }
}

TEST_F(CudaLinear, PairedHalvesAreTheSameOutputs) {
  std::mt19937 random(7);
  const SampleMatrix gate = make_sample({WeightFormat::kQ4_0}, 1, 96, 256, random);
  const SampleMatrix up = make_sample({WeightFormat::kQ4_0}, 1, 96, 256, random);
  LinearSource source;
  source.name = "gate_up";
  source.parts = {gate.view, up.view};
  const auto x = random_inputs(70 * 256, 10);
  for (const std::string& path : available_paths()) {
    const auto backend = backend_under_test(1, path);
    source.paired_halves = false;
    const auto plain = backend->load_linear(source);
    source.paired_halves = true;
    const auto paired = backend->load_linear(source);
    for (const std::int64_t rows : {1, 8, 70}) {
      EXPECT_TRUE(same_bits(product(*backend, *paired, x, 0, rows), product(*backend, *plain, x, 0, rows))) << path;
    }
  }
}

TEST_F(CudaLinear, GatedLayersAreAProductAndItsActivation) {
  using enum WeightFormat;
  std::mt19937 random(11);
  int ran = 0;
  for (const SampleFormat& format : {SampleFormat{kAffine, 4, 64, kBF16}, SampleFormat{kBF16}, SampleFormat{kQ4_K}}) {
    const std::int64_t width = 320, columns = 1280;
    const SampleMatrix gate = make_sample(format, 1, width, columns, random);
    const SampleMatrix up = make_sample(format, 1, width, columns, random);
    LinearSource source;
    source.name = "gate_up";
    source.parts = {gate.view, up.view};
    source.paired_halves = true;
    const auto x = random_inputs(static_cast<std::size_t>(140 * columns), 12);
    for (const std::string& path : available_paths()) {
      const auto backend = backend_under_test(1, path);
      const auto weight = backend->load_linear(source);
      for (const std::int64_t rows : {1, 2, 5, 8, 13, 16, 24, 33, 64, 100, 128, 140}) {
        for (const ActivationKind kind : {ActivationKind::kSilu, ActivationKind::kGeluTanh}) {
          std::vector<std::byte> fused(static_cast<std::size_t>(rows * width * 2)), apart(fused.size());
          const auto* input = reinterpret_cast<const Activation*>(x.data());
          if (!backend->gated_linear({weight.get(), input, rows, kind, activations(fused)})) continue;
          ++ran;
          const auto y = product(*backend, *weight, x, 0, rows);
          backend->gated_activation({y.data(), rows, width, kind, activations(apart)});
          EXPECT_TRUE(same_bits(activations_of(backend->info(), fused), activations_of(backend->info(), apart)))
              << path << ", " << sample_format_name(format) << ", " << rows << " rows";
        }
      }
    }
  }
  EXPECT_GT(ran, 0);
}

TEST_F(CudaLinear, EmbeddingsAreTheProductsWeights) {
  std::mt19937 random(8);
  for (const SampleFormat& format : cpu::all_sample_formats()) {
    const std::int64_t columns = depths_of(format)[1];
    const SampleMatrix sample = make_sample(format, 1, 50, columns, random);
    const std::vector<std::int32_t> tokens = {49, 0, 7, 7, 31};
    for (const std::string& path : available_paths()) {
      const auto backend = backend_under_test(1, path);
      LinearSource source;
      source.name = "embedding";
      source.parts = {sample.view};
      source.embedding = true;
      const auto table = backend->load_linear(source);
      std::vector<float> out(tokens.size() * static_cast<std::size_t>(columns));
      backend->embed({table.get(), tokens.data(), static_cast<std::int64_t>(tokens.size()), 3.0f, out.data()});
      std::vector<float> decoded(static_cast<std::size_t>(columns));
      for (std::size_t r = 0; r < tokens.size(); ++r) {
        decode_row(sample.view, 0, tokens[r], decoded.data());
        for (std::int64_t i = 0; i < columns; ++i) {
          const float expected = weight_in_product(sample.view, decoded.data(), tokens[r], i) * 3.0f;
          const float actual = out[r * static_cast<std::size_t>(columns) + static_cast<std::size_t>(i)];
          ASSERT_TRUE(equal_or_denormal(actual, expected))
              << path << ", " << sample_format_name(format) << ": " << actual << ", expected " << expected;
        }
      }
    }
  }
}

TEST_F(CudaLinear, PackedWeightsTakeLittleMoreThanTheFile) {
  std::mt19937 random(9);
  const auto backend = backend_under_test(1);
  for (const SampleFormat& format : cpu::all_sample_formats()) {
    const SampleMatrix sample = make_sample(format, 1, 512, 2048, random);
    const auto weight = load(*backend, sample.view);
    const std::size_t stored = sample.data.size() + sample.scales.size() + sample.biases.size();
    // Plain fp32 is kept as bf16; a K-quant's packed six-bit scales become bytes, 152 for Q4_K's 144.
    EXPECT_LE(static_cast<double>(weight->packed_bytes()), 1.06 * static_cast<double>(stored))
        << sample_format_name(format);
  }
}

}  // namespace
}  // namespace tensorfold::ops
