// The keyed sampler: noise goldens, the fast host path against the plain definition, distribution and uniformity.
#include "engine/host_sampler.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <numeric>
#include <random>

#include "naive_sampler.h"

namespace tensorfold {
namespace {

std::vector<float> random_logits(std::mt19937_64& random, int count, int shape) {
  std::vector<float> logits(static_cast<std::size_t>(count));
  std::normal_distribution<float> normal(0.0f, shape % 3 == 0 ? 1.0f : shape % 3 == 1 ? 6.0f : 0.01f);
  for (float& logit : logits) {
    logit = normal(random);
    if (shape % 4 == 1) logit = std::round(logit * 2.0f) / 2.0f;  // many ties, signed zeros
    if (shape % 5 == 2 && random() % 3 == 0) logit = -INFINITY;
    if (shape % 7 == 3 && random() % 4 == 0) logit = random() % 2 == 0 ? 0.0f : -0.0f;
    if (shape % 11 == 4 && random() % 4 == 0) logit = random() % 2 == 0 ? 1e-42f : -1e-42f;  // denormals
  }
  return logits;
}

SamplingRule random_rule(std::mt19937_64& random) {
  const double temperatures[] = {0.0, 1.0, 0.7, 1.5, 1e-9, 20.0};
  const std::int32_t top_ks[] = {0, 0, 1, 2, 20, 64, 256, 257, 300, 600, 4000, 100000};
  const double top_ps[] = {1.0, 1.0, 0.95, 0.5, 0.999999, 1e-9, 0.0};
  const double min_ps[] = {0.0, 0.0, 0.05, 0.9, 1.0, 1e-300};
  SamplingRule rule;
  rule.temperature = temperatures[random() % std::size(temperatures)];
  rule.top_k = top_ks[random() % std::size(top_ks)];
  rule.top_p = top_ps[random() % std::size(top_ps)];
  rule.min_p = min_ps[random() % std::size(min_ps)];
  rule.seed = random();
  return rule;
}

TEST(Sampler, NoiseMatchesAnIndependentEvaluation) {
  // Evaluated with Python's integers from the formulas of engine.md 2.1.
  EXPECT_EQ(sampling::request_key(0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(sampling::request_key(1234), 0xbb0cf61b2f181cdbu);
  EXPECT_EQ(sampling::noise_bits(sampling::row_key(sampling::request_key(1234), 77), 4242), 0x4e9c8eae6fa80u);
  EXPECT_EQ(sampling::uniform(0), 0x1p-54);
  EXPECT_EQ(sampling::uniform((1ull << 53) - 1), 1.0);
  EXPECT_EQ(sampling::gumbel((1ull << 53) - 1), INFINITY);
  EXPECT_NEAR(sampling::gumbel(1ull << 52), -std::log(std::log(2.0)), 1e-15);
}

TEST(Sampler, NucleusNeedIsExact) {
  EXPECT_EQ(sampling::nucleus_need(1000, 0.5), 500u);
  EXPECT_EQ(sampling::nucleus_need(1001, 0.5), 501u);
  EXPECT_EQ(sampling::nucleus_need(10, 0.9), 10u);  // the double 0.9 is above 9/10
  EXPECT_EQ(sampling::nucleus_need(10, 0.3), 3u);   // the double 0.3 is below 3/10
  EXPECT_EQ(sampling::nucleus_need(1ull << 61, 0.75), 3ull << 59);
  EXPECT_EQ(sampling::nucleus_need(1ull << 61, 5e-324), 1u);
  EXPECT_EQ(sampling::nucleus_need(5, 0x1.fffffffffffffp-1), 5u);
}

TEST(Sampler, FastEqualsTheDefinitionOnEveryPath) {
  std::mt19937_64 random(7);
  std::vector<const sampling::SamplerLoops*> tables = {&sampling::sampler_loops_baseline()};
  if (sampling::sampler_loops_avx2() != nullptr) tables.push_back(sampling::sampler_loops_avx2());
  const int sizes[] = {1, 2, 31, 63, 64, 65, 127, 1000, 5003};
  for (int trial = 0; trial < 6000; ++trial) {
    const int count = sizes[random() % std::size(sizes)];
    const std::vector<float> logits = random_logits(random, count, trial);
    std::vector<std::uint32_t> allowed(static_cast<std::size_t>(count + 31) / 32);
    for (std::uint32_t& word : allowed) word = static_cast<std::uint32_t>(random() & random());
    const bool masked = trial % 3 == 0;
    const SamplingRule rule = random_rule(random);
    const std::int64_t position = static_cast<std::int64_t>(random() % 100000);
    const Draw expected = testing::naive_draw(logits, masked ? &allowed : nullptr, rule, position);
    for (const sampling::SamplerLoops* table : tables) {
      HostSampler sampler(count, *table);
      const Draw drawn = sampler.draw(logits.data(), masked ? allowed.data() : nullptr, rule, position);
      ASSERT_EQ(drawn.status, expected.status) << "trial " << trial;
      ASSERT_EQ(drawn.token, expected.token) << "trial " << trial << " count " << count << " T " << rule.temperature
                                             << " k " << rule.top_k << " p " << rule.top_p << " min_p " << rule.min_p;
    }
  }
}

// Prompts, replies and paths of few ids, so that most counts are above one; every mask, filter and adjustment together.
TEST(Sampler, AdjustedDrawsEqualTheDefinition) {
  std::mt19937_64 random(17);
  const auto tokens = [&random](std::size_t length, int count) {
    std::vector<std::int32_t> ids(length);
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(count));
    return ids;
  };
  const double penalties[] = {1.0, 1.0, 1.3, 0.5, 1e-300, 1e300};
  const double shifts[] = {0.0, 0.0, 0.5, 2.0, -1.5, 1e300};
  int changed = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    const int count = trial % 5 == 0 ? 1201 : 40;
    const std::vector<float> logits = random_logits(random, count, trial);
    LogitRule rule;
    rule.repetition_penalty = penalties[random() % std::size(penalties)];
    rule.frequency_penalty = shifts[random() % std::size(shifts)];
    rule.presence_penalty = shifts[random() % std::size(shifts)];
    for (std::int32_t id = 0; id < count && trial % 2 == 0; id += 1 + static_cast<std::int32_t>(random() % 9)) {
      rule.bias.push_back({id, static_cast<double>(random() % 201) - 100.0});
    }
    const std::vector<std::int32_t> prompt = tokens(random() % 30, count), reply = tokens(random() % 30, count),
                                    path = tokens(random() % 17, count);
    LogitAdjust adjust(rule, prompt);
    for (const std::int32_t token : reply) adjust.commit(token);
    std::vector<AdjustedLogit> adjusted;
    adjust.collect(logits.data(), path, adjusted);
    std::vector<std::int32_t> counted = reply;
    counted.insert(counted.end(), path.begin(), path.end());
    const std::vector<float> expected_row = testing::naive_adjust(logits, rule, prompt, counted);
    std::vector<float> row = logits;
    for (const AdjustedLogit& change : adjusted) row[static_cast<std::size_t>(change.token)] = change.logit;
    ASSERT_EQ(row, expected_row) << "trial " << trial;

    std::vector<std::uint32_t> allowed(static_cast<std::size_t>(count + 31) / 32);
    for (std::uint32_t& word : allowed) word = static_cast<std::uint32_t>(random() & random());
    const bool masked = trial % 3 == 0;
    const SamplingRule sampling = random_rule(random);
    HostSampler sampler(count);
    const Draw expected = testing::naive_draw(expected_row, masked ? &allowed : nullptr, sampling, trial);
    const Draw drawn = sampler.draw(logits.data(), masked ? allowed.data() : nullptr, sampling, trial, adjusted);
    ASSERT_EQ(drawn.status, expected.status) << "trial " << trial;
    ASSERT_EQ(drawn.token, expected.token) << "trial " << trial;
    changed += testing::naive_draw(logits, masked ? &allowed : nullptr, sampling, trial).token != expected.token;
    // A path that was looked at leaves nothing behind, and committing it says the same.
    adjust.collect(logits.data(), {}, adjusted);
    for (const std::int32_t token : path) adjust.commit(token);
    adjust.collect(logits.data(), {}, adjusted);
    row = logits;
    for (const AdjustedLogit& change : adjusted) row[static_cast<std::size_t>(change.token)] = change.logit;
    ASSERT_EQ(row, expected_row) << "trial " << trial;
  }
  EXPECT_GT(changed, 1000);  // the adjustments must matter
}

TEST(Sampler, ATopKOfTheWholeVocabularyIsNone) {
  std::mt19937_64 random(23);
  for (int trial = 0; trial < 300; ++trial) {
    const int count = 300 + trial;
    const std::vector<float> logits = random_logits(random, count, trial);
    HostSampler sampler(count);
    SamplingRule rule = random_rule(random);
    rule.top_k = 0;
    const std::int32_t all = sampler.draw(logits.data(), nullptr, rule, trial).token;
    rule.top_k = count;
    ASSERT_EQ(sampler.draw(logits.data(), nullptr, rule, trial).token, all) << trial;
  }
}

TEST(Sampler, WideNucleusOverALargeVocabulary) {
  std::mt19937_64 random(11);
  const int count = 151'936;
  HostSampler sampler(count);
  for (int trial = 0; trial < 12; ++trial) {
    const std::vector<float> logits = random_logits(random, count, trial);
    SamplingRule rule;
    rule.temperature = 1.0 + trial;
    rule.top_p = trial % 2 == 0 ? 0.999 : 0.5;
    rule.top_k = trial % 3 == 0 ? 0 : 20'000;
    rule.seed = random();
    const Draw expected = testing::naive_draw(logits, nullptr, rule, trial);
    ASSERT_EQ(sampler.draw(logits.data(), nullptr, rule, trial).token, expected.token) << trial;
  }
}

TEST(Sampler, NonFiniteLogitsAreReported) {
  for (const float value : {NAN, -NAN, INFINITY}) {
    for (const int at : {0, 15, 16, 63, 64, 99}) {
      std::vector<float> logits(100, 0.5f);
      HostSampler sampler(100);
      EXPECT_TRUE(sampler.is_finite(logits.data()));
      logits[static_cast<std::size_t>(at)] = value;
      EXPECT_EQ(sampler.draw(logits.data(), nullptr, {}, 0).status, DrawStatus::kNotFinite);
      TokenLogprob chosen;
      std::vector<TokenLogprob> top;
      EXPECT_FALSE(sampler.logprobs(logits.data(), 0, 3, chosen, top));
    }
  }
  std::vector<float> logits(100, -INFINITY);
  HostSampler sampler(100);
  EXPECT_EQ(sampler.draw(logits.data(), nullptr, {}, 0).status, DrawStatus::kNoneAllowed);
  logits[40] = -3.0f;
  SamplingRule rule;
  rule.temperature = 1.0;
  EXPECT_EQ(sampler.draw(logits.data(), nullptr, rule, 0).token, 40);
}

// 100,000 keyed draws (one position each) against the exact probabilities.
double chi_square(const std::vector<float>& logits, const SamplingRule& rule, const std::vector<double>& probability) {
  constexpr int kDraws = 100'000;
  HostSampler sampler(static_cast<std::int32_t>(logits.size()));
  std::vector<int> counts(logits.size());
  for (int position = 0; position < kDraws; ++position) {
    ++counts[static_cast<std::size_t>(sampler.draw(logits.data(), nullptr, rule, position).token)];
  }
  double sum = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = probability[i] * kDraws;
    if (probability[i] == 0.0) {
      EXPECT_EQ(counts[i], 0) << i;
    } else {
      sum += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
  }
  return sum;
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature, std::size_t kept) {
  std::vector<double> probability(logits.size(), 0.0);
  double total = 0;
  for (std::size_t i = 0; i < kept; ++i) total += probability[i] = std::exp(logits[i] / temperature);
  for (double& p : probability) p /= total;
  return probability;
}

TEST(Sampler, DrawsFollowTheDistribution) {
  std::vector<float> logits;
  for (int i = 0; i < 20; ++i) logits.push_back(2.0f - 0.2f * static_cast<float>(i));
  SamplingRule rule;
  rule.seed = 99;
  rule.temperature = 1.0;
  EXPECT_LT(chi_square(logits, rule, softmax(logits, 1.0, 20)), 50.0);  // 19 degrees of freedom: p = 1e-4 at 50.8
  rule.temperature = 0.6;
  rule.top_k = 8;
  EXPECT_LT(chi_square(logits, rule, softmax(logits, 0.6, 8)), 30.0);  // 7 degrees of freedom: p = 1e-4 at 29.9
  // top-p 0.5 at T 1: probabilities 0.185, 0.151, 0.124, 0.101 reach 0.56 with the fourth.
  rule = {};
  rule.seed = 5;
  rule.temperature = 1.0;
  rule.top_p = 0.5;
  EXPECT_LT(chi_square(logits, rule, softmax(logits, 1.0, 4)), 24.0);
  // min-p 0.5: within ln 2 = 0.693 of the best, so 2.0, 1.8, 1.6, 1.4.
  rule.top_p = 1.0;
  rule.min_p = 0.5;
  EXPECT_LT(chi_square(logits, rule, softmax(logits, 1.0, 4)), 24.0);
}

TEST(Sampler, NoiseIsUniform) {
  constexpr int kBins = 256, kDraws = 1 << 20;
  std::vector<int> by_position(kBins), by_token(kBins);
  const std::uint64_t request = sampling::request_key(3);
  const std::uint64_t row = sampling::row_key(request, 12);
  for (int i = 0; i < kDraws; ++i) {
    const auto bin = [](std::uint64_t noise) { return static_cast<std::size_t>(sampling::uniform(noise) * kBins); };
    ++by_position[std::min<std::size_t>(bin(sampling::noise_bits(sampling::row_key(request, i), 7)), kBins - 1)];
    ++by_token[std::min<std::size_t>(bin(sampling::noise_bits(row, i)), kBins - 1)];
  }
  for (const std::vector<int>* counts : {&by_position, &by_token}) {
    double sum = 0;
    for (const int count : *counts) sum += std::pow(count - kDraws / kBins, 2) / (kDraws / kBins);
    EXPECT_LT(sum, 350.0);  // 255 degrees of freedom: p = 1e-4 at 347
  }
}

TEST(Sampler, LogprobsAreTheRawDistribution) {
  std::mt19937_64 random(5);
  for (const int count : {1, 5, 64, 777}) {
    const std::vector<float> logits = random_logits(random, count, 1);
    HostSampler sampler(count);
    long double total = 0;
    for (const float logit : logits) total += std::exp(static_cast<long double>(logit));
    TokenLogprob chosen;
    std::vector<TokenLogprob> top;
    ASSERT_TRUE(sampler.logprobs(logits.data(), count / 2, 5, chosen, top));
    EXPECT_EQ(chosen.token, count / 2);
    EXPECT_NEAR(chosen.logprob, logits[static_cast<std::size_t>(count / 2)] - std::log(total), 1e-5);
    ASSERT_EQ(top.size(), static_cast<std::size_t>(std::min(5, count)));
    for (std::size_t i = 1; i < top.size(); ++i) {
      EXPECT_TRUE(top[i - 1].logprob > top[i].logprob ||
                  (top[i - 1].logprob == top[i].logprob && top[i - 1].token < top[i].token));
    }
    EXPECT_EQ(top[0].logprob, static_cast<float>(*std::max_element(logits.begin(), logits.end()) - std::log(total)));
    TokenLogprob again;
    HostSampler baseline(count, sampling::sampler_loops_baseline());
    ASSERT_TRUE(baseline.logprobs(logits.data(), count / 2, 0, again, top));
    EXPECT_EQ(again.logprob, chosen.logprob);
  }
}

TEST(Sampler, ADrawOverALargeVocabularyIsQuick) {
  std::mt19937_64 random(3);
  const int count = 262'144;
  const std::vector<float> logits = random_logits(random, count, 0);
  HostSampler sampler(count);
  const SamplingRule rules[] = {{0.0, 0, 1.0, 0.0, 1},   {1.0, 0, 1.0, 0.0, 1},       {1.0, 0, 0.95, 0.0, 1},
                                {1.0, 20, 0.95, 0.0, 1}, {1.0, 50'000, 0.95, 0.0, 1}, {1.0, 0, 1.0, 0.05, 1}};
  for (const SamplingRule& rule : rules) {
    double best = 1e9;
    for (int repeat = 0; repeat < 12; ++repeat) {
      const auto start = std::chrono::steady_clock::now();
      sampler.draw(logits.data(), nullptr, rule, repeat);
      best =
          std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    }
    std::printf("[ report   ] T %.1f top_k %d top_p %.2f min_p %.2f: %.3f ms\n", rule.temperature, rule.top_k,
                rule.top_p, rule.min_p, best);
    EXPECT_LT(best, 200.0);  // a bound that only an accidental sort of everything would break, sanitizers included
  }
}

}  // namespace
}  // namespace tensorfold
