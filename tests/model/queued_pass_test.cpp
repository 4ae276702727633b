// Passes of which the host wants nothing are queued where passes can be, and tell what they took; it waits for all others.
#include <gtest/gtest.h>

#include <utility>

#include "checkpoint/checkpoint.h"
#include "model/load.h"
#include "model/widest_plan.h"
#include "support/far_backend.h"
#include "support/golden_case.h"
#include "support/model_backend.h"

namespace tensorfold {
namespace {

constexpr std::int32_t kRows = 40;

std::unique_ptr<ops::Backend> queueing_backend() {
#if defined(TENSORFOLD_TEST_CUDA)
  return test::backend_under_test();
#else
  return std::make_unique<test::FarBackend>(test::backend_under_test());
#endif
}

class QueuedPass : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<LanguageModel> load(std::unique_ptr<ops::Backend> backend) {
    auto model = load_language_model(Checkpoint::open(test::read_golden_case(test::golden_directory(GetParam())).model), std::move(backend), {});
    const std::vector<std::int32_t> pages(model->facts().groups.size(), 1 + widest_plan_pages(1, kRows));
    model->allocate_caches(pages, 2, 1);
    return model;
  }
  /// A prompt's rows, the last with `flags`.
  static RoundPlan plan_of(const LanguageModel& model, std::uint32_t flags) {
    RoundPlan plan = widest_plan(model.facts(), 1, kRows, false);
    plan.rows.back().flags = flags;
    return plan;
  }
};

TEST_P(QueuedPass, TellsWhatItTook) {
  TF_SKIP_WITHOUT_BACKEND();
  const auto model = load(queueing_backend());
  ForwardResult result;
  for (const std::uint32_t wanted : {std::uint32_t{kRowWantsLogits}, std::uint32_t{kRowReturnsHidden}}) {
    for (int round = 0; round < 4; ++round) {  // as it is, captured, replayed
      model->forward(plan_of(*model, 0), result);
      EXPECT_FALSE(result.is_awaited);
      model->forward(plan_of(*model, wanted), result);
      EXPECT_TRUE(result.is_awaited);
      model->finish_copies();
      const std::vector<ops::PassTime> times = model->take_pass_times();
      ASSERT_EQ(times.size(), 1u);
      EXPECT_EQ(times[0].rows, kRows);
      EXPECT_GT(times[0].seconds, 0.0);
    }
  }
}

#if !defined(TENSORFOLD_TEST_CUDA)
TEST_P(QueuedPass, IsNoneOnAHost) {
  const auto model = load(test::backend_under_test());
  ForwardResult result;
  model->forward(plan_of(*model, 0), result);
  EXPECT_TRUE(result.is_awaited);
  EXPECT_TRUE(model->take_pass_times().empty());
}
#endif

INSTANTIATE_TEST_SUITE_P(Families, QueuedPass, ::testing::Values("llama", "qwen3_5"), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tensorfold
