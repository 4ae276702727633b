// Linear layers (stacking, row orders, bias, accumulation, rounding), norms, gated activations and expert routing.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/bf16.h"
#include "ops/reference/reference_backend.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace tensorfold::ops {
namespace {

WeightView dense(const std::vector<float>& values, std::int64_t rows, std::int64_t columns, std::int64_t experts = 1) {
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

const Activation* activations(const std::vector<float>& values) {
  return reinterpret_cast<const Activation*>(values.data());
}
Activation* activations(std::vector<float>& values) {
  return reinterpret_cast<Activation*>(values.data());
}

TEST(ReferenceLinear, StacksPartsReordersRowsAddsBias) {
  const std::vector<float> first = {1, 2, 3, 4};  // [2, 2]
  const std::vector<float> second = {5, 6};       // [1, 2]
  LinearSource source{"stack", {dense(first, 2, 2), dense(second, 1, 2)}, {{1, 0}, {}}, {10, 20, 30}, false};
  const auto backend = make_reference_backend(Rounding::kNone);
  const auto weight = backend->load_linear(source);
  EXPECT_EQ(weight->rows(), 3);
  const std::vector<float> x = {9, 9, 1, 10};
  std::vector<float> y(8, 1.0f);
  const std::int32_t index[] = {1};
  LinearParams params;
  params.weight = weight.get();
  params.x = activations(x);
  params.rows = 1;
  params.y = y.data();
  params.y_stride = 4;
  params.row_index = index;
  backend->linear(params);
  EXPECT_EQ(y, (std::vector<float>{53, 41, 95, 1, 1, 1, 1, 1}));
  params.accumulate = true;
  backend->linear(params);
  EXPECT_EQ(y, (std::vector<float>{106, 82, 190, 1, 1, 1, 1, 1}));
  params.rows = 0;
  params.x = nullptr;
  backend->linear(params);  // does nothing
}

TEST(ReferenceLinear, RoundsWeightsOnlyWhenAskedTo) {
  const std::vector<float> values = {1.001f, 0.3f};
  LinearSource source{"round", {dense(values, 2, 1)}, {}, {}, true};
  const std::vector<std::int32_t> tokens = {1, 0};
  for (const Rounding rounding : {Rounding::kNone, Rounding::kBackend}) {
    const auto backend = make_reference_backend(rounding);
    const auto table = backend->load_linear(source);
    std::vector<float> out(2);
    EmbedParams params{table.get(), tokens.data(), 2, 2.0f, out.data()};
    backend->embed(params);
    const auto seen = [&](float value) { return rounding == Rounding::kNone ? value : to_float(to_bf16(value)); };
    EXPECT_EQ(out, (std::vector<float>{seen(0.3f) * 2.0f, seen(1.001f) * 2.0f}));
  }
}

#if defined(__SSE2__)
TEST(ReferenceLinear, KeepsDenormalsEvenAfterKernelsThatFlush) {
  const std::vector<float> values = {1e-40f};
  LinearSource source{"denormal", {dense(values, 1, 1)}, {}, {}, false};
  const auto backend = make_reference_backend(Rounding::kNone);
  const auto weight = backend->load_linear(source);
  const std::vector<float> x = {2.0f};
  float y = 0.0f;
  LinearParams params;
  params.weight = weight.get();
  params.x = activations(x);
  params.rows = 1;
  params.y = &y;
  params.y_stride = 1;
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040u);
  backend->linear(params);
  _mm_setcsr(mode);
  EXPECT_EQ(y, 2.0f * 1e-40f);
}
#endif

TEST(ReferenceNorm, WeightsEpsilonIndexAndAddition) {
  const auto backend = make_reference_backend(Rounding::kNone);
  const std::vector<float> x = {0, 0, 0, 3, 4, 99};  // stride 3, width 2
  const std::vector<float> weight = {2, -1};
  const std::int32_t index[] = {1, 0};
  std::vector<float> out(4);
  RmsNormParams params;
  params.x = x.data();
  params.x_stride = 3;
  params.weight = weight.data();
  params.epsilon = 0.5f;
  params.rows = 2;
  params.width = 2;
  params.out = activations(out);
  params.row_index = index;
  backend->rms_norm(params);
  const float inverse = 1.0f / std::sqrt(13.0f);  // (9 + 16) / 2 + 0.5
  EXPECT_FLOAT_EQ(out[0], 6.0f * inverse);
  EXPECT_FLOAT_EQ(out[1], -4.0f * inverse);
  EXPECT_EQ(out[2], 0.0f);

  std::vector<float> residual = {1, 1};
  RmsNormAddParams add;
  add.x = x.data() + 3;
  add.epsilon = 0.5f;
  add.rows = 1;
  add.width = 2;
  add.residual = residual.data();
  backend->rms_norm_add(add);
  EXPECT_FLOAT_EQ(residual[0], 1.0f + 3.0f * inverse);
  EXPECT_FLOAT_EQ(residual[1], 1.0f + 4.0f * inverse);
}

TEST(ReferenceElementwise, Activations) {
  const auto backend = make_reference_backend(Rounding::kNone);
  const std::vector<float> gate_up = {1.0f, -2.0f, 3.0f, 5.0f};
  std::vector<float> out(2);
  GatedActivationParams params{gate_up.data(), 1, 2, ActivationKind::kSilu, activations(out)};
  backend->gated_activation(params);
  EXPECT_FLOAT_EQ(out[0], 0.7310586f * 3.0f);
  EXPECT_FLOAT_EQ(out[1], -0.2384058f * 5.0f);
  params.kind = ActivationKind::kGeluTanh;
  backend->gated_activation(params);
  EXPECT_FLOAT_EQ(out[0], 0.8411920f * 3.0f);
  EXPECT_NEAR(out[1], -0.0454023f * 5.0f, 1e-6);
  std::vector<float> values = {30.0f, -1.0f};
  backend->soft_cap({values.data(), 2, 30.0f});
  EXPECT_FLOAT_EQ(values[0], 30.0f * 0.7615942f);
  EXPECT_NEAR(values[1], -0.99963f, 1e-5);
}

struct Experts {
  Experts() {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    gate_up.resize(4 * 6 * 2);
    down.resize(4 * 2 * 3);
    for (float& value : gate_up) value = normal(random);
    for (float& value : down) value = normal(random);
    backend = make_reference_backend(Rounding::kNone);
    gate_up_linear = backend->load_linear({"gate_up", {dense(gate_up, 6, 2, 4)}, {}, {}, false});
    down_linear = backend->load_linear({"down", {dense(down, 2, 3, 4)}, {}, {}, false});
  }
  /// down_e(silu(gate_e x) · up_e x), element i.
  double output(int expert, const float* x, int i) const {
    double sum = 0.0;
    for (int j = 0; j < 3; ++j) {
      const float* gate = gate_up.data() + (expert * 6 + j) * 2;
      const float* up = gate + 3 * 2;
      const double g = static_cast<double>(gate[0] * x[0] + gate[1] * x[1]);
      const double u = static_cast<double>(up[0] * x[0] + up[1] * x[1]);
      sum += static_cast<double>(down[static_cast<std::size_t>((expert * 2 + i) * 3 + j)]) *
             (g / (1.0 + std::exp(-g)) * u);
    }
    return sum;
  }
  MoeParams params() const {
    MoeParams result;
    result.experts = 4;
    result.router_stride = 4;
    result.top_k = 2;
    result.gate_up = gate_up_linear.get();
    result.down = down_linear.get();
    return result;
  }
  std::vector<float> gate_up, down;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Linear> gate_up_linear, down_linear;
};

TEST(ReferenceMoe, TiesGoToTheLowerIdAndWeightsFollowTheSlots) {
  const Experts experts;
  const std::vector<float> x = {0.5f, -1.0f};
  const std::vector<float> logits = {0.0f, 2.0f, 1.0f, 2.0f};
  const std::vector<float> shared = {7.0f, -3.0f};
  const float shared_gate = 0.0f;
  for (const bool normalise : {true, false}) {
    std::vector<float> residual = {1.0f, 2.0f};
    std::vector<std::int32_t> chosen(2);
    MoeParams params = experts.params();
    params.x = activations(x);
    params.router_logits = logits.data();
    params.rows = 1;
    params.normalise_top_k = normalise;
    params.shared_output = shared.data();
    params.shared_gate = &shared_gate;
    params.residual = residual.data();
    params.chosen_experts = chosen.data();
    experts.backend->moe(params);
    EXPECT_EQ(chosen, (std::vector<std::int32_t>{1, 3}));
    const double total = 1.0 + std::exp(1.0) + 2.0 * std::exp(2.0);
    const double weight = normalise ? 0.5 : std::exp(2.0) / total;
    for (int i = 0; i < 2; ++i) {
      const double expected = 1.0 + i + weight * (experts.output(1, x.data(), i) + experts.output(3, x.data(), i)) +
                              0.5 * static_cast<double>(shared[static_cast<std::size_t>(i)]);
      EXPECT_NEAR(residual[static_cast<std::size_t>(i)], expected, 1e-5);
    }
  }
}

TEST(ReferenceMoe, ARowWithoutFiniteLogitsIsNaNAndAloneSo) {
  const Experts experts;
  const std::vector<float> x = {0.5f, -1.0f, 0.25f, 2.0f};
  const std::vector<float> logits = {0.0f, NAN, 1.0f, 2.0f, 3.0f, 0.0f, 1.0f, 2.0f};
  std::vector<float> residual(4);
  MoeParams params = experts.params();
  params.x = activations(x);
  params.router_logits = logits.data();
  params.rows = 2;
  params.residual = residual.data();
  experts.backend->moe(params);
  EXPECT_TRUE(std::isnan(residual[0]) && std::isnan(residual[1]));
  std::vector<float> alone(2);
  const std::vector<float> second(x.begin() + 2, x.end());
  params.x = activations(second);
  params.router_logits = logits.data() + 4;
  params.rows = 1;
  params.residual = alone.data();
  experts.backend->moe(params);
  EXPECT_EQ(residual[2], alone[0]);
  EXPECT_EQ(residual[3], alone[1]);
  EXPECT_TRUE(std::isfinite(alone[0]));
}

}  // namespace
}  // namespace tensorfold::ops
