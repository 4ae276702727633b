// Drafted streams on the fake model: whatever a source proposes, every event equals the serial run's; sources that
// misbehave are silenced; windows stay within the reply and the pass; depth follows what pays.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <stdexcept>

#include "eventually.h"
#include "base/error.h"
#include "engine/engine.h"
#include "engine/verify/oracle_source.h"
#include "fake_model.h"
#include "scripted_rule.h"
#include "stream_probe.h"

namespace tensorfold {
namespace {

using fold::KnownReplies;
using fold::OracleOptions;
using fold::OracleSource;
using testing::counting_prompt;
using testing::FakeModel;
using testing::FakeModelOptions;
using testing::request_of;
using testing::ScriptedRule;
using testing::StreamProbe;

using MakeRequest = std::function<StreamRequest()>;

OracleOptions oracle_of(std::shared_ptr<const KnownReplies> known, std::uint64_t seed = 1) {
  OracleOptions options;
  options.vocabulary_size = FakeModelOptions().vocabulary_size;
  options.known = std::move(known);
  options.seed = seed;
  return options;
}

EngineOptions options_of(std::vector<std::shared_ptr<DraftSource>> sources, std::uint64_t schedule_seed = 1,
                         std::int32_t lanes = 4) {
  EngineOptions options;
  options.lanes = lanes;
  options.context = 400;
  options.cache_memory_bytes = 1u << 30;
  options.poison_freed = true;
  options.schedule_seed = schedule_seed;
  options.drafts = !sources.empty();
  options.draft_sources = std::move(sources);
  return options;
}

std::unique_ptr<Engine> start(const EngineOptions& options, FakeModelOptions model = {}) {
  return Engine::start(std::make_unique<FakeModel>(std::move(model)), options);
}

struct Outcome {
  std::vector<TokenEvent> tokens;
  std::vector<std::int32_t> logits_rows;  // sequence indices reported
  std::vector<float> logits_probe;        // one logit of each
  FinishEvent finish;
};

Outcome run(Engine& engine, StreamRequest request, bool with_logits = false) {
  Outcome outcome;
  StreamProbe probe;
  if (with_logits) {
    request.on_logits = [&outcome](std::int32_t index, const float* logits, std::int32_t) {
      outcome.logits_rows.push_back(index);
      outcome.logits_probe.push_back(logits[7]);
    };
  }
  engine.open(std::move(request), probe.sink());
  outcome.finish = probe.wait();
  outcome.tokens = probe.tokens();
  EXPECT_EQ(probe.events_after_finish(), 0);
  return outcome;
}

void expect_equal(const Outcome& drafted, const Outcome& serial) {
  EXPECT_EQ(drafted.finish.reason, serial.finish.reason);
  EXPECT_EQ(drafted.finish.message, serial.finish.message);
  ASSERT_EQ(drafted.tokens.size(), serial.tokens.size());
  for (std::size_t i = 0; i < serial.tokens.size(); ++i) {
    ASSERT_EQ(drafted.tokens[i].token, serial.tokens[i].token) << i;
    EXPECT_EQ(drafted.tokens[i].index, serial.tokens[i].index);
    EXPECT_EQ(drafted.tokens[i].is_stop_token, serial.tokens[i].is_stop_token);
    EXPECT_EQ(drafted.tokens[i].chosen.token, serial.tokens[i].chosen.token);
    EXPECT_EQ(drafted.tokens[i].chosen.logprob, serial.tokens[i].chosen.logprob);
    ASSERT_EQ(drafted.tokens[i].top.size(), serial.tokens[i].top.size());
    for (std::size_t t = 0; t < serial.tokens[i].top.size(); ++t) {
      EXPECT_EQ(drafted.tokens[i].top[t].token, serial.tokens[i].top[t].token);
      EXPECT_EQ(drafted.tokens[i].top[t].logprob, serial.tokens[i].top[t].logprob);
    }
  }
  EXPECT_EQ(drafted.logits_rows, serial.logits_rows);
  EXPECT_EQ(drafted.logits_probe, serial.logits_probe);
}

/// Runs the request serially, then drafted by an oracle that knows the reply, under `times` random schedules.
DraftCounts expect_drafted_equals_serial(const MakeRequest& make, FakeModelOptions model = {}, int times = 12,
                                         bool with_logits = true) {
  const auto serial_engine = start(options_of({}, 0), model);
  const Outcome serial = run(*serial_engine, make(), with_logits);
  auto known = std::make_shared<KnownReplies>();
  std::vector<std::int32_t> context = make().prompt.tokens;
  for (const TokenEvent& event : serial.tokens) context.push_back(event.token);
  known->add(context);
  DraftCounts counts;
  for (int i = 0; i < times; ++i) {
    OracleOptions oracle_options = oracle_of(known, static_cast<std::uint64_t>(i) + 1);
    oracle_options.wrong_share = 0.1 * (i % 5);
    oracle_options.tree_share = 0.5 * (i % 3);
    const auto oracle = std::make_shared<OracleSource>(oracle_options);
    const auto engine = start(options_of({oracle}, static_cast<std::uint64_t>(i) + 77), model);
    const Outcome drafted = run(*engine, make(), with_logits);
    expect_equal(drafted, serial);
    EXPECT_EQ(oracle->contract_breaches, 0);
    const StreamStatistics& statistics = drafted.finish.statistics;
    counts.drafted += static_cast<std::uint64_t>(statistics.drafted);
    counts.accepted += static_cast<std::uint64_t>(statistics.accepted);
    EXPECT_EQ(statistics.by_source[static_cast<std::size_t>(DraftKind::kMtp)].drafted, statistics.drafted);
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << "schedule " << i;
      break;
    }
  }
  return counts;
}

TEST(Drafts, EveryEventEqualsTheSerialRuns) {
  for (const double temperature : {0.0, 0.9}) {
    const DraftCounts counts = expect_drafted_equals_serial([temperature] {
      StreamRequest request = request_of(counting_prompt(90), 60);
      request.sampling = {temperature, 30, 0.95, 0.0, 99};
      request.logit_rule.repetition_penalty = 1.2;
      request.logit_rule.frequency_penalty = 0.4;
      request.logit_rule.presence_penalty = 0.2;
      request.logit_rule.bias = {{3, 1.5}, {8, -2.0}};
      request.logprobs_top = 4;
      return request;
    });
    EXPECT_GT(counts.accepted, 100u);
    EXPECT_GT(counts.drafted, counts.accepted + 100u);  // and there were enough mistakes
  }
}

TEST(Drafts, FewerRoundsThanTokens) {
  const auto known = std::make_shared<KnownReplies>();
  const auto serial_engine = start(options_of({}, 0));
  const Outcome serial = run(*serial_engine, request_of(counting_prompt(50), 100));
  std::vector<std::int32_t> context = counting_prompt(50);
  for (const TokenEvent& event : serial.tokens) context.push_back(event.token);
  known->add(context);
  OracleOptions options = oracle_of(known);
  options.wrong_share = 0.0;
  options.tree_share = 0.0;
  const auto oracle = std::make_shared<OracleSource>(options);
  FakeModelOptions model;
  model.seconds_per_pass = 0.001;  // as if weights were read: drafts pay
  const auto engine = start(options_of({oracle}, 0), model);
  const Outcome drafted = run(*engine, request_of(counting_prompt(50), 100));
  expect_equal(drafted, serial);
  const StreamStatistics& statistics = drafted.finish.statistics;
  EXPECT_LT(statistics.rounds, 40);
  EXPECT_EQ(statistics.rounds + statistics.accepted, 99);  // every round gives one token and its accepted drafts
  EXPECT_EQ(statistics.accepted, statistics.drafted);      // it never asks for drafts past the reply's end
  EXPECT_GT(statistics.rows_max, 4);
  EXPECT_EQ(oracle->opened, 1);
}

TEST(Drafts, ShortRepliesNeverDraftPastTheirEnd) {
  for (const std::int32_t reply : {0, 1, 2, 3, 5}) {
    expect_drafted_equals_serial([reply] { return request_of(counting_prompt(63), reply); }, {}, 6);
  }
  // The promise to the last token: the context is full, and pages were reserved for no more.
  expect_drafted_equals_serial([] { return request_of(counting_prompt(360), 40); }, {}, 6);
}

TEST(Drafts, StopsInsideAWindow) {
  const auto engine = start(options_of({}, 0));
  const Outcome plain = run(*engine, request_of(counting_prompt(40), 40));
  for (const std::size_t place : {0, 3, 11, 25}) {
    const std::int32_t stop = plain.tokens[place].token;
    expect_drafted_equals_serial([stop] {
      StreamRequest request = request_of(counting_prompt(40), 40);
      request.stop_tokens = {stop};
      return request;
    });
  }
  expect_drafted_equals_serial([&plain] {
    StreamRequest request = request_of(counting_prompt(40), 40);
    request.stop_tokens = {plain.tokens[5].token};
    request.ignore_stop_tokens = true;
    return request;
  });
}

PathRule::Verdict verdict_at(const std::vector<std::int32_t>& path, std::size_t length, PathRule::Verdict verdict) {
  return path.size() == length ? verdict : PathRule::Verdict::kContinue;
}

MakeRequest with_rule(ScriptedRule::Script script, std::vector<std::int32_t> forced = {},
                      std::vector<std::int32_t> allowed = {}, std::size_t forced_from = 0) {
  return [=] {
    StreamRequest request = request_of(counting_prompt(25), 40);
    request.sampling = {0.7, 0, 1.0, 0.0, 5};
    request.rule = std::make_unique<ScriptedRule>(script, forced, allowed, forced_from);
    return request;
  };
}

TEST(Drafts, RulesFollowEachRowsOwnPath) {
  for (const std::size_t length : {1, 2, 9, 23}) {
    for (const auto verdict : {PathRule::Verdict::kStop, PathRule::Verdict::kCut}) {
      expect_drafted_equals_serial(
          with_rule([=](const std::vector<std::int32_t>& path) { return verdict_at(path, length, verdict); }));
    }
    expect_drafted_equals_serial(with_rule([=](const std::vector<std::int32_t>& path) -> PathRule::Verdict {
      if (path.size() == length) throw Error(ErrorCode::kInternal, "the grammar broke");
      return PathRule::Verdict::kContinue;
    }));
  }
  const auto go_on = [](const std::vector<std::int32_t>&) { return PathRule::Verdict::kContinue; };
  const DraftCounts masked = expect_drafted_equals_serial(with_rule(go_on, {}, {7, 11, 33, 60}));
  EXPECT_GT(masked.accepted, 50u);
  expect_drafted_equals_serial(with_rule(go_on, {3, 1, 4, 1, 5, 9, 2, 6}));
  expect_drafted_equals_serial(with_rule(go_on, {3, 1, 4, 1, 5, 9, 2, 6}, {}, 13));
  expect_drafted_equals_serial(with_rule(go_on, {3, 1000}, {}, 6));  // a rule's own mistake comes at the same token
}

TEST(Drafts, ForcedTokensAreFedTogether) {
  const auto go_on = [](const std::vector<std::int32_t>&) { return PathRule::Verdict::kContinue; };
  std::vector<std::int32_t> forced;
  for (std::int32_t i = 0; i < 30; ++i) forced.push_back(i);
  FakeModelOptions model;
  model.seconds_per_pass = 0.001;
  OracleOptions oracle_options = oracle_of(nullptr);
  const auto engine = start(options_of({std::make_shared<OracleSource>(oracle_options)}, 0), model);
  const Outcome drafted = run(*engine, with_rule(go_on, forced)());
  ASSERT_EQ(drafted.tokens.size(), 40u);
  for (std::size_t i = 0; i < forced.size(); ++i) EXPECT_EQ(drafted.tokens[i].token, forced[i]);
  EXPECT_LT(drafted.finish.statistics.rounds, 20);
  StreamRequest plain = with_rule(go_on, forced)();
  plain.drafts = false;
  const Outcome serial = run(*engine, std::move(plain));
  EXPECT_EQ(serial.finish.statistics.rounds, 39);  // the serial reference feeds one row a round
  expect_equal(drafted, serial);
}

TEST(Drafts, WhatARejectedBranchHoldsIsNeverLookedAt) {
  FakeModelOptions model;
  model.nan_token = 57;
  const auto make = [] {
    StreamRequest request = request_of(counting_prompt(40), 50);
    request.rule =
        std::make_unique<ScriptedRule>([](const std::vector<std::int32_t>&) { return PathRule::Verdict::kContinue; },
                                       std::vector<std::int32_t>{}, std::vector<std::int32_t>{});
    return request;
  };
  // The reply mustn't hold the token itself.
  const auto serial_engine = start(options_of({}, 0), model);
  const Outcome serial = run(*serial_engine, make());
  ASSERT_EQ(serial.finish.reason, FinishReason::kLength);
  // A source that proposes the row that turns to NaN, wherever the reply goes on otherwise.
  const auto nan_drafts = std::make_shared<KnownReplies>();
  std::vector<std::int32_t> context = counting_prompt(40);
  for (const TokenEvent& event : serial.tokens) {
    context.push_back(57);
    nan_drafts->add(context);
    context.back() = event.token;
  }
  nan_drafts->add(context);
  OracleOptions options = oracle_of(nan_drafts);
  const auto oracle = std::make_shared<OracleSource>(options);
  for (std::uint64_t seed = 1; seed < 8; ++seed) {
    const auto engine = start(options_of({oracle}, seed), model);
    expect_equal(run(*engine, make()), serial);
  }
  EXPECT_GT(oracle->chains + oracle->trees, 10);
  EXPECT_GT(oracle->landed_windows[0], 10);
}

TEST(Drafts, ManyStreamsMixedWithSerialOnes) {
  const auto known = std::make_shared<KnownReplies>();
  const auto request = [](std::int32_t i) {
    StreamRequest made = request_of(counting_prompt(1 + i * 7 % 120, i), 30);
    made.sampling = {i % 2 == 0 ? 0.0 : 1.0, 0, 1.0, 0.0, static_cast<std::uint64_t>(i)};
    made.drafts = i % 3 != 0;
    made.background = i % 5 == 0;
    return made;
  };
  std::vector<Outcome> serial;
  const auto alone = start(options_of({}, 0));
  for (std::int32_t i = 0; i < 32; ++i) {
    serial.push_back(run(*alone, request(i)));
    std::vector<std::int32_t> context = request(i).prompt.tokens;
    for (const TokenEvent& event : serial.back().tokens) context.push_back(event.token);
    known->add(std::move(context));
  }
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    OracleOptions options = oracle_of(known, seed + 1);
    const auto first = std::make_shared<OracleSource>(options);
    options.facts.kind = DraftKind::kRecall;
    options.facts.runs_model = true;
    const auto second = std::make_shared<OracleSource>(options);
    const auto engine = start(options_of({first, second}, seed, 9));
    std::vector<StreamProbe> probes(32);
    for (std::int32_t i = 0; i < 32; ++i) engine->open(request(i), probes[static_cast<std::size_t>(i)].sink());
    for (std::int32_t i = 0; i < 32; ++i) {
      const auto at = static_cast<std::size_t>(i);
      EXPECT_EQ(probes[at].wait().reason, serial[at].finish.reason) << probes[at].wait().message;
      Outcome outcome;
      outcome.tokens = probes[at].tokens();
      outcome.finish = probes[at].wait();
      expect_equal(outcome, serial[at]);
      if (!request(i).drafts) {
        EXPECT_EQ(outcome.finish.statistics.drafted, 0);
        EXPECT_EQ(outcome.finish.statistics.rounds, 29);
      }
    }
    // A stream without drafts never reaches a source; one that is preempted opens again.
    EXPECT_GE(first->opened, 21);
    EXPECT_LE(first->opened, 21 + 4);  // of the background ones, these draft
    EXPECT_EQ(first->contract_breaches + second->contract_breaches, 0);
    // Both close on the engine's thread after the last event, the second one last.
    EXPECT_TRUE(testing::eventually([&] { return second->closed >= first->opened; }));
    EXPECT_EQ(first->closed, first->opened);
    EXPECT_EQ(second->closed, first->opened);
  }
}

/// A source that breaks in the given way.
class BrokenSource : public DraftSource {
 public:
  enum class Way { kOpen, kAbsorb, kPropose, kObserve, kClose, kOneStream, kToken, kParent, kTooMany, kTooDeep };
  explicit BrokenSource(Way way) : way_(way) {
    facts_.depth_max = 15;
    facts_.nodes_max = 15;
  }
  const DraftSourceFacts& facts() const override { return facts_; }
  std::unique_ptr<DraftState> open(const DraftStream&) override {
    fail_if(Way::kOpen);
    return std::make_unique<DraftState>();
  }
  void absorb(std::vector<DraftAbsorb>&) override { fail_if(Way::kAbsorb); }
  void propose(std::vector<DraftRequest>& batch) override {
    ++proposed;
    fail_if(Way::kPropose);
    for (DraftRequest& request : batch) {
      request.proposal.nodes = {{1, -1, 0.9}};
      if (way_ == Way::kOneStream) request.failure = "no";
      if (way_ == Way::kToken) request.proposal.nodes[0].token = 61;
      if (way_ == Way::kParent) request.proposal.nodes[0].parent = 0;
      if (way_ == Way::kTooMany) request.proposal.nodes.resize(40, {1, -1, 0.5});
      if (way_ == Way::kTooDeep) {
        for (std::int32_t i = 0; i < request.depth_max; ++i) request.proposal.nodes.push_back({1, i, 0.5});
      }
    }
  }
  void observe(const DraftStream&, const DraftProposal&, std::int32_t, const std::vector<std::int32_t>&) override {
    fail_if(Way::kObserve);
  }
  void close(const DraftStream&) override { fail_if(Way::kClose); }
  std::atomic<int> proposed{0};

 private:
  void fail_if(Way way) const {
    if (way_ == way) throw std::runtime_error("broken");
  }
  Way way_;
  DraftSourceFacts facts_;
};

TEST(Drafts, ABrokenSourceIsSilencedAndTheStreamGoesOn) {
  const auto serial_engine = start(options_of({}, 0));
  const Outcome serial = run(*serial_engine, request_of(counting_prompt(30), 30));
  using Way = BrokenSource::Way;
  for (const Way way : {Way::kOpen, Way::kAbsorb, Way::kPropose, Way::kObserve, Way::kClose, Way::kOneStream,
                        Way::kToken, Way::kParent, Way::kTooMany, Way::kTooDeep}) {
    const auto source = std::make_shared<BrokenSource>(way);
    const auto engine = start(options_of({source}, 5));
    for (int i = 0; i < 2; ++i) {
      Outcome outcome = run(*engine, request_of(counting_prompt(30), 30));
      expect_equal(outcome, serial);
    }
    if (way != Way::kClose && way != Way::kOpen && way != Way::kAbsorb) {
      EXPECT_GE(source->proposed, 2);
      if (way != Way::kObserve) {
        EXPECT_EQ(source->proposed, 2);  // once a stream
      }
    }
  }
}

/// Allows one token a place: the text goes on with period `period`.
class RepeatingRule : public PathRule {
 public:
  RepeatingRule(std::vector<std::int32_t> text, std::size_t period) : text_(std::move(text)), period_(period) {}
  std::unique_ptr<PathRule> clone() const override { return std::make_unique<RepeatingRule>(*this); }
  Verdict advance(std::int32_t token) override {
    text_.push_back(token);
    return Verdict::kContinue;
  }
  bool mask(std::vector<std::uint32_t>& bits) override {
    const std::int32_t id = text_[text_.size() - period_];
    bits[static_cast<std::size_t>(id / 32)] |= 1u << (id % 32);
    return true;
  }

 private:
  std::vector<std::int32_t> text_;
  std::size_t period_;
};

TEST(Drafts, CopiesWidenForALoneStreamAndStayNarrowInCompany) {
  FakeModelOptions model;
  model.seconds_per_pass = 0.001;
  model.pass_rows_max = 300;
  model.infinities = false;
  const auto request = [](std::int32_t first) {
    StreamRequest made = request_of(counting_prompt(80, first), 300);  // its period is 53
    made.rule = std::make_unique<RepeatingRule>(made.prompt.tokens, 53);
    return made;
  };
  EngineOptions options = options_of({}, 0);
  options.drafts = true;  // the engine's own sources
  const auto serial_engine = start(options_of({}, 0), model);
  const Outcome serial = run(*serial_engine, request(0));
  // How wide a window grows follows measured times: on a machine that had other things to do it is tried again.
  std::unique_ptr<Engine> engine;
  Outcome alone;
  for (int attempt = 0; attempt < 5 && !(alone.finish.statistics.rows_max > 60 && alone.finish.statistics.rounds < 30); ++attempt) {
    engine = start(options, model);
    alone = run(*engine, request(0));
    expect_equal(alone, serial);
  }
  EXPECT_EQ(engine->facts().draft_kinds.front(), "copy");
  EXPECT_GT(alone.finish.statistics.rows_max, 60);
  EXPECT_LT(alone.finish.statistics.rounds, 30);
  EXPECT_GT(alone.finish.statistics.by_source[static_cast<std::size_t>(DraftKind::kCopy)].accepted, 250);
  std::vector<StreamProbe> probes(4);
  for (std::int32_t i = 0; i < 4; ++i) engine->open(request(i), probes[static_cast<std::size_t>(i)].sink());
  for (std::int32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(probes[static_cast<std::size_t>(i)].wait().statistics.reply_tokens, 300);
  }
  EXPECT_EQ(probes[0].reply().size(), serial.tokens.size());
  for (std::size_t i = 0; i < serial.tokens.size(); ++i) ASSERT_EQ(probes[0].reply()[i], serial.tokens[i].token);
}

TEST(Drafts, AHopelessSourceIsGivenUp) {
  OracleOptions options = oracle_of(nullptr);
  options.tree_share = 0.0;
  options.facts.runs_model = true;
  const auto oracle = std::make_shared<OracleSource>(options);
  FakeModelOptions model;
  model.context_max = 4096;
  model.seconds_per_pass = 0.0002;
  model.seconds_per_row = 0.0005;  // a row costs more than a pass: only sure drafts pay
  EngineOptions engine_options = options_of({oracle}, 0, 1);
  engine_options.context = 700;
  const auto engine = start(engine_options, model);
  run(*engine, request_of(counting_prompt(50), 100));  // costs are being learned
  const Outcome outcome = run(*engine, request_of(counting_prompt(50), 600));
  EXPECT_EQ(outcome.finish.reason, FinishReason::kLength);
  // A few tries, then one in a while. One that is never given up drafts in every round, or, as a plain pass stands between
  // two misses, in every other.
  EXPECT_LT(outcome.finish.statistics.drafted, 60);
  EXPECT_GT(outcome.finish.statistics.drafted, 1);
}

TEST(Drafts, LoadCountsDrafts) {
  const auto known = std::make_shared<KnownReplies>();
  const auto serial_engine = start(options_of({}, 0));
  std::vector<std::int32_t> context = counting_prompt(40);
  for (const TokenEvent& event : run(*serial_engine, request_of(counting_prompt(40), 50)).tokens) {
    context.push_back(event.token);
  }
  known->add(context);
  const OracleOptions options = oracle_of(known);
  const auto engine = start(options_of({std::make_shared<OracleSource>(options)}, 3));
  EXPECT_EQ(engine->facts().draft_kinds, std::vector<std::string>{"mtp"});
  const Outcome outcome = run(*engine, request_of(counting_prompt(40), 50));
  EXPECT_TRUE(testing::eventually([&] { return engine->load().running == 0; }));
  const EngineLoad load = engine->load();
  const DraftCounts& total = load.drafts_total[static_cast<std::size_t>(DraftKind::kMtp)];
  EXPECT_EQ(total.drafted, static_cast<std::uint64_t>(outcome.finish.statistics.drafted));
  EXPECT_EQ(total.accepted, static_cast<std::uint64_t>(outcome.finish.statistics.accepted));
  EXPECT_GT(total.windows, 0u);
}

}  // namespace
}  // namespace tensorfold
