// Prefix reuse on real families (tests/golden/models): a request that resumes, from memory or from disk, at each kind
// of position has the rows of a fresh one, bit for bit. The fold test with waves does the same at random.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <future>
#include <map>

#include "../engine/fake_model.h"
#include "base/temporary_folder.h"
#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "engine/verify/fold.h"
#include "model/load.h"
#include "support/model_backend.h"
#include "support/source_folder.h"

namespace tensorfold {
namespace {

using Tokens = std::vector<std::int32_t>;

std::filesystem::path golden_path(const std::string& name) {
  const std::filesystem::path directory = test::source_folder() / "tests/golden/models" / name;
  return std::filesystem::exists(directory / "model.gguf") ? directory / "model.gguf" : directory;
}

std::unique_ptr<LanguageModel> load(const std::string& name) {
  return load_language_model(Checkpoint::open(golden_path(name)), test::backend_under_test(), {});
}

std::unique_ptr<Engine> start(const std::string& name, std::int64_t cache_bytes, const std::string& learn_folder = "") {
  EngineOptions options;
  std::unique_ptr<LanguageModel> model = load(name);
  options.lanes = 2;
  options.context = std::min(480, model->facts().context_max);
  options.cache_memory_bytes = 4ull << 30;
  options.prompt_cache_bytes = cache_bytes;
  options.poison_freed = true;
  options.learn.folder = learn_folder;
  options.learn.conversations = true;
  options.learn.free_bytes_min = 0;
  options.learn.tokens_min = 64;
  return Engine::start(std::move(model), options);
}

struct Outcome {
  Tokens reply;
  std::map<std::int32_t, std::vector<float>> rows;
  std::int32_t cached = 0;
};

Outcome run(Engine& engine, const Tokens& prompt, const std::vector<PromptMark>& marks,
            std::int32_t reply_tokens = 12) {
  StreamRequest request;
  request.id = "reuse";
  request.prompt.tokens = prompt;
  request.marks = marks;
  request.reply_tokens_max = reply_tokens;
  request.sampling = {0.8, 40, 0.95, 0.0, 99};
  Outcome outcome;
  request.on_logits = [&outcome](std::int32_t index, const float* logits, std::int32_t count) {
    outcome.rows[index].assign(logits, logits + count);
  };
  std::promise<FinishEvent> finished;
  engine.open(std::move(request), [&](StreamEvent&& event) {
    if (const auto* token = std::get_if<TokenEvent>(&event)) outcome.reply.push_back(token->token);
    if (const auto* finish = std::get_if<FinishEvent>(&event)) finished.set_value(*finish);
  });
  const FinishEvent finish = finished.get_future().get();
  EXPECT_EQ(finish.reason, FinishReason::kLength) << finish.message;
  outcome.cached = finish.statistics.cached_tokens;
  return outcome;
}

class GoldenReuse : public test::BackendTest<const char*> {
 protected:
  Tokens tokens(std::int32_t count, std::uint32_t seed, std::int32_t vocabulary) const {
    Tokens result;
    for (std::int32_t i = 0; i < count; ++i) {
      seed = seed * 1664525u + 1013904223u;
      result.push_back(static_cast<std::int32_t>((seed >> 8) % static_cast<std::uint32_t>(vocabulary)));
    }
    return result;
  }
  void expect_fresh(const Tokens& prompt, const Outcome& resumed, std::int32_t cached_min, std::int32_t cached_max) {
    EXPECT_GE(resumed.cached, cached_min);
    EXPECT_LE(resumed.cached, cached_max);
    const Outcome fresh = run(*fresh_, prompt, {});
    EXPECT_EQ(fresh.cached, 0);
    ASSERT_EQ(resumed.reply, fresh.reply);
    ASSERT_EQ(resumed.rows.size() + static_cast<std::size_t>(resumed.cached), fresh.rows.size());
    for (const auto& [index, logits] : resumed.rows) {
      ASSERT_EQ(std::memcmp(logits.data(), fresh.rows.at(index).data(), logits.size() * sizeof(float)), 0)
          << "row " << index << ", resumed at " << resumed.cached;
    }
  }
  void SetUp() override {
    TF_SKIP_WITHOUT_BACKEND();
    fresh_ = start(GetParam(), 0);
  }

  std::unique_ptr<Engine> fresh_;
};

TEST_P(GoldenReuse, EveryKindOfPositionInMemoryAndOnDisk) {
  const TemporaryFolder folder;
  auto engine = start(GetParam(), 256 << 20, folder.path().string());
  const std::int32_t vocabulary = engine->facts().model.vocabulary_size;
  const std::int32_t length = engine->facts().context >= 480 ? 290 : 180,
                     system = engine->facts().context >= 480 ? 133 : 83;
  const Tokens prompt = tokens(length, 1, vocabulary);
  const std::vector<PromptMark> marks = {{system, PromptMarkKind::kSystemEnd},
                                         {length - 90, PromptMarkKind::kMessageEnd},
                                         {length - 20, PromptMarkKind::kMessageEnd}};
  const Outcome first = run(*engine, prompt, marks);
  expect_fresh(prompt, first, 0, 0);
  for (const bool from_disk : {false, true}) {
    if (from_disk) {
      engine.reset();
      engine = start(GetParam(), 256 << 20, folder.path().string());
      ASSERT_EQ(engine->facts().learn_folder, folder.path().string());
    }
    // The next turn, behind the decoded reply.
    Tokens turn = prompt;
    turn.insert(turn.end(), first.reply.begin(), first.reply.end());
    const Tokens more = tokens(20, from_disk ? 5 : 4, vocabulary);
    turn.insert(turn.end(), more.begin(), more.end());
    expect_fresh(turn, run(*engine, turn, marks), length + 11, length + 12);
    // Another conversation under the same system prompt.
    Tokens other(prompt.begin(), prompt.begin() + system);
    const Tokens text = tokens(60, from_disk ? 7 : 6, vocabulary);
    other.insert(other.end(), text.begin(), text.end());
    expect_fresh(other, run(*engine, other, {{system, PromptMarkKind::kSystemEnd}}), system, system + 1);
    if (from_disk) continue;
    expect_fresh(prompt, run(*engine, prompt, marks), length - 1, length - 1);  // the same again
    Tokens edited = prompt;                                                     // another last message
    edited[static_cast<std::size_t>(length - 18)] = (edited[static_cast<std::size_t>(length - 18)] + 1) % vocabulary;
    expect_fresh(edited, run(*engine, edited, marks), length - 20, length - 18);
  }
}

TEST_P(GoldenReuse, WavesUnderRandomSchedules) {
  const TemporaryFolder folder;
  fold::Options options;
  options.schedules = 4;
  options.seed = 77;
  options.streams_max = 5;
  options.lanes_max = 5;
  options.prompt_tokens_max = 170;
  options.reply_tokens_max = 10;
  options.waves = 3;
  options.prompt_cache_bytes_max = 64 << 20;
  options.learn_folder = folder.path().string();
  const fold::Report report = fold::run([&](std::int32_t) { return load(GetParam()); }, options);
  EXPECT_TRUE(report.passed()) << report.first_failure;
  EXPECT_GT(report.streams_resumed, 0);
  std::printf("[ report   ] %s: %d streams, %d resumed (%llu rows), %d restarts, %d resumed after one\n", GetParam(),
              report.streams, report.streams_resumed, static_cast<unsigned long long>(report.rows_resumed),
              report.restarts, report.streams_resumed_after_restart);
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenReuse, ::testing::Values("llama", "gemma3", "qwen3_5"),
                         [](const auto& info) { return std::string(info.param); });

/// What a schedule kept of its streams mustn't spare the next one, of the same streams, all the work.
TEST(FoldReuse, ASecondScheduleOfTheSameStreamsComputesThemAgain) {
  const auto rows = [](std::int32_t together) {
    const TemporaryFolder folder;
    fold::Options options;
    options.schedules = together;
    options.schedules_per_plain_run = together;
    options.seed = 11;
    options.waves = 2;
    options.prompt_cache_bytes_max = 1 << 20;
    options.learn_folder = (folder.path() / "learned").string();
    options.prompt_tokens_max = 330;
    const auto make = [](std::int32_t) {
      testing::FakeModelOptions model;
      model.checkpoint_id = "fake";
      return std::make_unique<testing::FakeModel>(model);
    };
    const fold::Report report = fold::run(make, options);
    EXPECT_TRUE(report.passed()) << report.first_failure;
    return static_cast<double>(report.rows_compared);
  };
  const double of_one = rows(1), of_three = rows(3);
  EXPECT_GT(of_three, 2.3 * of_one);
}

TEST(FoldReuse, FakeModelInWavesWithRestarts) {
  const TemporaryFolder folder;
  fold::Options options;
  options.schedules = 30;
  options.seed = 4711;
  options.prompt_tokens_max = 330;
  options.streams_max = 9;
  options.waves = 4;
  options.prompt_cache_bytes_max = 1 << 20;
  options.learn_folder = folder.path().string();
  const auto make = [](std::int32_t schedule) {
    testing::FakeModelOptions model;
    model.window = schedule % 3 == 0 ? 40 : schedule % 3 == 1 ? 64 : 129;
    model.pass_rows_max = schedule % 2 == 0 ? 48 : 200;
    model.has_recurrent = schedule % 4 < 2;
    model.has_sliding = schedule % 4 == 1 || schedule % 4 == 2;
    model.checkpoint_id = "fake " + std::to_string(schedule % 12);
    return std::make_unique<testing::FakeModel>(model);
  };
  const fold::Report report = fold::run(make, options);
  EXPECT_TRUE(report.passed()) << report.first_failure;
  EXPECT_GT(report.streams_resumed, 100);
  EXPECT_GT(report.streams_resumed_after_restart, 20);
  std::printf("[ report   ] %d schedules, %d streams, %d resumed (%llu rows), %d restarts, %d resumed after one\n",
              report.schedules, report.streams, report.streams_resumed,
              static_cast<unsigned long long>(report.rows_resumed), report.restarts,
              report.streams_resumed_after_restart);
}

}  // namespace
}  // namespace tensorfold
