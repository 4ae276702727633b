// Draft sources inside an engine, on the fake model with fake drafters: replies equal the serial ones under every rule,
// right drafts land and wrong ones don't, also beside neighbours, after cancels and failures; and the recall store from
// one request to the next.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "eventually.h"
#include "base/limits.h"
#include "base/temporary_folder.h"
#include "engine/draft/recall_store.h"
#include "fake_heads.h"
#include "stream_probe.h"

namespace tensorfold {
namespace {

using testing::counting_prompt;
using testing::FakeDraftingModel;
using testing::FakeHeadsOptions;
using testing::request_of;
using testing::StreamProbe;

struct Running {
  std::unique_ptr<Engine> engine;
  FakeDraftingModel* model = nullptr;
};

Running start(FakeHeadsOptions heads, EngineOptions options = {}) {
  heads.model.seconds_per_pass = 0.0005;  // drafting pays
  auto model = std::make_unique<FakeDraftingModel>(std::move(heads));
  Running running;
  running.model = model.get();
  options.lanes = 4;
  options.context = 400;
  options.cache_memory_bytes = 64u << 20;
  options.mtp_confidence = 0.05;  // shares of hashed logits are small
  running.engine = Engine::start(std::move(model), options);
  return running;
}

struct Reply {
  std::vector<std::int32_t> tokens;
  StreamStatistics statistics;
  FinishReason reason = FinishReason::kError;
};

Reply run(Engine& engine, StreamRequest request) {
  StreamProbe probe;
  const auto handle = engine.open(std::move(request), probe.sink());
  const FinishEvent finish = probe.wait();
  return {probe.reply(), finish.statistics, finish.reason};
}

const DraftTally& counts(const Reply& reply, DraftKind kind) {
  return reply.statistics.by_source[static_cast<std::size_t>(kind)];
}

/// Every way to draw.
std::vector<StreamRequest> requests_of_all_rules(std::int32_t reply_tokens) {
  std::vector<StreamRequest> requests;
  for (int i = 0; i < 8; ++i) {
    StreamRequest request = request_of(counting_prompt(20 + 9 * i, i), reply_tokens);
    SamplingRule& rule = request.sampling;
    rule.seed = static_cast<std::uint64_t>(100 + i);
    if (i > 0) rule.temperature = 0.4 + 0.2 * i;
    if (i == 2) rule.top_k = 5;
    if (i == 3) rule.top_p = 0.8;
    if (i == 4) rule.min_p = 0.05;
    if (i == 5) request.logit_rule.repetition_penalty = 1.4;
    if (i == 6) request.logit_rule.presence_penalty = 0.7;
    if (i == 6) request.logit_rule.frequency_penalty = 0.3;
    if (i == 7) request.logit_rule.bias = {{7, 3.0}, {11, -100.0}};
    requests.push_back(std::move(request));
  }
  return requests;
}

StreamRequest copy_of(const StreamRequest& request) {
  StreamRequest copy = request_of(request.prompt.tokens, request.reply_tokens_max);
  copy.sampling = request.sampling;
  copy.logit_rule = request.logit_rule;
  copy.prompt.owner = request.prompt.owner;
  return copy;
}

std::vector<std::vector<std::int32_t>> serial_replies(const std::vector<StreamRequest>& requests) {
  EngineOptions options;
  options.drafts = false;
  const Running serial = start({}, options);
  std::vector<std::vector<std::int32_t>> replies;
  for (const StreamRequest& request : requests) {
    const Reply reply = run(*serial.engine, copy_of(request));
    EXPECT_EQ(reply.reason, FinishReason::kLength);
    EXPECT_EQ(reply.statistics.drafted, 0);
    replies.push_back(reply.tokens);
  }
  EXPECT_EQ(serial.model->mtp_absorbs, 0);
  return replies;
}

/// All at once, on fewer lanes than streams.
std::vector<Reply> run_together(Engine& engine, const std::vector<StreamRequest>& requests) {
  std::vector<StreamProbe> probes(requests.size());
  std::vector<std::unique_ptr<StreamHandle>> handles;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    handles.push_back(engine.open(copy_of(requests[i]), probes[i].sink()));
  }
  std::vector<Reply> replies;
  for (StreamProbe& probe : probes) {
    const FinishEvent finish = probe.wait();
    replies.push_back({probe.reply(), finish.statistics, finish.reason});
  }
  return replies;
}

/// Knows texts, and continues what ends like one of them.
std::function<std::int32_t(const std::vector<std::int32_t>&, std::int64_t)> continuation_of(
    std::vector<std::vector<std::int32_t>> texts) {
  return [texts = std::move(texts)](const std::vector<std::int32_t>& end, std::int64_t position) {
    for (const std::vector<std::int32_t>& text : texts) {
      const auto at = static_cast<std::size_t>(position);
      if (at >= text.size() || end.size() > at) continue;
      const auto first = text.begin() + static_cast<std::ptrdiff_t>(at - end.size());
      if (std::equal(end.begin(), end.end(), first)) return text[at];
    }
    return -1;
  };
}

std::vector<std::vector<std::int32_t>> whole_texts(const std::vector<StreamRequest>& requests,
                                                   const std::vector<std::vector<std::int32_t>>& replies) {
  std::vector<std::vector<std::int32_t>> texts;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    texts.push_back(requests[i].prompt.tokens);
    texts.back().insert(texts.back().end(), replies[i].begin(), replies[i].end());
  }
  return texts;
}

TEST(MtpEngine, RightDraftsLandUnderEveryRuleAlone) {
  const std::vector<StreamRequest> requests = requests_of_all_rules(60);
  const auto expected = serial_replies(requests);
  const Running running = start({});
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Reply reply = run(*running.engine, copy_of(requests[i]));
    EXPECT_EQ(reply.tokens, expected[i]) << i;
    const DraftTally& mtp = counts(reply, DraftKind::kMtp);
    EXPECT_GT(mtp.drafted, 20) << i;
    EXPECT_EQ(mtp.accepted, mtp.drafted) << i << ": the head knows what the target draws";
    EXPECT_LT(reply.statistics.rounds, 45) << i;
  }
  EXPECT_GT(running.model->mtp_steps, 0);
}

TEST(MtpEngine, RightDraftsLandBesideNeighbours) {
  const std::vector<StreamRequest> requests = requests_of_all_rules(60);
  const auto expected = serial_replies(requests);
  const Running running = start({});
  for (int round = 0; round < 3; ++round) {
    const std::vector<Reply> replies = run_together(*running.engine, requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(replies[i].tokens, expected[i]) << i;
      const DraftTally& mtp = counts(replies[i], DraftKind::kMtp);
      EXPECT_GT(mtp.drafted, 0) << i;
      EXPECT_EQ(mtp.accepted, mtp.drafted) << i;
    }
  }
}

TEST(MtpEngine, WrongDraftsNeverLandAndCostNoToken) {
  const std::vector<StreamRequest> requests = requests_of_all_rules(40);
  const auto expected = serial_replies(requests);
  FakeHeadsOptions heads;
  heads.misses = [](std::int64_t position) { return position % 3 == 0; };
  EngineOptions options;
  options.schedule_seed = 5;  // any depth, any cut
  const Running running = start(heads, options);
  const std::vector<Reply> replies = run_together(*running.engine, requests);
  std::int32_t drafted = 0, accepted = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(replies[i].tokens, expected[i]) << i;
    drafted += counts(replies[i], DraftKind::kMtp).drafted;
    accepted += counts(replies[i], DraftKind::kMtp).accepted;
  }
  EXPECT_GT(accepted, drafted / 10) << "two of three positions are right";
  EXPECT_LT(accepted, drafted);
}

TEST(MtpEngine, AHeadThatIsAlwaysWrongChangesNothing) {
  const std::vector<StreamRequest> requests = requests_of_all_rules(100);
  const auto expected = serial_replies(requests);
  FakeHeadsOptions heads;
  heads.misses = [](std::int64_t) { return true; };
  const Running running = start(heads);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Reply reply = run(*running.engine, copy_of(requests[i]));
    EXPECT_EQ(reply.tokens, expected[i]) << i;
    // Where the noise decides, even a shifted row may draw the same token.
    if (requests[i].sampling.temperature == 0.0) {
      EXPECT_EQ(counts(reply, DraftKind::kMtp).accepted, 0) << i;
    }
  }
}

TEST(MtpEngine, FailingHeadSilencesItselfNotTheStream) {
  const std::vector<StreamRequest> requests = requests_of_all_rules(40);
  const auto expected = serial_replies(requests);
  FakeHeadsOptions heads;
  const auto calls = std::make_shared<std::atomic<int>>(0);
  heads.on_absorb = [calls] {
    if (++*calls == 4) throw std::runtime_error("out of drafts");
  };
  const Running running = start(heads);
  const std::vector<Reply> replies = run_together(*running.engine, requests);
  std::int32_t accepted = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(replies[i].tokens, expected[i]) << i;
    accepted += counts(replies[i], DraftKind::kMtp).accepted;
  }
  EXPECT_GT(accepted, 0) << "later streams draft again";
}

TEST(MtpEngine, DraftFalseNeverReachesTheHead) {
  const Running running = start({});
  StreamRequest request = request_of(counting_prompt(30), 20);
  request.drafts = false;
  const Reply reply = run(*running.engine, std::move(request));
  EXPECT_EQ(reply.tokens.size(), 20u);
  EXPECT_EQ(reply.statistics.drafted, 0);
  EXPECT_EQ(running.model->mtp_absorbs, 0);
}

TEST(MtpEngine, CancelledNeighboursLeaveTheRestRight) {
  const std::vector<StreamRequest> requests = requests_of_all_rules(60);
  const auto expected = serial_replies(requests);
  const Running running = start({});
  for (int round = 0; round < 8; ++round) {
    std::vector<StreamProbe> probes(requests.size());
    std::vector<std::unique_ptr<StreamHandle>> handles;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      handles.push_back(running.engine->open(copy_of(requests[i]), probes[i].sink()));
    }
    for (std::size_t i = 0; i < requests.size(); i += 2) {
      probes[i].wait_for_tokens(static_cast<std::size_t>(3 * round + static_cast<int>(i)));
      handles[i]->cancel();
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const FinishEvent finish = probes[i].wait();
      std::vector<std::int32_t> tokens = probes[i].reply();
      if (i % 2 == 1) {
        EXPECT_EQ(tokens, expected[i]);
        const DraftTally& mtp = finish.statistics.by_source[static_cast<std::size_t>(DraftKind::kMtp)];
        EXPECT_EQ(mtp.accepted, mtp.drafted) << i;
      } else {
        ASSERT_LE(tokens.size(), expected[i].size());
        EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), expected[i].begin()));
      }
    }
  }
}

class BlockEngine : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Selector, BlockEngine, ::testing::Bool());

TEST_P(BlockEngine, RightBlocksLandWhole) {
  const std::vector<StreamRequest> requests = requests_of_all_rules(60);
  const auto expected = serial_replies(requests);
  FakeHeadsOptions heads;
  heads.mtp = false;
  heads.block = true;
  heads.selector = GetParam();
  heads.next_token = continuation_of(whole_texts(requests, expected));
  const Running running = start(heads);
  const std::vector<Reply> replies = run_together(*running.engine, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(replies[i].tokens, expected[i]) << i;
    const DraftTally& block = counts(replies[i], DraftKind::kBlock);
    EXPECT_GT(block.accepted, 25) << i;
    if (!GetParam()) {
      EXPECT_EQ(block.accepted, block.drafted) << i;
    }
  }
  EXPECT_GT(running.model->blocks, 0);
}

TEST_P(BlockEngine, ATreeFindsTheSecondBestAChainDoesNot) {
  const std::vector<StreamRequest> requests = requests_of_all_rules(80);
  const auto expected = serial_replies(requests);
  FakeHeadsOptions heads;
  heads.mtp = false;
  heads.block = true;
  heads.selector = GetParam();
  heads.next_token = continuation_of(whole_texts(requests, expected));
  heads.misses = [](std::int64_t position) { return position % 2 == 0; };
  EngineOptions options;
  options.schedule_seed = 3;
  const Running running = start(heads, options);
  const std::vector<Reply> replies = run_together(*running.engine, requests);
  std::int32_t drafted = 0, accepted = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(replies[i].tokens, expected[i]) << i;
    drafted += counts(replies[i], DraftKind::kBlock).drafted;
    accepted += counts(replies[i], DraftKind::kBlock).accepted;
  }
  ASSERT_GT(drafted, 100);
  // Of every two levels one is second best. A tree holds both and goes on; a chain ends there.
  if (GetParam()) {
    EXPECT_GT(accepted, 8 * 79 / 2);
  } else {
    EXPECT_LT(accepted, 8 * 79 / 2);
    EXPECT_GT(accepted, 0);
  }
}

TEST(BothDrafters, TakeTurnsAndStayCurrent) {
  const std::vector<StreamRequest> requests = requests_of_all_rules(80);
  const auto expected = serial_replies(requests);
  FakeHeadsOptions heads;
  heads.block = true;
  heads.next_token = continuation_of(whole_texts(requests, expected));
  EngineOptions options;
  options.schedule_seed = 11;  // sources at random
  const Running running = start(heads, options);
  const std::vector<Reply> replies = run_together(*running.engine, requests);
  std::int32_t mtp = 0, block = 0, mtp_drafted = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(replies[i].tokens, expected[i]) << i;
    mtp += counts(replies[i], DraftKind::kMtp).accepted;
    mtp_drafted += counts(replies[i], DraftKind::kMtp).drafted;
    block += counts(replies[i], DraftKind::kBlock).accepted;
  }
  EXPECT_GT(mtp, 0);
  EXPECT_EQ(mtp, mtp_drafted) << "it was told of every row, whoever drafted it";
  EXPECT_GT(block, 0);
}

// --- recall --------------------------------------------------------------------------------------------------------

class RecallEngine : public ::testing::Test {
 protected:
  std::shared_ptr<RecallStore> open_store() const {
    RecallOptions options;
    options.folder = root_;
    options.bytes_max = limits::kRecallBytesMin;
    options.vocabulary_size = 61;
    return std::make_shared<RecallStore>(options);
  }
  static Running start_with(std::shared_ptr<RecallStore> store, bool drafts = true) {
    FakeHeadsOptions heads;
    heads.mtp = false;
    EngineOptions options;
    options.recall = std::move(store);
    options.drafts = drafts;
    return start(heads, options);
  }
  /// A text is handed over after its stream's last event.
  static void wait_for(const RecallStore& store, std::size_t tokens) {
    EXPECT_TRUE(testing::eventually([&] { return store.token_count() >= tokens; }));
  }
  static StreamRequest request(const std::string& owner, std::uint64_t seed = 1) {
    StreamRequest request = request_of(counting_prompt(40), 100);
    request.prompt.owner = owner;
    request.sampling.temperature = 1.0;
    request.sampling.seed = seed;
    return request;
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path root_ = temporary_.path();
};

TEST_F(RecallEngine, ASecondRequestDraftsFromTheFirstAlsoAfterARestart) {
  std::vector<std::int32_t> expected;
  {
    const auto store = open_store();
    const Running running = start_with(store);
    const Reply first = run(*running.engine, request("anna"));
    expected = first.tokens;
    EXPECT_EQ(counts(first, DraftKind::kRecall).drafted, 0);
    wait_for(*store, 140);
    const Reply second = run(*running.engine, request("anna"));
    EXPECT_EQ(second.tokens, expected);
    EXPECT_GT(counts(second, DraftKind::kRecall).accepted, 80);
    EXPECT_LT(second.statistics.rounds, 20);
  }
  const Running running = start_with(open_store());
  const Reply third = run(*running.engine, request("anna"));
  EXPECT_EQ(third.tokens, expected);
  EXPECT_GT(counts(third, DraftKind::kRecall).accepted, 80);

  // Another text with the same beginning: what it shares lands, where it leaves it is rejected.
  const Reply other = run(*running.engine, request("anna", 2));
  EXPECT_NE(other.tokens, expected);
}

TEST_F(RecallEngine, AnotherOwnerNeverDraftsFromIt) {
  const auto store = open_store();
  const Running running = start_with(store);
  const Reply first = run(*running.engine, request("anna"));
  wait_for(*store, 140);
  const Reply other = run(*running.engine, request("boris"));
  EXPECT_EQ(other.tokens, first.tokens);
  EXPECT_EQ(counts(other, DraftKind::kRecall).drafted, 0);
}

TEST_F(RecallEngine, DraftFalseIsNeitherRecordedNorDraftedFor) {
  const auto store = open_store();
  const Running running = start_with(store);
  StreamRequest serial = request("anna");
  serial.drafts = false;
  const Reply first = run(*running.engine, std::move(serial));
  const Reply second = run(*running.engine, request("anna"));
  EXPECT_EQ(second.tokens, first.tokens);
  EXPECT_EQ(counts(second, DraftKind::kRecall).drafted, 0) << "nothing was recorded before";
  wait_for(*store, 140);
  StreamRequest again = request("anna");
  again.drafts = false;
  const Reply third = run(*running.engine, std::move(again));
  EXPECT_EQ(third.tokens, first.tokens);
  EXPECT_EQ(third.statistics.drafted, 0);
}

TEST_F(RecallEngine, CancelledTextsAreRecordedAsFarAsTheyWent) {
  const auto store = open_store();
  const Running running = start_with(store);
  StreamProbe probe;
  const auto handle = running.engine->open(request("anna"), probe.sink());
  probe.wait_for_tokens(30);
  handle->cancel();
  probe.wait();
  wait_for(*store, 70);
  const Reply whole = run(*running.engine, request("anna"));
  EXPECT_EQ(whole.reason, FinishReason::kLength);
  EXPECT_GT(counts(whole, DraftKind::kRecall).accepted, 10);
}

}  // namespace
}  // namespace tensorfold
