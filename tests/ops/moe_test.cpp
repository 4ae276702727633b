// The mixture of experts of the CPU and CUDA backends: close to the reference, the same bits for a row in any batch, and rows
// whose router went wrong keep it to themselves.
#include <algorithm>

#include "linear/sample_weights.h"
#include "operation_test.h"

namespace tensorfold::ops {
namespace {

using Moe = OperationTest;

constexpr std::int64_t kHidden = 64, kWidth = 24;
constexpr std::int32_t kExperts = 9;
constexpr int kRows = 41;

WeightView dense(const std::vector<float>& values, std::int64_t experts, std::int64_t rows, std::int64_t columns) {
  WeightView view;
  view.name = "test";
  view.format = WeightFormat::kF32;
  view.experts = experts;
  view.rows = rows;
  view.columns = columns;
  view.data = reinterpret_cast<const std::byte*>(values.data());
  view.data_bytes = values.size() * sizeof(float);
  return view;
}

struct Result {
  std::vector<float> residual;
  std::vector<std::int32_t> chosen;
  bool ran_shared = false;  // the shared expert, from its layers
  std::vector<float> row(std::size_t index) const {
    const auto begin = residual.begin() + static_cast<std::int64_t>(index) * kHidden;
    return {begin, begin + kHidden};
  }
};

/// Quantised weights of a layer, in place of its own.
struct SampleExperts {
  cpu::SampleMatrix gate, up, down;
};

/// How the shared expert is handed over where it is given as layers.
enum class SharedExpert { kAsOutput, kAsLayers };

struct Layer {
  const SampleExperts* quantised = nullptr;
  const SampleExperts* shared_expert = nullptr;  // one expert, instead of shared_output
  std::int32_t top_k = 3;
  bool normalise = true;
  bool shared = true;
  ActivationKind kind = ActivationKind::kSilu;
  std::vector<float> gate = random_floats(kExperts * kWidth * kHidden, 1, 0.2f);
  std::vector<float> up = random_floats(kExperts * kWidth * kHidden, 2, 0.2f);
  std::vector<float> down = random_floats(kExperts * kHidden * kWidth, 3, 0.2f);
  std::vector<float> x = random_floats(kRows * kHidden, 4);
  std::vector<float> logits = random_floats(kRows * kExperts, 5, 2.0f);
  std::vector<float> residual = random_floats(kRows * kHidden, 6);
  std::vector<float> shared_output = random_floats(kRows * kHidden, 7);
  std::vector<float> shared_gate = random_floats(kRows * 3, 8);

  /// The given rows, in that order, as one batch.
  Result run(Backend& backend, const std::vector<int>& rows, SharedExpert handed = SharedExpert::kAsOutput) const {
    const auto view = [&](const cpu::SampleMatrix SampleExperts::* sample, const std::vector<float>& values, std::int64_t rows,
                          std::int64_t columns) {
      return quantised != nullptr ? (quantised->*sample).view : dense(values, kExperts, rows, columns);
    };
    LinearSource gate_up_source{"gate_up",
                                {view(&SampleExperts::gate, gate, kWidth, kHidden), view(&SampleExperts::up, up, kWidth, kHidden)},
                                {}, {}, false};
    gate_up_source.paired_halves = quantised != nullptr;  // as models load them; CUDA's fastest kernels ask for it
    const auto gate_up = backend.load_linear(gate_up_source);
    const auto down_weight = backend.load_linear({"down", {view(&SampleExperts::down, down, kHidden, kWidth)}, {}, {}, false});
    const auto pick = [&](const std::vector<float>& values, std::int64_t width) {
      std::vector<float> picked;
      for (const int row : rows) {
        picked.insert(picked.end(), values.begin() + row * width, values.begin() + (row + 1) * width);
      }
      return picked;
    };
    const auto picked_x = pick(x, kHidden), picked_logits = pick(logits, kExperts);
    const auto picked_shared = pick(shared_output, kHidden), picked_gate = pick(shared_gate, 3);
    std::vector<std::byte> input;
    for (const float value : picked_x) {
      const Bf16 rounded = to_bf16(value);
      const float widened = to_float(rounded);
      const auto* bytes = backend.info().activation_bytes == 2 ? reinterpret_cast<const std::byte*>(&rounded)
                                                               : reinterpret_cast<const std::byte*>(&widened);
      input.insert(input.end(), bytes, bytes + backend.info().activation_bytes);
    }
    Result result;
    result.residual = pick(residual, kHidden);
    result.chosen.resize(rows.size() * static_cast<std::size_t>(top_k));
    MoeParams params;
    params.x = activations(input);
    params.router_logits = picked_logits.data();
    params.router_stride = kExperts;
    params.rows = static_cast<std::int64_t>(rows.size());
    params.experts = kExperts;
    params.top_k = top_k;
    params.normalise_top_k = normalise;
    params.kind = kind;
    params.gate_up = gate_up.get();
    params.down = down_weight.get();
    params.shared_output = shared ? picked_shared.data() : nullptr;
    params.shared_gate = picked_gate.data();
    params.shared_gate_stride = 3;
    params.residual = result.residual.data();
    params.chosen_experts = result.chosen.data();
    if (shared_expert == nullptr) {
      backend.moe(params);
      return result;
    }
    LinearSource shared_source{"gate_up", {shared_expert->gate.view, shared_expert->up.view}, {}, {}, false};
    shared_source.paired_halves = true;
    const auto shared_gate_up = backend.load_linear(shared_source);
    const auto shared_down = backend.load_linear({"down", {shared_expert->down.view}, {}, {}, false});
    params.shared_output = nullptr;
    params.shared_gate_up = shared_gate_up.get();
    params.shared_down = shared_down.get();
    std::vector<float> output;
    if (handed == SharedExpert::kAsLayers) {
      result.ran_shared = backend.moe_runs_shared(params);
    }
    if (!result.ran_shared) {
      output = run_shared(backend, params);
      params.shared_output = output.data();
    }
    backend.moe(params);
    return result;
  }

 private:
  /// The shared expert's output by the operations for single layers.
  static std::vector<float> run_shared(Backend& backend, const MoeParams& params) {
    const auto rows = static_cast<std::size_t>(params.rows);
    const auto width = static_cast<std::size_t>(params.shared_down->columns());
    std::vector<float> gate_up(rows * 2 * width), output(rows * kHidden);
    std::vector<std::byte> inner(rows * width * static_cast<std::size_t>(backend.info().activation_bytes));
    const auto linear = [&](const Linear* weight, const Activation* x, std::vector<float>& y) {
      LinearParams call;
      call.weight = weight;
      call.x = x;
      call.rows = params.rows;
      call.y = y.data();
      call.y_stride = weight->rows();
      backend.linear(call);
    };
    linear(params.shared_gate_up, params.x, gate_up);
    backend.gated_activation({gate_up.data(), params.rows, params.shared_down->columns(), params.kind, activations(inner)});
    linear(params.shared_down, activations(inner), output);
    return output;
  }
};

/// Scales of a size that keeps products near 1, whatever holds them.
cpu::SampleMatrix make_experts(const cpu::SampleFormat& format, std::int64_t rows, std::int64_t columns, std::mt19937& random,
                               std::int64_t experts = kExperts) {
  cpu::SampleMatrix sample = cpu::make_sample(format, experts, rows, columns, random);
  const float step = 0.5f / static_cast<float>(1 << format.bits);
  std::uniform_real_distribution<float> scales(0.5f * step, step);
  const bool wide = format.scale_format == WeightFormat::kF32;
  const std::size_t size = wide ? 4 : 2;
  for (std::size_t at = 0; at < sample.scales.size(); at += size) {
    const float scale = to_float(to_bf16(scales(random))), bias = -scale * static_cast<float>((1 << format.bits) - 1) / 2;
    const Bf16 halves[2] = {to_bf16(scale), to_bf16(bias)};
    std::memcpy(&sample.scales[at], wide ? static_cast<const void*>(&scale) : &halves[0], size);
    std::memcpy(&sample.biases[at], wide ? static_cast<const void*>(&bias) : &halves[1], size);
  }
  return sample;
}

std::vector<int> all_rows() {
  std::vector<int> rows(kRows);
  for (int row = 0; row < kRows; ++row) rows[static_cast<std::size_t>(row)] = row;
  return rows;
}

TEST_F(Moe, IsCloseToTheReference) {
  auto reference = make_reference_backend(Rounding::kBackend);
  for (const bool plain : {false, true}) {
    Layer layer;
    layer.normalise = !plain;
    layer.shared = !plain;
    layer.kind = plain ? ActivationKind::kGeluTanh : ActivationKind::kSilu;
    layer.top_k = plain ? 1 : 3;
    const Result expected = layer.run(*reference, all_rows());
    for (const std::string& path : available_paths()) {
      auto backend = backend_under_test(2, path);
      const Result actual = layer.run(*backend, all_rows());
      EXPECT_EQ(actual.chosen, expected.chosen);
      EXPECT_TRUE(close_to(actual.residual, expected.residual, 0.05f, 0.002f));
    }
  }
}

/// Codes of every width with the most scales that a block can have.
TEST_F(Moe, QuantisedExpertsAreCloseToTheReferenceAndARowIsTheSameInAnyBatch) {
  auto reference = make_reference_backend(Rounding::kBackend);
  std::mt19937 random(9);
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const WeightFormat scales : {WeightFormat::kBF16, WeightFormat::kF32}) {
      const cpu::SampleFormat format = {WeightFormat::kAffine, bits, 32, scales};
      const SampleExperts experts = {make_experts(format, 32, kHidden, random), make_experts(format, 32, kHidden, random),
                                     make_experts(format, kHidden, 32, random)};
      Layer layer;
      layer.quantised = &experts;
      const Result expected = layer.run(*reference, all_rows());
      for (const std::string& path : available_paths()) {
        const std::string what = path + ", " + sample_format_name(format);
        auto backend = backend_under_test(2, path);
        const Result all = layer.run(*backend, all_rows());
        EXPECT_EQ(all.chosen, expected.chosen) << what;
        EXPECT_TRUE(close_to(all.residual, expected.residual, 0.05f, 0.005f)) << what;
        for (const int count : {1, 2, 7, 16, 40}) {
          std::vector<int> rows = all_rows();
          rows.resize(static_cast<std::size_t>(count));
          const Result batch = layer.run(*backend, rows);
          for (std::size_t row = 0; row < rows.size(); ++row) {
            ASSERT_TRUE(same_bits(batch.row(row), all.row(row))) << what << ", row " << row << " of " << count;
          }
        }
      }
    }
  }
}

#if defined(TENSORFOLD_TEST_CUDA)
/// The GPU computes a shared expert among the others where it is stored like them and rows are few.
TEST_F(Moe, ASharedExpertHasTheSameBitsAsLayersAndAsAnOutput) {
  std::mt19937 random(10);
  for (const int bits : {4, 8}) {
    const cpu::SampleFormat format = {WeightFormat::kAffine, bits, 32, WeightFormat::kBF16};
    const SampleExperts experts = {make_experts(format, 32, kHidden, random), make_experts(format, 32, kHidden, random),
                                   make_experts(format, kHidden, 32, random)};
    const SampleExperts shared = {make_experts(format, 32, kHidden, random, 1), make_experts(format, 32, kHidden, random, 1),
                                  make_experts(format, kHidden, 32, random, 1)};
    Layer layer;
    layer.quantised = &experts;
    layer.shared_expert = &shared;
    layer.logits[3 * kExperts] = NAN;
    for (const std::string& path : available_paths()) {
      auto backend = backend_under_test(1, path);
      for (const int count : {1, 2, 7, 8, 9, 16, 40}) {
        std::vector<int> rows = all_rows();
        rows.resize(static_cast<std::size_t>(count));
        const Result expected = layer.run(*backend, rows), actual = layer.run(*backend, rows, SharedExpert::kAsLayers);
        const std::string what = path + ", " + sample_format_name(format) + ", rows " + std::to_string(count);
        // From 9 to 16 rows a format's shared memory decides.
        if (count <= 8) {
          EXPECT_TRUE(actual.ran_shared) << what;
        } else if (count > 16) {
          EXPECT_FALSE(actual.ran_shared) << what;
        }
        for (std::size_t row = 0; row < rows.size(); ++row) {
          if (row == 3) continue;  // NaN, of no promised bits
          ASSERT_TRUE(same_bits(actual.row(row), expected.row(row))) << what << ", row " << row;
        }
      }
    }
  }
}
#endif

TEST_F(Moe, ARowAloneIsThatRowInAnyBatch) {
  const Layer layer;
  auto plain = backend_under_test(1, available_paths().front());
  std::vector<Result> alone;
  for (int row = 0; row < kRows; ++row) alone.push_back(layer.run(*plain, {row}));
  for (const std::string& path : available_paths()) {
    for (const int threads : thread_counts({1, 2, 5})) {
      auto backend = backend_under_test(threads, path);
      for (int count = 1; count <= kRows; count += count < 17 ? 1 : 12) {
        std::vector<int> rows = all_rows();
        std::shuffle(rows.begin(), rows.end(), std::mt19937(static_cast<unsigned>(count)));
        rows.resize(static_cast<std::size_t>(count));
        const Result batch = layer.run(*backend, rows);
        for (std::size_t i = 0; i < rows.size(); ++i) {
          ASSERT_TRUE(same_bits(batch.row(i), alone[static_cast<std::size_t>(rows[i])].residual)) << path;
        }
      }
    }
  }
}

TEST_F(Moe, TiesGoToTheLowerExpert) {
  Layer layer;
  std::fill(layer.logits.begin(), layer.logits.end(), 0.5f);
  auto backend = backend_under_test(2);
  const Result result = layer.run(*backend, {0, 1});
  EXPECT_EQ(result.chosen, (std::vector<std::int32_t>{0, 1, 2, 0, 1, 2}));
}

TEST_F(Moe, ANonFiniteRouterSpoilsItsOwnRowOnly) {
  Layer layer;
  auto backend = backend_under_test(2);
  const Result clean = layer.run(*backend, all_rows());
  layer.logits[5 * kExperts + 2] = NAN;
  layer.logits[7 * kExperts] = INFINITY;
  std::fill_n(layer.x.begin() + 7 * kHidden, kHidden, NAN);
  const Result dirty = layer.run(*backend, all_rows());
  for (std::size_t row = 0; row < kRows; ++row) {
    if (row == 5 || row == 7) {
      for (const float value : dirty.row(row)) EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_TRUE(same_bits(dirty.row(row), clean.row(row)));
    }
  }
}

}  // namespace
}  // namespace tensorfold::ops
