// Draws on the GPU equal the host sampler's, for every rule that the backend admits: ties, signed zeros, infinities, small
// and large vocabularies, rows of different rules in one call.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/host_sampler.h"
#include "ops/cuda/cuda_backend.h"

namespace tensorfold {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::unique_ptr<ops::Backend> device() {
  std::string reason;
  if (ops::cuda_devices(reason).empty()) return nullptr;
  ops::CudaBackendOptions options;
  options.pinned_buffers = true;
  return ops::make_cuda_backend(options);
}

std::vector<SamplingRule> rules() {
  std::vector<SamplingRule> result;
  for (const double temperature : {0.0, 0.7, 1.0}) {
    for (const std::int32_t top_k : {0, 1, 2, 20, 64}) {
      for (const double top_p : {1.0, 0.9, 0.3}) {
        for (const double min_p : {0.0, 0.05}) {
          for (std::uint64_t seed = 0; seed < 3; ++seed) result.push_back({temperature, top_k, top_p, min_p, seed});
        }
      }
    }
  }
  return result;
}

// Kinds of rows: 0 normal, 1 many ties, 2 ties at zero of both signs, 3 mostly -inf, 4 all equal, 5 a single candidate,
// 6 NaN, 7 +inf, 8 none.
void fill_row(float* row, std::int32_t vocabulary, int kind, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0f, 4.0f);
  for (std::int32_t i = 0; i < vocabulary; ++i) {
    const float value = normal(random);
    row[i] = value;
    if (kind == 1) row[i] = std::round(value);
    if (kind == 2) row[i] = random() % 2 != 0 ? 0.0f : -0.0f;
    if (kind == 3 && random() % 1000 != 0) row[i] = -kInfinity;
    if (kind == 4) row[i] = 1.5f;
    if (kind == 5 || kind == 8) row[i] = -kInfinity;
  }
  const std::size_t place = random() % static_cast<std::size_t>(vocabulary);
  if (kind == 5) row[place] = -3.0f;
  if (kind == 6) row[place] = NAN;
  if (kind == 7) row[place] = kInfinity;
}

std::int32_t host_draw(HostSampler& sampler, const float* logits, const ops::RowDraw& draw) {
  const Draw drawn = sampler.draw(logits, nullptr, draw.rule, draw.position);
  if (drawn.status == DrawStatus::kNotFinite) return ops::kDrawNotFinite;
  return drawn.status == DrawStatus::kNoneAllowed ? ops::kDrawNoneAllowed : drawn.token;
}

void expect_equal_draws(ops::Backend& backend, std::int32_t vocabulary, unsigned seed) {
  const auto all = rules();
  std::vector<ops::RowDraw> draws;
  for (const SamplingRule& rule : all) {
    if (!backend.can_draw(rule)) continue;
    draws.push_back({rule, static_cast<std::int64_t>(17 + draws.size() * 31), 1});
  }
  ASSERT_GT(draws.size(), 90u);
  draws[3].wanted = 0;
  const std::size_t rows = draws.size(), width = static_cast<std::size_t>(vocabulary);
  const auto logits = backend.allocate(rows * width * sizeof(float), "logits");
  const auto tokens = backend.allocate_host(rows * sizeof(std::int32_t), "tokens");
  auto* values = static_cast<float*>(logits->data());
  std::mt19937 random(seed);
  for (std::size_t row = 0; row < rows; ++row) {
    // Rules come in threes of one kind: the offset lets every rule meet every kind over the vocabularies.
    const int kind = static_cast<int>((row / 3 + static_cast<std::size_t>(vocabulary)) % 9);
    fill_row(values + row * width, vocabulary, kind, random);
  }
  auto* drawn = static_cast<std::int32_t*>(tokens->data());
  std::fill_n(drawn, rows, ops::kDrawPending);
  backend.draw({values, static_cast<std::int64_t>(rows), vocabulary, draws.data(), drawn});
  backend.await_draws(drawn, static_cast<std::int64_t>(rows));
  HostSampler sampler(vocabulary);
  for (std::size_t row = 0; row < rows; ++row) {
    const std::int32_t expected =
        draws[row].wanted != 0 ? host_draw(sampler, values + row * width, draws[row]) : ops::kDrawOnHost;
    const SamplingRule& rule = draws[row].rule;
    EXPECT_EQ(static_cast<const std::int32_t*>(tokens->data())[row], expected)
        << "row " << row << " of " << vocabulary << " ids: temperature " << rule.temperature << ", top_k " << rule.top_k
        << ", top_p " << rule.top_p << ", min_p " << rule.min_p;
  }
}

TEST(DeviceDraw, EqualsTheHostSampler) {
  const auto backend = device();
  if (!backend) GTEST_SKIP() << "no GPU";
  for (const std::int32_t vocabulary : {1, 7, 256, 8192, 8193, 49'152}) {
    expect_equal_draws(*backend, vocabulary, static_cast<unsigned>(vocabulary));
  }
}

TEST(DeviceDraw, EqualsTheHostSamplerOnLargeVocabularies) {
  const auto backend = device();
  if (!backend) GTEST_SKIP() << "no GPU";
  expect_equal_draws(*backend, 248'320, 5);
  expect_equal_draws(*backend, 1'000'003, 6);
}

TEST(DeviceDraw, NobodyWaitsForDrawsThatNothingMakes) {
  const auto backend = device();
  if (!backend) GTEST_SKIP() << "no GPU";
  const auto tokens = backend->allocate_host(4 * sizeof(std::int32_t), "tokens");
  auto* drawn = static_cast<std::int32_t*>(tokens->data());
  std::fill_n(drawn, 4, ops::kDrawPending);
  backend->await_draws(drawn, 4);
  EXPECT_EQ(drawn[3], ops::kDrawPending);
}

TEST(DeviceDraw, RefusesWhatOnlyTheHostDraws) {
  const auto backend = device();
  if (!backend) GTEST_SKIP() << "no GPU";
  EXPECT_FALSE(backend->can_draw({1.0, 65, 1.0, 0.0, 0}));
  EXPECT_FALSE(backend->can_draw({1.0, 0, 0.9, 0.0, 0}));
  EXPECT_FALSE(backend->can_draw({1.0, 0, 1.0, 0.1, 0}));
  EXPECT_TRUE(backend->can_draw({0.0, 0, 0.9, 0.1, 0}));
}

}  // namespace
}  // namespace tensorfold
