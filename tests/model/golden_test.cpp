// Every golden checkpoint on the reference backend, against the independent implementation's values: logits at all
// positions, the hidden state after each layer, and the experts chosen. The formulas stand or fall here.
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/checkpoint.h"
#include "model/executor.h"
#include "model/load.h"

#include "support/golden_case.h"
#include "support/model_backend.h"
#include "support/plan.h"

namespace tensorfold {
namespace {

using test::GoldenCase;

struct Trace {
  std::vector<float> logits;                          // [tokens, vocabulary]
  std::vector<std::vector<float>> hidden;             // [layer][tokens · hidden]
  std::map<std::int32_t, std::vector<std::int32_t>> experts;  // layer -> [tokens · top_k]
  std::int32_t vocabulary = 0;
};

// Runs all tokens in passes of `cut` rows.
Trace run(const GoldenCase& golden, std::unique_ptr<ops::Backend> backend, std::size_t cut, bool observes = true) {
  const auto tokens = golden.expected.at("input_ids").as<std::int32_t>();
  auto model = load_language_model(Checkpoint::open(golden.model), std::move(backend), {});
  auto& executor = dynamic_cast<Executor&>(*model);
  Trace trace;
  trace.vocabulary = model->facts().vocabulary_size;
  trace.hidden.resize(executor.description().layers.size());
  if (observes) executor.set_observer({[&](std::int32_t layer, const float* residual, std::int64_t rows) {
                           auto& all = trace.hidden[static_cast<std::size_t>(layer)];
                           all.insert(all.end(), residual, residual + rows * executor.description().hidden_size);
                         },
                         [&](std::int32_t layer, const std::int32_t* experts, std::int64_t rows, std::int32_t top_k) {
                           auto& all = trace.experts[layer];
                           all.insert(all.end(), experts, experts + rows * top_k);
                         }});
  test::allocate_for_one_lane(*model, static_cast<std::int32_t>(tokens.size()));
  for (std::size_t first = 0; first < tokens.size(); first += cut) {
    const auto part = std::span(tokens).subspan(first, std::min(cut, tokens.size() - first));
    ForwardResult result;
    model->forward(test::one_lane_plan(*model, part, static_cast<std::int32_t>(first)), result);
    trace.logits.insert(trace.logits.end(), result.logits,
                        result.logits + part.size() * static_cast<std::size_t>(trace.vocabulary));
  }
  return trace;
}

[[maybe_unused]] float largest(const std::vector<float>& values) {
  float result = 0.0f;
  for (const float value : values) result = std::max(result, std::abs(value));
  return result;
}

float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  float result = 0.0f;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    if (!(difference <= result)) result = difference;
  }
  return result;
}

[[maybe_unused]] void expect_same_experts(const GoldenCase& golden, const Trace& trace) {
  if (!golden.expected.contains("expert_ids")) return;
  const auto& tensor = golden.expected.at("expert_ids");
  const auto expected = tensor.as<std::int32_t>();
  const auto layers = golden.expected.at("expert_layers").as<std::int32_t>();
  const auto per_layer = static_cast<std::size_t>(tensor.shape[1] * tensor.shape[2]);
  const auto top_k = static_cast<std::size_t>(tensor.shape[2]);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto& chosen = trace.experts.at(layers[i]);
    ASSERT_EQ(chosen.size(), per_layer);
    for (std::size_t row = 0; row < per_layer; row += top_k) {
      std::vector<std::int32_t> ours(chosen.begin() + static_cast<std::ptrdiff_t>(row),
                                     chosen.begin() + static_cast<std::ptrdiff_t>(row + top_k));
      const auto* begin = expected.data() + i * per_layer + row;
      std::vector<std::int32_t> theirs(begin, begin + top_k);
      std::sort(ours.begin(), ours.end());
      std::sort(theirs.begin(), theirs.end());
      EXPECT_EQ(ours, theirs) << "layer " << layers[i] << " row " << row / top_k;
    }
  }
}

class Golden : public test::BackendTest<std::string> {};

#if !defined(TENSORFOLD_TEST_CUDA)  // the CPU's program has the reference

TEST_P(Golden, ReferenceMeetsTheIndependentImplementation) {
  const auto golden = test::read_golden_case(test::golden_directory(GetParam()));
  const auto trace = run(golden, ops::make_reference_backend(ops::Rounding::kNone), 512);
  const auto logits = golden.expected.at("logits").as<float>();
  EXPECT_LE(largest_difference(trace.logits, logits), 1e-4f * largest(logits));
  const auto& hidden = golden.expected.at("hidden");
  const auto all = hidden.as<float>();
  const auto per_layer = static_cast<std::ptrdiff_t>(hidden.shape[1] * hidden.shape[2]);
  ASSERT_EQ(hidden.shape[0], static_cast<std::int64_t>(trace.hidden.size()));
  for (std::size_t layer = 0; layer < trace.hidden.size(); ++layer) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(layer) * per_layer;
    const std::vector<float> expected(begin, begin + per_layer);
    EXPECT_LE(largest_difference(trace.hidden[layer], expected), 1e-4f * largest(expected)) << "layer " << layer;
  }
  expect_same_experts(golden, trace);
}

TEST_P(Golden, ReferenceIsTheSameForAnyCut) {
  const auto golden = test::read_golden_case(test::golden_directory(GetParam()));
  const auto whole = run(golden, ops::make_reference_backend(ops::Rounding::kNone), 512);
  const auto cut = run(golden, ops::make_reference_backend(ops::Rounding::kNone), 7);
  EXPECT_EQ(largest_difference(whole.logits, cut.logits), 0.0f);
}

#endif

// CPU and GPU round at the points of one-arithmetic.md rule 3. What an implementation that runs in bf16 throughout loses
// against the same fp32 values is stored with the case; they may not lose more than half as much again
// (families-a.md 9.5).
TEST_P(Golden, StaysInsideTheRoundingBound) {
  const auto golden = test::read_golden_case(test::golden_directory(GetParam()));
  const auto expected = golden.expected.at("logits").as<float>();
  const auto bf16_error = golden.expected.at("bf16_error").as<float>();
  const auto rounded = run(golden, test::backend_under_test(), 512, false);
  ASSERT_EQ(rounded.logits.size(), expected.size());
  double sum = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = static_cast<double>(rounded.logits[i]) - static_cast<double>(expected[i]);
    sum += difference * difference;
  }
  EXPECT_LE(std::sqrt(sum / static_cast<double>(expected.size())), 1.5 * static_cast<double>(bf16_error[1]));
}

// Rows that are computed twice have the same bits: layer by layer, the experts, the logits; however the prompt is cut,
// whether an observer looks (nothing is captured then), and on every variant of the backend.
TEST_P(Golden, IsTheSameForAnyCutAndVariant) {
  const auto golden = test::read_golden_case(test::golden_directory(GetParam()));
  const auto variants = test::backend_variants();
  const auto whole = run(golden, variants.front().make(), 512);
  for (const auto& variant : variants) {
    if (variant.name == "reference") continue;
    const auto observed = run(golden, variant.make(), 7);
    EXPECT_EQ(observed.experts, whole.experts) << variant.name;
    EXPECT_EQ(largest_difference(observed.logits, whole.logits), 0.0f) << variant.name;
    for (std::size_t layer = 0; layer < whole.hidden.size(); ++layer) {
      ASSERT_EQ(largest_difference(observed.hidden[layer], whole.hidden[layer]), 0.0f)
          << variant.name << ", layer " << layer;
    }
    for (const std::size_t cut : {1u, 3u, 512u}) {
      EXPECT_EQ(largest_difference(run(golden, variant.make(), cut, false).logits, whole.logits), 0.0f)
          << variant.name << ", " << cut << " rows a pass";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Golden, testing::ValuesIn(test::golden_case_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tensorfold
