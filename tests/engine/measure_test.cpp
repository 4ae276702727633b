// What `bench` measures with: whether it measures what it says. Streams on a model whose logits are a hash of the prefix,
// and the operations of a real checkpoint's passes.
#include "engine/measure/measure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "engine/measure/model_check.h"
#include "engine/measure/operation_times.h"
#include "fake_model.h"
#include "model/load.h"
#include "ops/cpu/cpu_backend.h"
#include "../support/synced_backend.h"

namespace tensorfold::measure {
namespace {

using tensorfold::testing::FakeModel;
using tensorfold::testing::FakeModelOptions;

TEST(Samples, MedianAndDeviation) {
  Samples samples;
  EXPECT_EQ(samples.median(), 0.0);
  for (const double value : {5.0, 1.0, 100.0}) samples.add(value);
  EXPECT_EQ(samples.median(), 5.0);
  EXPECT_EQ(samples.deviation(), 4.0);
  samples.add(7.0);
  EXPECT_EQ(samples.median(), 6.0);
}

DecodeOptions three_streams() {
  DecodeOptions options;
  options.streams = 3;
  options.context = 70;
  options.reply_tokens = 8;
  options.compared_streams = 3;
  return options;
}

TEST(MeasureDecode, StreamsTogetherGiveTheirOwnTokensAndTheTimeOfAll) {
  FakeModelOptions settings;
  settings.seconds_per_pass = 0.002;
  const DecodeResult result = measure_decode(std::make_shared<FakeModel>(settings), three_streams());
  EXPECT_EQ(result.compared_streams, 3);
  EXPECT_EQ(result.differing_streams, 0);
  ASSERT_EQ(result.tokens_per_second.values().size(), 3u);
  for (const double rate : result.tokens_per_second.values()) {
    EXPECT_GT(rate, 100.0);         // the machine may be slow
    EXPECT_LE(rate, 3.0 / 0.002);   // but three tokens take a pass
  }
  EXPECT_EQ(result.rows_max, 1);
  EXPECT_EQ(result.drafted, 0);
  EXPECT_GE(result.first_token_seconds, 0.002 * 5);  // 210 prompt rows in passes of 48
}

TEST(MeasureDecode, TheHashIsOfTokensAndNotOfTime) {
  FakeModelOptions slow;
  slow.seconds_per_row = 0.0001;
  const auto hash = [](const FakeModelOptions& settings, DecodeOptions options) {
    return measure_decode(std::make_shared<FakeModel>(settings), options).token_hash;
  };
  DecodeOptions options = three_streams();
  const std::uint64_t fast_hash = hash({}, options);
  EXPECT_EQ(hash(slow, options), fast_hash);
  options.seed = 2;
  EXPECT_NE(hash({}, options), fast_hash);
}

/// A model whose rows see how many there are: what must not be.
class LeakyModel final : public FakeModel {
 public:
  using FakeModel::FakeModel;
  void forward(const RoundPlan& plan, ForwardResult& result) override {
    FakeModel::forward(plan, result);
    if (plan.lanes.size() < 3 || result.logits_rows.empty()) return;
    const auto width = static_cast<std::size_t>(facts().vocabulary_size);
    logits_.assign(result.logits, result.logits + result.logits_rows.size() * width);
    for (std::size_t row = 0; row < result.logits_rows.size(); ++row) {
      std::reverse(&logits_[row * width], &logits_[row * width] + width);
    }
    result.logits = logits_.data();
  }

 private:
  std::vector<float> logits_;
};

/// Passes that take a while: the first stream is still there when the last is opened.
FakeModelOptions slow_enough_for_company() {
  FakeModelOptions settings;
  settings.seconds_per_pass = 0.002;
  return settings;
}

TEST(MeasureDecode, AStreamThatIsntItselfInCompanyIsFound) {
  const auto model = std::make_shared<LeakyModel>(slow_enough_for_company());
  EXPECT_EQ(measure_decode(model, three_streams()).differing_streams, 3);
}

TEST(MeasureDecode, AFailingModelIsAnErrorAndNoFigure) {
  FakeModelOptions settings = slow_enough_for_company();
  settings.on_forward = [](const RoundPlan& plan) {
    if (plan.lanes.size() == 3 && !plan.lanes[0].commits) throw std::runtime_error("the device is gone");
  };
  try {
    measure_decode(std::make_shared<FakeModel>(settings), three_streams());
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the device is gone"), std::string::npos);
  }
}

TEST(MeasurePrefill, RatesAreOfTheWholePrompt) {
  FakeModelOptions settings;
  settings.seconds_per_pass = 0.001;
  const PrefillResult result = measure_prefill(std::make_shared<FakeModel>(settings), 480, 3, 1);
  ASSERT_EQ(result.tokens_per_second.values().size(), 3u);
  EXPECT_GE(result.slices, 10);  // of 48 rows
  EXPECT_LE(result.tokens_per_second.median(), 480 / (10 * 0.001));
  EXPECT_GT(result.tokens_per_second.median(), 1000.0);
}

/// Notes the shapes of passes and computes nothing: the context of a measured window is never computed either.
class RecordingModel final : public FakeModel {
 public:
  std::vector<std::pair<std::int32_t, std::size_t>> passes;  // rows and replayed rows
  void forward(const RoundPlan& plan, ForwardResult&) override {
    ASSERT_EQ(plan.lanes.size(), 1u);
    const PlanLane& lane = plan.lanes[0];
    EXPECT_FALSE(lane.commits);
    const auto replayed = static_cast<std::int32_t>(lane.replay_rows.size());
    EXPECT_TRUE(passes.empty() || lane.position == position_ + replayed);
    position_ = lane.position;
    passes.emplace_back(lane.row_count, lane.replay_rows.size());
  }

 private:
  std::int32_t position_ = 0;
};

TEST(MeasureWindows, EveryWidthIsRunWithRowsThatLanded) {
  for (const std::int32_t rows : {1, 8}) {
    RecordingModel model;
    const auto result = measure_windows(model, {rows}, 100, 4, 3);
    ASSERT_EQ(result.size(), 1u);
    EXPECT_EQ(result[0].rows, rows);
    EXPECT_GE(result[0].pass_seconds.values().size(), 3u);
    ASSERT_GT(model.passes.size(), result[0].pass_seconds.values().size());
    for (std::size_t pass = 1; pass < model.passes.size(); ++pass) {
      EXPECT_EQ(model.passes[pass], std::make_pair(rows, static_cast<std::size_t>(std::min(rows, 4))));
    }
  }
  FakeModel model;
  EXPECT_THROW(measure_windows(model, {4}, 5000, 4, 3), Error);   // beyond the model's context
  EXPECT_THROW(measure_windows(model, {500}, 100, 4, 3), Error);  // beyond a pass
}

// --- operations -----------------------------------------------------------------------------------------------------

struct WatchedModel {
  SelectiveBackend* backend;
  std::unique_ptr<LanguageModel> model;
};

WatchedModel load(const std::string& name) {
  auto backend = std::make_unique<SelectiveBackend>(ops::make_cpu_backend({.threads = 1, .path = ""}));
  SelectiveBackend* watched = backend.get();
  const auto path = std::filesystem::path(TENSORFOLD_SOURCE_DIR) / "tests/golden/models" / name;
  return {watched, load_language_model(Checkpoint::open(path), std::move(backend), {})};
}

std::vector<float> logits(LanguageModel& model) {
  PassShape shape;
  shape.rows = 7;
  shape.commits = true;
  shape.logits_rows = 7;
  shape.logits_on_host = true;
  PassSeries pass(model, shape, 1);
  pass.run();
  const auto count = pass.result().logits_rows.size() * static_cast<std::size_t>(model.facts().vocabulary_size);
  return {pass.result().logits, pass.result().logits + count};
}

const OperationTime& find(const OperationTimes& times, const std::string& part) {
  for (const OperationTime& each : times.operations) {
    if (each.name.find(part) != std::string::npos) return each;
  }
  throw std::runtime_error("no operation " + part);
}

TEST(MeasureOperations, CountsEveryCallAndLeavesTheModelAsItWas) {
  for (const char* name : {"qwen3_5_moe", "llama"}) {
    SCOPED_TRACE(name);
    const WatchedModel watched = load(name);
    const std::vector<float> before = logits(*watched.model);
    PassShape shape;
    shape.rows = 4;
    shape.context = 20;
    shape.accepted = 2;
    const OperationTimes times = measure_operations(*watched.model, *watched.backend, shape, 3);
    const std::vector<float> after = logits(*watched.model);
    EXPECT_EQ(std::memcmp(before.data(), after.data(), before.size() * sizeof(float)), 0);
    EXPECT_GE(times.pass_seconds.values().size(), 3u);
    for (const OperationTime& each : times.operations) {
      EXPECT_GT(each.bytes, 0.0) << each.name;
      EXPECT_GT(each.calls, 0) << each.name;
      EXPECT_GE(each.seconds.values().size(), 3u) << each.name;
      EXPECT_GE(each.in_place_seconds.values().size(), 3u) << each.name;
    }
    EXPECT_EQ(find(times, "embedding lookup").calls, 1);
    double packed = 0.0;
    for (const OperationTime& each : times.operations) {
      if (each.name.find(" x ") != std::string::npos) packed += each.bytes;
    }
    if (std::string(name) == "llama") {  // every matrix is read once, and the rows' inputs and outputs with it
      EXPECT_GE(packed, 0.9 * static_cast<double>(watched.model->facts().packed_weight_bytes));
    } else {
      EXPECT_GT(find(times, "experts ").bytes, 0.0);
      EXPECT_GT(find(times, "gated delta").bytes, 0.0);
    }
  }
}

/// A backend that counts what is waited for.
class AwaitedBackend : public test::SyncedBackend {
 public:
  using SyncedBackend::SyncedBackend;
  void await_draws(const std::int32_t* /*draws*/, std::int64_t /*count*/) override { ++draws; }
  void synchronise() override { ++ends; }
  int draws = 0, ends = 0;
};

TEST(MeasureOperations, APassWithoutDrawsIsntAwaitedByThem) {
  auto inner = std::make_unique<AwaitedBackend>(ops::make_cpu_backend({.threads = 1, .path = ""}));
  AwaitedBackend& awaited = *inner;
  SelectiveBackend backend(std::move(inner));
  const std::int32_t pending = ops::kDrawPending;
  backend.await_draws(&pending, 1);
  backend.select("draw");
  backend.await_draws(&pending, 1);
  EXPECT_EQ(awaited.draws, 2);
  EXPECT_EQ(awaited.ends, 0);
  backend.leave_out("draw");
  backend.await_draws(&pending, 1);
  backend.select("attention");
  backend.await_draws(&pending, 1);
  backend.set_mode(SelectiveBackend::Mode::kNone);
  backend.await_draws(&pending, 1);
  EXPECT_EQ(awaited.draws, 2);
  EXPECT_EQ(awaited.ends, 3);
}

TEST(MeasureOperations, OnePassHoldsOneKindOfOperation) {
  const WatchedModel watched = load("llama");
  PassShape shape;
  PassSeries passes(*watched.model, shape, 8);
  passes.run();
  const auto kept = logits(*watched.model);
  watched.backend->select("there is no such operation");
  const std::vector<float> stale = logits(*watched.model);
  EXPECT_EQ(std::memcmp(kept.data(), stale.data(), kept.size() * sizeof(float)), 0);  // nothing wrote anything
  watched.backend->set_mode(SelectiveBackend::Mode::kRecord);
  watched.backend->take_calls();
  logits(*watched.model);
  const auto calls = watched.backend->take_calls();
  EXPECT_GT(calls.size(), 6u);
  EXPECT_TRUE(watched.backend->take_calls().empty());
}

TEST(MeasureOperations, AnOperationThatIsLeftOutIsTheOnlyOne) {
  const WatchedModel watched = load("llama");
  const std::vector<float> all = logits(*watched.model);
  watched.backend->leave_out("there is no such operation");
  const std::vector<float> same = logits(*watched.model);
  EXPECT_EQ(std::memcmp(all.data(), same.data(), all.size() * sizeof(float)), 0);
  watched.backend->leave_out("embedding lookup");
  const std::vector<float> without = logits(*watched.model);
  EXPECT_NE(std::memcmp(all.data(), without.data(), all.size() * sizeof(float)), 0);
}

TEST(CheckModel, SeesNumbersThatArentFinite) {
  FakeModelOptions settings;
  settings.infinities = false;
  FakeModel sound(settings);
  EXPECT_EQ(check_model(sound).not_finite, 0);
  settings.nan_token = sample_token(31, settings.vocabulary_size);  // of a row whose logits are looked at
  FakeModel broken(settings);
  EXPECT_GT(check_model(broken).not_finite, 0);
}

TEST(CheckModel, TellsHowRowsSpreadOverExperts) {
  const WatchedModel watched = load("qwen3_5_moe");
  const ModelCheck check = check_model(*watched.model);
  ASSERT_TRUE(check.routing);
  EXPECT_GE(check.routing->experts, check.routing->used_min);
  EXPECT_GE(check.routing->used_mean, static_cast<double>(check.routing->used_min));
  EXPECT_GE(check.routing->load_max_over_mean, 1.0);
  EXPECT_EQ(check.not_finite, 0);
  const WatchedModel dense = load("llama");
  EXPECT_FALSE(check_model(*dense.model).routing);
}

}  // namespace
}  // namespace tensorfold::measure
