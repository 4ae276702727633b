// The fold test on the fake model: the engine's own bookkeeping under random schedules. Real families follow the same
// way.
#include "engine/verify/fold.h"

#include <gtest/gtest.h>

#include <cmath>

#include "../engine/fake_model.h"

namespace tensorfold {
namespace {

std::unique_ptr<LanguageModel> fake(std::int32_t schedule) {
  testing::FakeModelOptions options;
  options.window = schedule % 3 == 0 ? 40 : schedule % 3 == 1 ? 64 : 129;
  options.pass_rows_max = schedule % 2 == 0 ? 48 : 200;
  options.vocabulary_size = 61 + schedule % 5;
  return std::make_unique<testing::FakeModel>(options);
}

TEST(Fold, FakeModelUnderRandomSchedules) {
  fold::Options options;
  options.schedules = 100;
  options.seed = 20260;
  options.prompt_tokens_max = 330;
  options.reply_tokens_max = 48;
  const fold::Report report = fold::run(fake, options);
  EXPECT_TRUE(report.passed()) << report.first_failure;
  EXPECT_GT(report.streams_cancelled, 0);
  EXPECT_GT(report.tokens_compared, 1000u);
  EXPECT_GT(report.chains, 200u);
  EXPECT_GT(report.trees, 200u);
  EXPECT_GT(report.copies, 0u);
  EXPECT_GT(report.preemptions, 0u);
  EXPECT_GT(report.wide_windows, 0u);
  for (std::size_t landed = 0; landed <= 15; ++landed) EXPECT_GT(report.windows_by_landed[landed], 0u) << landed;
  std::printf(
      "[ report   ] %llu chains and %llu trees of drafts, %llu streams with copies, %llu of %llu drafts landed\n",
      static_cast<unsigned long long>(report.chains), static_cast<unsigned long long>(report.trees),
      static_cast<unsigned long long>(report.copies), static_cast<unsigned long long>(report.accepted),
      static_cast<unsigned long long>(report.drafted));
  std::printf("[ report   ] %llu preemptions, %llu streams with wide windows\n",
              static_cast<unsigned long long>(report.preemptions),
              static_cast<unsigned long long>(report.wide_windows));
  std::printf("[ report   ] %d schedules, %d streams (%d cancelled), %llu rows, %llu tokens\n", report.schedules,
              report.streams, report.streams_cancelled, static_cast<unsigned long long>(report.rows_compared),
              static_cast<unsigned long long>(report.tokens_compared));
}

/// The test must be able to fail: a model whose rows depend on the pass they are in is caught.
class NeighbourModel : public testing::FakeModel {
 public:
  void forward(const RoundPlan& plan, ForwardResult& result) override {
    FakeModel::forward(plan, result);
    auto* logits = const_cast<float*>(result.logits);
    if (plan.rows.size() > 7 && !result.logits_rows.empty()) logits[0] += 1.0f;
  }
};

TEST(Fold, SeesARowThatDependsOnItsNeighbours) {
  fold::Options options;
  options.schedules = 3;
  const fold::Report report = fold::run([](std::int32_t) { return std::make_unique<NeighbourModel>(); }, options);
  EXPECT_FALSE(report.passed());
  EXPECT_NE(report.first_failure.find("differ"), std::string::npos) << report.first_failure;
}

/// Streams without logits: their tokens tell.
TEST(Fold, SeesAWrongTokenOfAStreamThatHidesItsLogits) {
  fold::Options options;
  options.schedules = 8;
  options.hidden_schedules = 1.0;
  const fold::Report right = fold::run(fake, options);
  EXPECT_TRUE(right.passed()) << right.first_failure;
  EXPECT_EQ(right.rows_compared, 0u);
  EXPECT_EQ(right.streams_without_logits, right.streams);
  EXPECT_GT(right.tokens_compared, 500u);
  const fold::Report wrong = fold::run([](std::int32_t) { return std::make_unique<NeighbourModel>(); }, options);
  EXPECT_FALSE(wrong.passed());
  EXPECT_NE(wrong.first_failure.find("reply token"), std::string::npos) << wrong.first_failure;
}

/// The last bit of one logit, wrong in wide passes of every fourth schedule alone.
class LastBitModel : public testing::FakeModel {
 public:
  void forward(const RoundPlan& plan, ForwardResult& result) override {
    FakeModel::forward(plan, result);
    auto* logits = const_cast<float*>(result.logits);
    if (plan.rows.size() > 7 && !result.logits_rows.empty()) logits[5] = std::nextafter(logits[5], 1e30f);
  }
};

TEST(Fold, SeesTheLastBitInAnyScheduleWhereNothingIsHidden) {
  for (std::int32_t wrong = 0; wrong < 4; ++wrong) {
    fold::Options options;
    options.schedules = 12;
    const auto make = [wrong](std::int32_t schedule) -> std::unique_ptr<LanguageModel> {
      if (schedule % 4 == wrong) return std::make_unique<LastBitModel>();
      return std::make_unique<testing::FakeModel>();
    };
    EXPECT_FALSE(fold::run(make, options).passed()) << wrong;
    options.hidden_streams = 0.4;
    EXPECT_FALSE(fold::run(make, options).passed()) << wrong;
  }
}

TEST(Fold, SchedulesMayShareAPlainRun) {
  fold::Options options;
  options.schedules = 20;
  options.schedules_per_plain_run = 3;
  options.waves = 2;
  options.prompt_cache_bytes_max = 1 << 20;
  int models = 0;
  const fold::Report shared = fold::run([&models](std::int32_t) { return ++models, fake(0); }, options);
  EXPECT_TRUE(shared.passed()) << shared.first_failure;
  EXPECT_EQ(shared.schedules, 20);
  EXPECT_EQ(models, 20 + 7);  // engines, plain runs
  EXPECT_GT(shared.streams_cancelled, 0);
  fold::Report parts;
  for (options.first = 0; options.first < 2; ++options.first) {
    options.step = 2;
    fold::add(parts, fold::run([](std::int32_t) { return fake(0); }, options));
  }
  EXPECT_EQ(parts.schedules, 20);
  EXPECT_EQ(parts.streams, shared.streams);
}

TEST(Fold, SeesWhatOnlyALaterScheduleOfAPlainRunDoesWrong) {
  fold::Options options;
  options.schedules = 2;
  options.seed = 3;
  options.schedules_per_plain_run = 2;
  int models = 0;  // the first engine's, the plain run's, the second engine's
  const auto make = [&models](std::int32_t) -> std::unique_ptr<LanguageModel> {
    if (++models == 3) return std::make_unique<NeighbourModel>();
    return std::make_unique<testing::FakeModel>();
  };
  const fold::Report report = fold::run(make, options);
  EXPECT_GT(models, 3);  // and the plain runs that count the bits
  EXPECT_FALSE(report.passed());
  EXPECT_NE(report.first_failure.find("schedule 1,"), std::string::npos) << report.first_failure;
}

}  // namespace
}  // namespace tensorfold
