// Prefix reuse through the engine on the fake model: where requests resume, that they give the rows of a fresh run, who
// may share with whom, and waiting for a prompt that another stream computes.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "engine/engine.h"
#include "fake_model.h"
#include "stream_probe.h"

namespace tensorfold {
namespace {

using testing::counting_prompt;
using testing::FakeModel;
using testing::FakeModelOptions;
using testing::Gate;
using testing::request_of;
using testing::StreamProbe;
using Tokens = std::vector<std::int32_t>;

struct Kind {
  const char* name;
  bool recurrent, sliding;
};

FakeModelOptions model_of(const Kind& kind) {
  FakeModelOptions options;
  options.has_recurrent = kind.recurrent;
  options.has_sliding = kind.sliding;
  return options;
}

std::unique_ptr<Engine> start(FakeModelOptions model, std::int64_t cache_bytes, std::int32_t lanes = 4,
                              std::int32_t context = 1200) {
  EngineOptions options;
  options.lanes = lanes;
  options.context = context;
  options.cache_memory_bytes = 1u << 30;
  options.prompt_cache_bytes = cache_bytes;
  options.poison_freed = true;
  return Engine::start(std::make_unique<FakeModel>(std::move(model)), options);
}

struct Outcome {
  Tokens reply;
  std::map<std::int32_t, std::vector<float>> rows;
  FinishEvent finish;
  std::vector<PromptProgressEvent> progress;
};

Outcome run(Engine& engine, Tokens prompt, std::int32_t reply_tokens, const std::string& owner = "",
            std::vector<PromptMark> marks = {}) {
  StreamRequest request = request_of(std::move(prompt), reply_tokens);
  request.prompt.owner = owner;
  request.marks = std::move(marks);
  request.sampling = {0.9, 20, 0.95, 0.0, 77};
  Outcome outcome;
  request.on_logits = [&outcome](std::int32_t index, const float* logits, std::int32_t count) {
    outcome.rows[index].assign(logits, logits + count);
  };
  StreamProbe probe;
  engine.open(std::move(request), probe.sink());
  outcome.finish = probe.wait();
  outcome.reply = probe.reply();
  outcome.progress = probe.progress();
  return outcome;
}

/// What `resumed` computed is what a fresh engine computes, bit for bit.
void expect_fresh(const Kind& kind, const Tokens& prompt, std::int32_t reply_tokens, const Outcome& resumed) {
  const auto fresh_engine = start(model_of(kind), 0);
  const Outcome fresh = run(*fresh_engine, prompt, reply_tokens);
  EXPECT_EQ(fresh.finish.statistics.cached_tokens, 0);
  EXPECT_EQ(resumed.reply, fresh.reply);
  const std::int32_t cached = resumed.finish.statistics.cached_tokens;
  EXPECT_EQ(resumed.rows.size(), fresh.rows.size() - static_cast<std::size_t>(cached));
  for (const auto& [index, logits] : resumed.rows) {
    ASSERT_GE(index, cached);
    ASSERT_EQ(std::memcmp(logits.data(), fresh.rows.at(index).data(), logits.size() * sizeof(float)), 0) << index;
  }
}

Tokens next_turn(const Tokens& prompt, const Tokens& reply, std::int32_t extra) {
  Tokens turn = prompt;
  turn.insert(turn.end(), reply.begin(), reply.end());
  for (std::int32_t i = 0; i < extra; ++i) turn.push_back((i * 11 + 3) % 53);
  return turn;
}

class PrefixReuse : public ::testing::TestWithParam<Kind> {};

TEST_P(PrefixReuse, AnIdenticalRequestResumesAtItsLastToken) {
  const auto engine = start(model_of(GetParam()), 16 << 20);
  for (const std::int32_t length : {65, 127, 128, 129, 200, 700}) {
    const Tokens prompt = counting_prompt(length, length);
    EXPECT_EQ(run(*engine, prompt, 10).finish.statistics.cached_tokens, 0);
    const Outcome again = run(*engine, prompt, 10);
    EXPECT_EQ(again.finish.statistics.cached_tokens, length - 1);
    ASSERT_FALSE(again.progress.empty());
    EXPECT_EQ(again.progress.back().tokens_cached, length - 1);
    expect_fresh(GetParam(), prompt, 10, again);
  }
}

TEST_P(PrefixReuse, TheNextTurnDoesNotReadTheReplyAgain) {
  const auto engine = start(model_of(GetParam()), 16 << 20);
  Tokens prompt = counting_prompt(150);
  std::int32_t known = 0;
  for (int turn = 0; turn < 5; ++turn) {
    const Outcome outcome = run(*engine, prompt, 30);
    EXPECT_EQ(outcome.finish.statistics.cached_tokens, known);
    if (turn > 0) expect_fresh(GetParam(), prompt, 30, outcome);
    known = static_cast<std::int32_t>(prompt.size()) + 29;  // the last token was drawn and never fed
    prompt = next_turn(prompt, outcome.reply, 25);
  }
}

TEST_P(PrefixReuse, RequestsPartAtTheSystemPromptsEnd) {
  const auto engine = start(model_of(GetParam()), 16 << 20);
  const Tokens system = counting_prompt(333, 4);
  const std::vector<PromptMark> marks = {{333, PromptMarkKind::kSystemEnd}};
  for (std::int32_t i = 0; i < 4; ++i) {
    Tokens prompt = system;
    prompt.push_back(10 + i);
    for (std::int32_t k = 0; k < 40; ++k) prompt.push_back((k * 5 + i) % 53);
    const Outcome outcome = run(*engine, prompt, 8, "", marks);
    EXPECT_EQ(outcome.finish.statistics.cached_tokens, i == 0 ? 0 : 333);
    expect_fresh(GetParam(), prompt, 8, outcome);
  }
}

TEST_P(PrefixReuse, AnEditedTurnResumesBeforeIt) {
  const auto engine = start(model_of(GetParam()), 16 << 20);
  Tokens prompt = counting_prompt(400);
  const std::vector<PromptMark> marks = {
      {100, PromptMarkKind::kSystemEnd}, {250, PromptMarkKind::kMessageEnd}, {399, PromptMarkKind::kMessageEnd}};
  run(*engine, prompt, 5, "", marks);
  prompt[260] = (prompt[260] + 1) % 53;
  const Outcome edited = run(*engine, prompt, 5, "", marks);
  EXPECT_GE(edited.finish.statistics.cached_tokens, 250);
  EXPECT_LE(edited.finish.statistics.cached_tokens, 260);
  expect_fresh(GetParam(), prompt, 5, edited);
}

TEST_P(PrefixReuse, OwnersDoNotShare) {
  const auto engine = start(model_of(GetParam()), 16 << 20);
  const Tokens prompt = counting_prompt(200);
  run(*engine, prompt, 5, "alice");
  EXPECT_EQ(run(*engine, prompt, 5, "bob").finish.statistics.cached_tokens, 0);
  EXPECT_EQ(run(*engine, prompt, 5, "alice").finish.statistics.cached_tokens, 199);
  EXPECT_EQ(run(*engine, prompt, 5, "bob").finish.statistics.cached_tokens, 199);
}

TEST_P(PrefixReuse, ATinyBudgetIsNeverWrong) {
  for (const std::int64_t bytes : {1, 5000, 9000, 20000, 40000}) {
    const auto engine = start(model_of(GetParam()), bytes);
    Tokens prompt = counting_prompt(150, static_cast<std::int32_t>(bytes % 50));
    for (int turn = 0; turn < 3; ++turn) {
      const Outcome outcome = run(*engine, prompt, 20);
      expect_fresh(GetParam(), prompt, 20, outcome);
      prompt = next_turn(prompt, outcome.reply, 10);
    }
    EXPECT_LE(engine->load().prefix_bytes, static_cast<std::uint64_t>(bytes));
  }
}

TEST_P(PrefixReuse, ACancelledRequestLeavesWhatItFed) {
  Gate gate;
  FakeModelOptions options = model_of(GetParam());
  options.on_forward = [&gate](const RoundPlan&) { gate.pass(); };
  const auto engine = start(options, 16 << 20);
  const Tokens prompt = counting_prompt(600);
  gate.close_after(6);
  StreamProbe probe;
  const auto handle = engine->open(request_of(prompt, 5), probe.sink());
  gate.wait_for_arrivals(6);
  handle->cancel();
  gate.open();
  EXPECT_EQ(probe.wait().reason, FinishReason::kCancelled);
  const Outcome again = run(*engine, prompt, 5);
  if (!GetParam().recurrent) {
    EXPECT_GT(again.finish.statistics.cached_tokens, 100);
  }
  expect_fresh(GetParam(), prompt, 5, again);
}

TEST_P(PrefixReuse, APromptBeingComputedIsWaitedFor) {
  Gate gate;
  std::atomic<int> rows{0};
  FakeModelOptions options = model_of(GetParam());
  options.on_forward = [&](const RoundPlan& plan) {
    rows += static_cast<int>(plan.rows.size());
    gate.pass();
  };
  const auto engine = start(options, 16 << 20);
  const Tokens shared = counting_prompt(500);
  gate.close_after(1);
  std::vector<StreamProbe> probes(6);
  std::vector<Tokens> prompts;
  for (std::int32_t i = 0; i < 6; ++i) {
    Tokens prompt = shared;
    for (std::int32_t k = 0; k < 20; ++k) prompt.push_back((k * 3 + i * 9) % 53);
    prompts.push_back(prompt);
    engine->open(request_of(prompt, 4), probes[static_cast<std::size_t>(i)].sink());
    if (i == 0) gate.wait_for_arrivals(1);
  }
  gate.open();
  std::int32_t cached = 0;
  for (StreamProbe& probe : probes) {
    const FinishEvent finish = probe.wait();
    EXPECT_EQ(finish.reason, FinishReason::kLength);
    cached += finish.statistics.cached_tokens;
  }
  EXPECT_GE(cached, 5 * 500);
  EXPECT_LE(rows, 520 + 5 * 20 + 6 * 4);
  EXPECT_GE(engine->load().prefix_waits_total, 3u);
  for (std::size_t i = 0; i < 6; ++i) {
    const auto fresh = start(model_of(GetParam()), 0);
    StreamProbe probe;
    fresh->open(request_of(prompts[i], 4), probe.sink());
    probe.wait();
    EXPECT_EQ(probes[i].reply(), probe.reply());
  }
}

TEST_P(PrefixReuse, AWaiterTakesOverFromOneThatIsCancelled) {
  Gate gate;
  FakeModelOptions options = model_of(GetParam());
  options.on_forward = [&gate](const RoundPlan&) { gate.pass(); };
  const auto engine = start(options, 16 << 20);
  const Tokens prompt = counting_prompt(600);
  gate.close_after(3);
  StreamProbe first, second, third;
  const auto handle = engine->open(request_of(prompt, 5), first.sink());
  gate.wait_for_arrivals(1);
  engine->open(request_of(prompt, 5), second.sink());
  engine->open(request_of(prompt, 5), third.sink());
  gate.wait_for_arrivals(3);
  handle->cancel();
  gate.open();
  EXPECT_EQ(first.wait().reason, FinishReason::kCancelled);
  EXPECT_EQ(second.wait().reason, FinishReason::kLength);
  const FinishEvent last = third.wait();
  EXPECT_EQ(last.reason, FinishReason::kLength);
  EXPECT_EQ(last.statistics.cached_tokens, 599);
  EXPECT_EQ(second.reply(), third.reply());
}

TEST_P(PrefixReuse, AWaiterTakesOverFromOneThatFails) {
  Gate gate;
  FakeModelOptions options = model_of(GetParam());
  int passes = 0;
  options.on_forward = [&](const RoundPlan&) {
    gate.pass();
    if (++passes == 4) throw std::runtime_error("the backend fell over");
  };
  const auto engine = start(options, 16 << 20);
  const Tokens prompt = counting_prompt(600);
  gate.close_after(2);
  StreamProbe first, second;
  engine->open(request_of(prompt, 5), first.sink());
  gate.wait_for_arrivals(1);
  engine->open(request_of(prompt, 5), second.sink());
  gate.wait_for_arrivals(2);
  gate.open();
  EXPECT_EQ(first.wait().reason, FinishReason::kError);
  EXPECT_EQ(second.wait().reason, FinishReason::kLength);
  Outcome third = run(*engine, prompt, 5);
  EXPECT_EQ(third.finish.statistics.cached_tokens, 599);
  expect_fresh(GetParam(), prompt, 5, third);
}

TEST_P(PrefixReuse, ScoringReadsItsWholePrompt) {
  const auto engine = start(model_of(GetParam()), 16 << 20);
  const Tokens prompt = counting_prompt(200);
  run(*engine, prompt, 5);
  StreamRequest request = request_of(prompt, 1);
  request.score_prompt = true;
  request.logprobs_top = 2;
  StreamProbe probe;
  engine->open(std::move(request), probe.sink());
  EXPECT_EQ(probe.wait().statistics.cached_tokens, 0);
  EXPECT_EQ(probe.scores().size(), 200u);
}

INSTANTIATE_TEST_SUITE_P(Kinds, PrefixReuse,
                         ::testing::Values(Kind{"Full", false, false}, Kind{"Recurrent", true, false},
                                           Kind{"Sliding", false, true}, Kind{"All", true, true}),
                         [](const auto& info) { return info.param.name; });

TEST(PrefixReuseScope, CanBeSharedByAllOwners) {
  EngineOptions options;
  options.lanes = 2;
  options.context = 400;
  options.cache_memory_bytes = 1u << 30;
  options.prompt_cache_bytes = 16 << 20;
  options.prompt_cache_shared = true;
  const auto engine = Engine::start(std::make_unique<FakeModel>(), options);
  const Tokens prompt = counting_prompt(200);
  run(*engine, prompt, 5, "alice");
  EXPECT_EQ(run(*engine, prompt, 5, "bob").finish.statistics.cached_tokens, 199);
}

}  // namespace
}  // namespace tensorfold
