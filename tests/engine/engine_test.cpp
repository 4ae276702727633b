// The engine on the fake model: replies, endings, rules, errors, cancels, limits.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <stdexcept>

#include "eventually.h"
#include "base/error.h"
#include "engine/host_sampler.h"
#include "engine/verify/serial_run.h"
#include "fake_model.h"
#include "naive_sampler.h"
#include "scripted_rule.h"
#include "stream_probe.h"

namespace tensorfold {
namespace {

using testing::counting_prompt;
using testing::FakeModel;
using testing::FakeModelOptions;
using testing::Gate;
using testing::request_of;
using testing::ScriptedRule;
using testing::StreamProbe;

std::unique_ptr<Engine> start(FakeModelOptions model = {}, std::int32_t lanes = 4, std::int32_t context = 400) {
  EngineOptions options;
  options.lanes = lanes;
  options.context = context;
  options.cache_memory_bytes = 1u << 30;
  options.poison_freed = true;
  return Engine::start(std::make_unique<FakeModel>(std::move(model)), options);
}

std::vector<std::int32_t> reply_of(Engine& engine, StreamRequest request) {
  StreamProbe probe;
  engine.open(std::move(request), probe.sink());
  EXPECT_EQ(probe.wait().reason, FinishReason::kLength);
  return probe.reply();
}

TEST(Engine, RepliesWithTheSerialRunsTokens) {
  const auto engine = start();
  StreamRequest request = request_of(counting_prompt(100), 20);
  request.sampling = {0.8, 30, 0.9, 0.0, 4321};
  StreamProbe probe;
  engine->open(std::move(request), probe.sink());
  const FinishEvent finish = probe.wait();
  fold::SerialRun serial(std::make_unique<FakeModel>(), 400);
  serial.begin();
  HostSampler sampler(serial.facts().vocabulary_size);
  const float* logits = nullptr;
  for (const std::int32_t token : counting_prompt(100)) logits = serial.feed(token);
  for (std::int64_t i = 0; i < 20; ++i) {
    const Draw draw = sampler.draw(logits, nullptr, {0.8, 30, 0.9, 0.0, 4321}, 100 + i);
    ASSERT_EQ(probe.reply()[static_cast<std::size_t>(i)], draw.token);
    logits = serial.feed(draw.token);
  }
  EXPECT_EQ(finish.reason, FinishReason::kLength);
  EXPECT_EQ(finish.statistics.prompt_tokens, 100);
  EXPECT_EQ(finish.statistics.reply_tokens, 20);
  EXPECT_EQ(finish.statistics.rounds, 19);  // the first token comes from the prompt's last row
  EXPECT_EQ(finish.statistics.seed, 4321u);
  const std::vector<std::int32_t>& widths = finish.statistics.prefill_widths;  // slices are cut by measured time
  EXPECT_EQ(std::accumulate(widths.begin(), widths.end(), 0), 100);
  EXPECT_GT(finish.statistics.time_to_first_token_seconds, 0.0);
  EXPECT_EQ(probe.progress().back().tokens_done, 100);
  EXPECT_EQ(probe.progress().back().tokens_total, 100);
  EXPECT_EQ(probe.tokens()[7].index, 7);
}

// Penalties and biases count what the stream has committed: the serial run with the definition beside it.
TEST(Engine, PenaltiesFollowTheReplySoFar) {
  for (const double temperature : {0.0, 1.0}) {
    const auto engine = start();
    const std::vector<std::int32_t> prompt = counting_prompt(90);
    StreamRequest request = request_of(prompt, 60);
    request.sampling = {temperature, 0, 0.95, 0.0, 99};
    request.logit_rule = {1.4, 0.3, 0.8, {{3, -100.0}, {8, 2.0}, {60, 1.0}}};
    const LogitRule rule = request.logit_rule;
    const std::vector<std::int32_t> reply = reply_of(*engine, std::move(request));
    fold::SerialRun serial(std::make_unique<FakeModel>(), 400);
    serial.begin();
    const float* logits = nullptr;
    for (const std::int32_t token : prompt) logits = serial.feed(token);
    const auto count = static_cast<std::ptrdiff_t>(serial.facts().vocabulary_size);
    int changed = 0;
    for (std::size_t i = 0; i < reply.size(); ++i) {
      const std::vector<float> raw(logits, logits + count);
      const std::vector<std::int32_t> before(reply.begin(), reply.begin() + static_cast<std::ptrdiff_t>(i));
      const std::vector<float> row = testing::naive_adjust(raw, rule, prompt, before);
      const auto position = static_cast<std::int64_t>(prompt.size() + i);
      const Draw draw = testing::naive_draw(row, nullptr, {temperature, 0, 0.95, 0.0, 99}, position);
      ASSERT_EQ(reply[i], draw.token) << i;
      changed += testing::naive_draw(raw, nullptr, {temperature, 0, 0.95, 0.0, 99}, position).token != draw.token;
      logits = serial.feed(draw.token);
    }
    EXPECT_GT(changed, 5);
  }
}

TEST(Engine, ManyLanesEachEqualToItselfAlone) {
  const auto alone = start({}, 1);
  const auto together = start({}, 40);
  std::vector<StreamProbe> probes(64);
  const auto request = [](std::int32_t i) {
    StreamRequest made = request_of(counting_prompt(1 + i * 5 % 130, i), 12);
    made.sampling = {i % 2 == 0 ? 0.0 : 1.0, 0, 1.0, 0.0, static_cast<std::uint64_t>(i)};
    return made;
  };
  for (std::int32_t i = 0; i < 64; ++i) together->open(request(i), probes[static_cast<std::size_t>(i)].sink());
  for (std::int32_t i = 0; i < 64; ++i) {
    probes[static_cast<std::size_t>(i)].wait();
    ASSERT_EQ(probes[static_cast<std::size_t>(i)].reply(), reply_of(*alone, request(i))) << i;
  }
}

TEST(Engine, NoReplyAskedEndsAfterThePrompt) {
  const auto engine = start();
  StreamProbe probe;
  engine->open(request_of(counting_prompt(77), 0), probe.sink());
  EXPECT_EQ(probe.wait().reason, FinishReason::kLength);
  EXPECT_TRUE(probe.reply().empty());
  EXPECT_EQ(probe.progress().back().tokens_done, 77);
}

TEST(Engine, StopTokenIsDeliveredMarkedAndEnds) {
  const auto engine = start();
  const std::vector<std::int32_t> reply = reply_of(*engine, request_of(counting_prompt(30), 16));
  const std::int32_t stop = reply[9];
  const auto first = static_cast<std::size_t>(std::find(reply.begin(), reply.end(), stop) - reply.begin());
  StreamRequest request = request_of(counting_prompt(30), 16);
  request.stop_tokens = {58, stop};
  StreamProbe probe;
  engine->open(std::move(request), probe.sink());
  if (stop != 58 && std::find(reply.begin(), reply.begin() + 10, 58) == reply.begin() + 10) {
    EXPECT_EQ(probe.wait().reason, FinishReason::kStopToken);
    ASSERT_EQ(probe.reply().size(), first + 1);
    EXPECT_TRUE(probe.tokens().back().is_stop_token);
    EXPECT_FALSE(first > 0 && probe.tokens().front().is_stop_token);
  }
  request = request_of(counting_prompt(30), 16);
  request.stop_tokens = {stop};
  request.ignore_stop_tokens = true;
  EXPECT_EQ(reply_of(*engine, std::move(request)), reply);
}

StreamRequest with_rule(ScriptedRule::Script script, std::vector<std::int32_t> forced = {},
                        std::vector<std::int32_t> allowed = {}) {
  StreamRequest request = request_of(counting_prompt(25), 10);
  request.rule = std::make_unique<ScriptedRule>(std::move(script), std::move(forced), std::move(allowed));
  return request;
}

PathRule::Verdict go_on(const std::vector<std::int32_t>&) {
  return PathRule::Verdict::kContinue;
}

TEST(Engine, RuleMasksForcesStopsAndCuts) {
  const auto engine = start();
  for (const std::int32_t token : reply_of(*engine, with_rule(go_on, {}, {7, 33, 60}))) {
    EXPECT_TRUE(token == 7 || token == 33 || token == 60);
  }
  const std::vector<std::int32_t> forced = reply_of(*engine, with_rule(go_on, {3, 1, 4, 1}));
  EXPECT_EQ(std::vector<std::int32_t>(forced.begin(), forced.begin() + 4), (std::vector<std::int32_t>{3, 1, 4, 1}));
  // After forced tokens the stream goes on as if they had been in the prompt.
  StreamRequest same = request_of(counting_prompt(25), 6);
  same.prompt.tokens.insert(same.prompt.tokens.end(), {3, 1, 4, 1});
  EXPECT_EQ(std::vector<std::int32_t>(forced.begin() + 4, forced.end()), reply_of(*engine, std::move(same)));

  const auto ends_at = [](std::size_t length, PathRule::Verdict verdict) {
    return [=](const std::vector<std::int32_t>& path) {
      return path.size() == length ? verdict : PathRule::Verdict::kContinue;
    };
  };
  StreamProbe stopped, cut;
  engine->open(with_rule(ends_at(4, PathRule::Verdict::kStop)), stopped.sink());
  engine->open(with_rule(ends_at(4, PathRule::Verdict::kCut)), cut.sink());
  EXPECT_EQ(stopped.wait().reason, FinishReason::kStopRule);
  EXPECT_EQ(stopped.reply().size(), 4u);
  EXPECT_EQ(cut.wait().reason, FinishReason::kStopRule);
  EXPECT_EQ(cut.reply().size(), 3u);
}

TEST(Engine, AThrowingRuleOrSinkEndsItsStreamAlone) {
  const auto engine = start();
  const std::vector<std::int32_t> expected = reply_of(*engine, request_of(counting_prompt(60), 30));
  StreamProbe healthy, bad_rule, bad_sink, bad_force;
  engine->open(request_of(counting_prompt(60), 30), healthy.sink());
  engine->open(with_rule([](const std::vector<std::int32_t>& path) -> PathRule::Verdict {
                 if (path.size() == 3) throw Error(ErrorCode::kInternal, "the grammar broke");
                 return PathRule::Verdict::kContinue;
               }),
               bad_rule.sink());
  engine->open(with_rule(go_on, {1000}), bad_force.sink());
  std::atomic<int> calls{0};
  engine->open(request_of(counting_prompt(10), 30), [&, inner = bad_sink.sink()](StreamEvent&& event) {
    if (++calls == 4) throw std::runtime_error("the client is gone");
    inner(std::move(event));
  });
  EXPECT_EQ(bad_rule.wait().message, "the grammar broke");
  EXPECT_EQ(bad_rule.wait().reason, FinishReason::kError);
  EXPECT_EQ(bad_rule.reply().size(), 2u);
  EXPECT_EQ(bad_force.wait().reason, FinishReason::kError);
  EXPECT_EQ(bad_sink.wait().reason, FinishReason::kError);
  EXPECT_EQ(healthy.wait().reason, FinishReason::kLength);
  EXPECT_EQ(healthy.reply(), expected);
}

TEST(Engine, NonFiniteLogitsEndOneStream) {
  FakeModelOptions model;
  model.nan_token = 57;  // counting_prompt never has it
  const auto engine = start(model);
  StreamProbe healthy, broken;
  engine->open(request_of(counting_prompt(40), 3), healthy.sink());
  engine->open(request_of({1, 2, 57}, 5), broken.sink());
  EXPECT_EQ(broken.wait().reason, FinishReason::kError);
  EXPECT_NE(broken.wait().message.find("not finite"), std::string::npos);
  EXPECT_NE(healthy.wait().reason, FinishReason::kCancelled);
}

TEST(Engine, AFailingPassEndsItsStreamsAndTheEngineGoesOn) {
  std::atomic<bool> broken{false};
  FakeModelOptions model;
  model.on_forward = [&](const RoundPlan&) {
    if (broken) throw Error(ErrorCode::kInternal, "device lost");
  };
  const auto engine = start(model);
  const std::vector<std::int32_t> expected = reply_of(*engine, request_of(counting_prompt(50), 9));
  broken = true;
  StreamProbe one, two;
  engine->open(request_of(counting_prompt(50), 9), one.sink());
  EXPECT_EQ(one.wait().reason, FinishReason::kError);
  EXPECT_NE(one.wait().message.find("device lost"), std::string::npos);
  broken = false;
  EXPECT_EQ(reply_of(*engine, request_of(counting_prompt(50), 9)), expected);
}

TEST(Engine, CancelTakesEffectWithinARound) {
  Gate gate;
  FakeModelOptions model;
  model.on_forward = [&](const RoundPlan&) { gate.pass(); };
  const auto engine = start(model, 1);
  gate.close();
  StreamProbe in_prompt, queued, next;
  const auto first = engine->open(request_of(counting_prompt(300), 50), in_prompt.sink());
  const auto second = engine->open(request_of(counting_prompt(20), 5), queued.sink());
  gate.wait_for_arrivals(1);
  EXPECT_EQ(engine->load().waiting, 1);
  EXPECT_EQ(engine->load().running, 1);  // counted from its admission, not from the end of its first pass
  first->cancel();
  second->cancel();
  second->cancel();
  gate.open();
  EXPECT_EQ(in_prompt.wait().reason, FinishReason::kCancelled);
  EXPECT_TRUE(in_prompt.progress().empty());  // not even the pass under way is delivered
  EXPECT_EQ(queued.wait().reason, FinishReason::kCancelled);
  gate.close_after(4);  // the prompt, three more tokens' rows: the last is held
  const auto third = engine->open(request_of(counting_prompt(20), 300), next.sink());
  next.wait_for_tokens(3);
  third->cancel();
  gate.open();
  EXPECT_EQ(next.wait().reason, FinishReason::kCancelled);
  EXPECT_EQ(next.reply().size(), 3u);
  third->cancel();  // after the end: nothing
  for (const StreamProbe* probe : {&in_prompt, &queued, &next}) {
    EXPECT_EQ(probe->finishes(), 1);
    EXPECT_EQ(probe->events_after_finish(), 0);
  }
  // The lane and its pages are free again.
  EXPECT_EQ(reply_of(*engine, request_of(counting_prompt(300), 100)).size(), 100u);
}

TEST(Engine, ABackgroundStreamYieldsItsLaneAndGoesOnWhereItStood) {
  for (const bool drafts : {false, true}) {
    Gate gate;
    FakeModelOptions model;
    const auto alone = start();
    model.on_forward = [&](const RoundPlan&) { gate.pass(); };
    const auto engine = start(model, 2);
    const auto make = [&](std::int32_t first, bool background) {
      StreamRequest request = request_of(counting_prompt(60, first), 40);
      request.sampling = {0.8, 0, 1.0, 0.0, static_cast<std::uint64_t>(first)};
      request.logit_rule.frequency_penalty = 0.5;
      request.logprobs_top = 1;
      request.score_prompt = true;
      request.background = background;
      request.drafts = drafts;
      request.rule = std::make_unique<ScriptedRule>(
          [](const std::vector<std::int32_t>& path) {
            return path.size() == 35 ? PathRule::Verdict::kStop : PathRule::Verdict::kContinue;
          },
          std::vector<std::int32_t>{}, std::vector<std::int32_t>{});
      return request;
    };
    const auto expected = [&](std::int32_t first) {
      StreamProbe probe;
      alone->open(make(first, false), probe.sink());
      EXPECT_EQ(probe.wait().reason, FinishReason::kStopRule);
      return probe.reply();
    };
    const std::vector<std::int32_t> first = expected(1), second = expected(2), third = expected(3),
                                    fourth = expected(4);
    std::vector<std::int32_t> rows;
    StreamProbe one, two, three, four;
    StreamRequest request = make(1, true);
    request.on_logits = [&rows](std::int32_t index, const float*, std::int32_t) { rows.push_back(index); };
    gate.close_after(14);  // well inside its reply
    engine->open(std::move(request), one.sink());
    gate.wait_for_arrivals(14);
    engine->open(make(2, true), two.sink());
    engine->open(make(3, false), three.sink());  // takes the free lane
    engine->open(make(4, false), four.sink());   // takes the first one's
    gate.open();
    three.wait();
    four.wait();
    EXPECT_EQ(three.reply(), third);
    EXPECT_EQ(four.reply(), fourth);
    EXPECT_EQ(one.wait().reason, FinishReason::kStopRule) << one.wait().message;
    EXPECT_EQ(two.wait().reason, FinishReason::kStopRule) << two.wait().message;
    EXPECT_EQ(one.reply(), first);
    EXPECT_EQ(two.reply(), second);
    EXPECT_EQ(one.wait().statistics.preemptions, 1);
    EXPECT_EQ(two.wait().statistics.preemptions, 0);
    EXPECT_EQ(one.wait().statistics.reply_tokens, 35);
    EXPECT_EQ(one.scores().size(), 60u);  // once each
    for (std::size_t i = 0; i < one.tokens().size(); ++i)
      EXPECT_EQ(one.tokens()[i].index, static_cast<std::int32_t>(i));
    ASSERT_EQ(rows.size(), 60u + 34u);
    for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], static_cast<std::int32_t>(i));
  }
}

TEST(Engine, APreemptedStreamCanBeCancelled) {
  Gate gate;
  FakeModelOptions model;
  model.on_forward = [&](const RoundPlan&) { gate.pass(); };
  const auto engine = start(model, 1);
  StreamProbe background, foreground;
  StreamRequest request = request_of(counting_prompt(20), 300);
  request.background = true;
  gate.close_after(8);
  const auto handle = engine->open(std::move(request), background.sink());
  gate.wait_for_arrivals(8);
  engine->open(request_of(counting_prompt(20, 1), 300), foreground.sink());
  gate.release(5);
  gate.wait_for_arrivals(13);
  EXPECT_EQ(engine->load().waiting, 1);
  EXPECT_EQ(engine->load().running, 1);
  handle->cancel();
  gate.open();
  EXPECT_EQ(background.wait().reason, FinishReason::kCancelled);
  EXPECT_EQ(background.wait().statistics.preemptions, 1);
  EXPECT_EQ(foreground.wait().reason, FinishReason::kLength);
}

TEST(Engine, CancelFromTheSinkItself) {
  StreamProbe probe;
  std::unique_ptr<StreamHandle> handle;
  std::mutex mutex;
  const auto engine = start();  // last, so that its thread is joined before what the sink refers to is gone
  {
    const std::lock_guard lock(mutex);
    handle = engine->open(request_of(counting_prompt(20), 200), [&, inner = probe.sink()](StreamEvent&& event) {
      inner(std::move(event));
      const std::lock_guard sink_lock(mutex);
      handle->cancel();
    });
  }
  EXPECT_EQ(probe.wait().reason, FinishReason::kCancelled);
  EXPECT_LE(probe.reply().size(), 1u);
}

TEST(Engine, DestructionCancelsEverything) {
  Gate gate;
  FakeModelOptions model;
  model.on_forward = [&](const RoundPlan&) { gate.pass(); };
  auto engine = start(model, 2);
  gate.close();
  std::vector<StreamProbe> probes(6);
  std::vector<std::unique_ptr<StreamHandle>> handles;
  for (StreamProbe& probe : probes) handles.push_back(engine->open(request_of(counting_prompt(20), 300), probe.sink()));
  gate.wait_for_arrivals(1);
  std::thread opener([&gate] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // well after the engine was told to stop
    gate.open();
  });
  engine.reset();
  opener.join();
  for (StreamProbe& probe : probes) {
    EXPECT_EQ(probe.finishes(), 1);
    EXPECT_EQ(probe.wait().reason, FinishReason::kCancelled);
  }
  handles[0]->cancel();  // handles outlive the engine
}

TEST(Engine, TheQueueIsBounded) {
  Gate gate;
  FakeModelOptions model;
  model.on_forward = [&](const RoundPlan&) { gate.pass(); };
  auto engine = start(model, 1);
  gate.close();
  StreamProbe probe;
  engine->open(request_of({1}, 1), probe.sink());
  gate.wait_for_arrivals(1);
  for (std::size_t i = 0; i < limits::kStreamQueueMax; ++i) engine->open(request_of({1}, 1), probe.sink());
  try {
    engine->open(request_of({1}, 1), probe.sink());
    ADD_FAILURE() << "the queue took one more";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
  }
  EXPECT_EQ(engine->load().waiting, static_cast<std::int32_t>(limits::kStreamQueueMax));
  gate.open();
}

std::string refusal(Engine& engine, StreamRequest request) {
  try {
    engine.open(std::move(request), [](StreamEvent&&) {});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

TEST(Engine, BadRequestsAreRefusedWithWhatToDo) {
  const auto engine = start({}, 2, 200);
  EXPECT_NE(refusal(*engine, request_of({}, 5)).find("empty"), std::string::npos);
  EXPECT_NE(refusal(*engine, request_of({1, 61}, 5)).find("id 61"), std::string::npos);
  EXPECT_NE(refusal(*engine, request_of({-1}, 5)).find("id -1"), std::string::npos);
  EXPECT_NE(refusal(*engine, request_of({1}, -5)).find("-5"), std::string::npos);
  EXPECT_EQ(
      refusal(*engine, request_of(counting_prompt(150), 51))
          .rfind(
              "This server's maximum context length is 200 tokens. The prompt has 150 tokens and 51 reply tokens were "
              "requested; up to 50 reply tokens would fit.",
              0),
      0u);
  EXPECT_EQ(
      refusal(*engine, request_of(counting_prompt(200), 1))
          .rfind("This server's maximum context length is 200 tokens. The prompt has 200 tokens and leaves no room", 0),
      0u);
  EXPECT_NE(refusal(*engine, request_of({1}, 2'147'483'647)), "accepted");
  StreamRequest request = request_of({1}, 1);
  request.logprobs_top = 21;
  EXPECT_NE(refusal(*engine, std::move(request)), "accepted");
  request = request_of({1}, 1);
  request.sampling.temperature = NAN;
  EXPECT_NE(refusal(*engine, std::move(request)), "accepted");
  request = request_of({1}, 1);
  request.sampling.min_p = 1.5;
  EXPECT_NE(refusal(*engine, std::move(request)), "accepted");
  const LogitRule rules[] = {{0.0, 0, 0, {}},
                             {-1.0, 0, 0, {}},
                             {NAN, 0, 0, {}},
                             {INFINITY, 0, 0, {}},
                             {1.0, NAN, 0, {}},
                             {1.0, 0, INFINITY, {}},
                             {1.0, 0, 0, {{61, 1.0}}},
                             {1.0, 0, 0, {{-1, 1.0}}},
                             {1.0, 0, 0, {{5, 1.0}, {5, 1.0}}},
                             {1.0, 0, 0, {{5, NAN}}},
                             {1.0, 0, 0, {{7, 1.0}, {5, 1.0}}},
                             {1.0, 0, 0, std::vector<TokenBias>(limits::kLogitBiasTokensMax + 1)}};
  for (const LogitRule& rule : rules) {
    request = request_of({1}, 1);
    request.logit_rule = rule;
    EXPECT_NE(refusal(*engine, std::move(request)), "accepted");
  }
  EXPECT_EQ(reply_of(*engine, request_of(counting_prompt(150), 50)).size(), 50u);  // the promise, to the last token
  EXPECT_EQ(reply_of(*engine, request_of(counting_prompt(200), 0)).size(), 0u);
}

TEST(Engine, ScoresPromptsAndReplies) {
  std::atomic<std::size_t> most_logits{0};
  FakeModelOptions model;
  model.on_forward = [&](const RoundPlan& plan) { most_logits = std::max(most_logits.load(), plan.rows.size()); };
  const auto engine = start(model);
  StreamRequest request = request_of(counting_prompt(90), 4);
  request.score_prompt = true;
  request.logprobs_top = 3;
  StreamProbe probe;
  engine->open(std::move(request), probe.sink());
  probe.wait();
  fold::SerialRun serial(std::make_unique<FakeModel>(), 400);
  serial.begin();
  HostSampler sampler(serial.facts().vocabulary_size);
  std::vector<std::int32_t> tokens = counting_prompt(90);
  const std::vector<std::int32_t> reply = probe.reply();
  tokens.insert(tokens.end(), reply.begin(), reply.end());
  ASSERT_EQ(probe.scores().size(), 90u);
  EXPECT_TRUE(probe.scores()[0].top.empty());
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    TokenLogprob chosen;
    std::vector<TokenLogprob> top;
    ASSERT_TRUE(sampler.logprobs(serial.feed(tokens[i - 1]), tokens[i], 3, chosen, top));
    const TokenLogprob scored = i < 90 ? probe.scores()[i].chosen : probe.tokens()[i - 90].chosen;
    const std::vector<TokenLogprob> scored_top = i < 90 ? probe.scores()[i].top : probe.tokens()[i - 90].top;
    EXPECT_EQ(scored.token, tokens[i]);
    EXPECT_EQ(scored.logprob, chosen.logprob);
    ASSERT_EQ(scored_top.size(), 3u);
    EXPECT_EQ(scored_top[2].token, top[2].token);
    if (i < 90) {
      EXPECT_EQ(probe.scores()[i].index, static_cast<std::int32_t>(i));
    }
  }
}

TEST(Engine, ScoringKeepsTheLogitsBufferBounded) {
  std::atomic<std::size_t> most{0};
  FakeModelOptions model;
  model.vocabulary_size = 1 << 20;  // 4 MiB a row
  model.on_forward = [&](const RoundPlan& plan) { most = std::max(most.load(), plan.rows.size()); };
  const auto engine = start(model);
  StreamRequest request = request_of(counting_prompt(20), 0);
  request.score_prompt = true;
  StreamProbe probe;
  engine->open(std::move(request), probe.sink());
  EXPECT_EQ(probe.wait().reason, FinishReason::kLength);
  EXPECT_EQ(probe.scores().size(), 20u);
  EXPECT_LE(most.load(), limits::kPassLogitsBytesMax >> 22);
}

TEST(Engine, EveryLaneHasTheWholeContextAtOnce) {
  // Memory for exactly what is promised; every lane then uses all of it at the same time.
  EngineOptions options;
  options.context = 333;
  options.cache_memory_bytes = 1u << 20;
  const auto engine = Engine::start(std::make_unique<FakeModel>(), options);
  const std::int32_t lanes = engine->facts().lanes;
  EXPECT_GE(lanes, 4);
  EXPECT_LE(engine->facts().cache_bytes, options.cache_memory_bytes);
  std::vector<StreamProbe> probes(static_cast<std::size_t>(3 * lanes));
  for (StreamProbe& probe : probes) engine->open(request_of(counting_prompt(303), 30), probe.sink());
  for (StreamProbe& probe : probes) {
    EXPECT_EQ(probe.wait().reason, FinishReason::kLength) << probe.wait().message;
    EXPECT_EQ(probe.reply(), probes[0].reply());
  }
}

TEST(Engine, PassesStayWithinTheirTime) {
  std::vector<std::size_t> rows;
  FakeModelOptions model;
  model.pass_rows_max = 400;
  model.seconds_per_row = 0.0005;
  model.on_forward = [&](const RoundPlan& plan) { rows.push_back(plan.rows.size()); };
  EngineOptions options;
  options.lanes = 2;
  options.cache_memory_bytes = 1u << 30;
  options.pass_seconds_max = 0.02;  // 40 rows
  auto engine = Engine::start(std::make_unique<FakeModel>(model), options);
  StreamProbe probe;
  engine->open(request_of(counting_prompt(700), 2), probe.sink());
  probe.wait();
  engine.reset();
  EXPECT_LE(*std::max_element(rows.begin(), rows.end()), 60u);
  EXPECT_LE(rows.size(), 80u);  // and not needlessly small
}

TEST(Engine, LoadCountsWhatHappened) {
  const auto engine = start();
  reply_of(*engine, request_of(counting_prompt(64), 10));
  reply_of(*engine, request_of(counting_prompt(36), 5));
  EngineLoad load;
  EXPECT_TRUE(testing::eventually([&] {
    load = engine->load();
    return load.reply_tokens_total >= 15 && load.running == 0;
  }));
  EXPECT_EQ(load.prompt_tokens_total, 100u);
  EXPECT_EQ(load.reply_tokens_total, 15u);
  EXPECT_GT(load.decode_tokens_per_second, 0.0);
  EXPECT_GT(load.prefill_tokens_per_second, 0.0);
  EXPECT_GE(load.rounds_total, 15u);
  EXPECT_EQ(load.running, 0);
  EXPECT_EQ(load.waiting, 0);
}

}  // namespace
}  // namespace tensorfold
