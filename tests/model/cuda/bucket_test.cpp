// One-arithmetic, rule 14: graphs and buckets change the launch shape only. Every row count that a captured pass admits,
// as one window and as many lanes, run directly, captured and replayed, against the plain run of the same rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "checkpoint/checkpoint.h"
#include "model/load.h"
#include "support/golden_case.h"
#include "support/model_backend.h"

namespace tensorfold {
namespace {

constexpr std::int32_t kPromptTokens = 30;
constexpr std::int32_t kWindowRows = 128;   // of a lane; and lanes of one row each
constexpr std::int32_t kLaneCount = 128;
constexpr std::int32_t kLanePages = 3;      // (30 + 128) tokens
constexpr int kRunsEach = 3;                // uncaptured, captured, replayed

std::unique_ptr<LanguageModel> load(const std::string& name, std::unique_ptr<ops::Backend> backend) {
  const auto golden = test::read_golden_case(test::golden_directory(name));
  return load_language_model(Checkpoint::open(golden.model), std::move(backend), {});
}

/// A model whose lanes have pages of their own and the same prompt.
class Lanes {
 public:
  Lanes(std::unique_ptr<LanguageModel> model, std::int32_t lane_count) : model_(std::move(model)) {
    const std::size_t groups = model_->facts().groups.size();
    model_->allocate_caches(std::vector<std::int32_t>(groups, 1 + lane_count * kLanePages), lane_count + 1, kWindowRows);
    for (std::int32_t lane = 0; lane < lane_count; ++lane) {
      model_->zero_slot(lane + 1);
      RoundPlan plan;
      add(plan, lane, 0, kPromptTokens, 0, true);
      run(plan);
    }
  }

  std::int32_t token(std::int32_t index) const { return (index * 37 + 11) % model_->facts().vocabulary_size; }

  /// `count` rows of a lane: tokens follow from their position and `variant`.
  void add(RoundPlan& plan, std::int32_t lane, std::int32_t variant, std::int32_t count, std::int32_t position,
           bool commits) const {
    PlanLane each;
    each.slot = lane + 1;
    each.first_row = static_cast<std::int32_t>(plan.rows.size());
    each.row_count = count;
    each.position = position;
    each.commits = commits;
    for (const auto& group : model_->facts().groups) {
      PageTable table(group.kind == CacheKind::kRecurrent ? 0 : kLanePages);
      std::iota(table.begin(), table.end(), 1 + lane * kLanePages);
      each.pages.push_back(std::move(table));
    }
    for (std::int32_t i = 0; i < count; ++i) {
      PlanRow row;
      row.token = token(position + i + variant);
      row.sequence_index = position + i;
      row.rope_position.fill(position + i);
      row.parent_row = i == 0 ? -1 : static_cast<std::int32_t>(plan.rows.size()) - 1;
      row.lane = static_cast<std::int32_t>(plan.lanes.size());
      row.flags = kRowWantsLogits;
      plan.rows.push_back(row);
    }
    plan.lanes.push_back(std::move(each));
  }

  std::vector<float> run(const RoundPlan& plan) {
    ForwardResult result;
    model_->forward(plan, result);
    return {result.logits, result.logits + plan.rows.size() * vocabulary()};
  }
  std::size_t vocabulary() const { return static_cast<std::size_t>(model_->facts().vocabulary_size); }

 private:
  std::unique_ptr<LanguageModel> model_;
};

/// Rows of `actual` that aren't those of `expected`.
std::size_t differing_rows(const std::vector<float>& actual, const std::vector<float>& expected, std::size_t vocabulary) {
  std::size_t differing = 0;
  for (std::size_t at = 0; at < actual.size(); at += vocabulary) {
    differing += std::memcmp(actual.data() + at, expected.data() + at, vocabulary * sizeof(float)) != 0 ? 1 : 0;
  }
  return differing;
}

class Buckets : public test::BackendTest<std::string> {};

TEST_P(Buckets, EveryRowCountOfAWindow) {
  Lanes plain(load(GetParam(), test::cuda_backend(false, false)), 1);
  std::vector<float> expected;
  for (std::int32_t rows = 0; rows < kWindowRows; ++rows) {
    RoundPlan plan;
    plain.add(plan, 0, 0, 1, kPromptTokens + rows, true);
    const auto row = plain.run(plan);
    expected.insert(expected.end(), row.begin(), row.end());
  }
  Lanes tested(load(GetParam(), test::cuda_backend(true, true)), 1);
  for (std::int32_t rows = 1; rows <= kWindowRows; ++rows) {
    RoundPlan plan;
    tested.add(plan, 0, 0, rows, kPromptTokens, false);
    for (int run = 0; run < kRunsEach; ++run) {
      ASSERT_EQ(differing_rows(tested.run(plan), expected, tested.vocabulary()), 0u) << rows << " rows, run " << run;
    }
  }
}

TEST_P(Buckets, EveryNumberOfLanes) {
  Lanes plain(load(GetParam(), test::cuda_backend(false, false)), kLaneCount);
  std::vector<float> expected;
  for (std::int32_t lane = 0; lane < kLaneCount; ++lane) {
    RoundPlan plan;
    plain.add(plan, lane, lane * 5, 1, kPromptTokens, false);
    const auto row = plain.run(plan);
    expected.insert(expected.end(), row.begin(), row.end());
  }
  Lanes tested(load(GetParam(), test::cuda_backend(true, true)), kLaneCount);
  for (std::int32_t lanes = 1; lanes <= kLaneCount; lanes += lanes < 20 ? 1 : 3) {
    RoundPlan plan;
    for (std::int32_t lane = 0; lane < lanes; ++lane) tested.add(plan, lane, lane * 5, 1, kPromptTokens, false);
    for (int run = 0; run < kRunsEach; ++run) {
      ASSERT_EQ(differing_rows(tested.run(plan), expected, tested.vocabulary()), 0u) << lanes << " lanes, run " << run;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Buckets,
                         testing::Values("llama", "gemma3", "qwen3_moe", "qwen3_5", "mlx_qwen3_5_4bit",
                                         "gguf_llama_k_quants"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tensorfold
