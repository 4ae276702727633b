// Path rules are asked while the pass runs, once for each draw, and say what they would have said after it.
#include "engine/rules_ahead.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/error.h"
#include "engine/engine.h"
#include "fake_model.h"
#include "stream_probe.h"

namespace tensorfold {
namespace {

using testing::FakeModel;
using testing::StreamProbe;

std::atomic<bool> in_pass{false};

/// As a model that queues its passes.
class QueueingModel : public FakeModel {
 public:
  void forward_beside(const RoundPlan& plan, ForwardResult& result, const std::function<void()>& host_work) override {
    in_pass = true;
    host_work();
    in_pass = false;
    forward(plan, result);
  }
};

struct Calls {
  std::atomic<int> all{0}, in_pass{0};
};

class WatchedRule : public PathRule {
 public:
  WatchedRule(Calls& calls, std::size_t throws_at) : calls_(calls), throws_at_(throws_at) {}
  std::unique_ptr<PathRule> clone() const override { return std::make_unique<WatchedRule>(*this); }
  Verdict advance(std::int32_t token) override {
    path_.push_back(token);
    return Verdict::kContinue;
  }
  bool mask(std::vector<std::uint32_t>& bits) override {
    ++calls_.all;
    if (in_pass) ++calls_.in_pass;
    if (path_.size() == throws_at_) throw Error(ErrorCode::kInternal, "no mask at this place");
    for (std::size_t id = path_.size() % 3; id < 61; id += 3) bits[id / 32] |= 1u << (id % 32);
    return true;
  }

 private:
  Calls& calls_;
  std::size_t throws_at_;
  std::vector<std::int32_t> path_;
};

StreamRequest with_rule(Calls& calls, std::size_t throws_at = 1000) {
  StreamRequest request;
  for (std::int32_t i = 0; i < 75; ++i) request.prompt.tokens.push_back(i % 61);
  request.reply_tokens_max = 10;
  request.drafts = false;
  request.rule = std::make_unique<WatchedRule>(calls, throws_at);
  return request;
}

std::unique_ptr<Engine> start(std::unique_ptr<FakeModel> model) {
  EngineOptions options;
  options.lanes = 3;
  options.context = 400;
  options.cache_memory_bytes = 1u << 30;
  return Engine::start(std::move(model), options);
}

TEST(RulesAhead, RulesAreAskedWhileThePassRuns) {
  Calls beside, after;
  StreamProbe first, second, plain;
  const auto queueing = start(std::make_unique<QueueingModel>());
  queueing->open(with_rule(beside), first.sink());
  queueing->open(with_rule(beside), second.sink());
  const auto engine = start(std::make_unique<FakeModel>());
  engine->open(with_rule(after), plain.sink());
  EXPECT_EQ(first.wait().reason, FinishReason::kLength);
  EXPECT_EQ(second.wait().reason, FinishReason::kLength);
  EXPECT_EQ(plain.wait().reason, FinishReason::kLength);
  EXPECT_EQ(beside.all, 20);  // one a draw, none for the prompt's first pass
  EXPECT_EQ(beside.in_pass, 20);
  EXPECT_EQ(after.all, 10);
  EXPECT_EQ(first.reply(), plain.reply());
  EXPECT_EQ(second.reply(), plain.reply());
}

TEST(RulesAhead, ARuleThatThrowsEndsItsStreamAtItsDraw) {
  Calls healthy, bad;
  StreamProbe well, ill;
  const auto engine = start(std::make_unique<QueueingModel>());
  engine->open(with_rule(healthy), well.sink());
  engine->open(with_rule(bad, 3), ill.sink());
  EXPECT_EQ(ill.wait().reason, FinishReason::kError);
  EXPECT_EQ(ill.wait().message, "no mask at this place");
  EXPECT_EQ(ill.reply().size(), 3u);
  EXPECT_EQ(well.wait().reason, FinishReason::kLength);
}

TEST(RulesAhead, AnswersBelongToTheirRowsAndPass) {
  Calls calls;
  WatchedRule one(calls, 1000), other(calls, 1000);
  other.advance(5);
  RulesAhead rules(64);
  rules.begin_pass();
  rules.ask(one, 2);
  rules.ask(other, 7);
  EXPECT_EQ(calls.all, 2);
  EXPECT_EQ(rules.answer(other, 7).allowed[0] & 7u, 2u);
  EXPECT_EQ(rules.answer(one, 2).allowed[0] & 7u, 1u);
  EXPECT_EQ(calls.all, 2);
  other.advance(6);
  EXPECT_EQ(rules.answer(other, 8).allowed[0] & 7u, 4u);  // a row behind: asked now
  EXPECT_EQ(calls.all, 3);
  rules.begin_pass();
  EXPECT_EQ(rules.answer(other, 7).allowed[0] & 7u, 4u);
  EXPECT_EQ(calls.all, 4);
}

}  // namespace
}  // namespace tensorfold
