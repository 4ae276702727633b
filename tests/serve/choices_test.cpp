// n: choices as keyed streams of their own that share a prompt, whole, streamed, cancelled and broken.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <thread>

#include "eventually.h"
#include "serve/fake_model.h"
#include "serve/http_client.h"
#include "serve/seeds.h"
#include "serve/server.h"
#include "serve/sse_chunks.h"

namespace tensorfold::testing {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

class ChoicesTest : public ::testing::Test {
 protected:
  void start(double round_ms = 0.5, std::int32_t lanes = 8) {
    model_ = make_fake_model(engine_, lanes, 4096, round_ms);
    ServerOptions options;
    options.port = 0;
    server_ = std::make_unique<Server>(options, ApiKeys());
    server_->start();
    server_->set_model(model_);
  }
  std::uint16_t port() const { return server_->port(); }
  static std::string chat(const std::string& content, const std::string& more) {
    return post("/v1/chat/completions", R"({"messages":[{"role":"user","content":")" + content + "\"}]," + more + "}");
  }

  FakeEngine* engine_ = nullptr;
  std::shared_ptr<ServedModel> model_;
  std::unique_ptr<Server> server_;
};

TEST(Seeds, FollowFromTheirFormulas) {
  // Evaluated with Python's hashlib and integers.
  const std::vector<std::int32_t> prompt = {1, 2, 3};
  EXPECT_EQ(prompt_seed(prompt, 0), 2418267834652783048u);
  EXPECT_EQ(prompt_seed(prompt, -7), 6389214472870883531u);
  const std::uint64_t seven[] = {7u, 3511274219185729u, 151215513962380u, 8113330931062309u};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(choice_seed(7, i), seven[i]);
  EXPECT_EQ(choice_seed(~0ull, 0), ~0ull);
  EXPECT_EQ(choice_seed(~0ull, 2), 8219944852094672u);
}

TEST(Seeds, RequestThenFlagThenPromptThenFresh) {
  const std::vector<std::int32_t> prompt = {5, 6};
  SamplingDefaults defaults;
  GenerationRequest request;
  EXPECT_NE(resolve_seed(defaults, request, prompt), resolve_seed(defaults, request, prompt));
  EXPECT_LT(resolve_seed(defaults, request, prompt), 1ull << 53);  // every JSON reader keeps it
  defaults.seed_from_prompt = true;
  EXPECT_EQ(resolve_seed(defaults, request, prompt), prompt_seed(prompt, 0));
  defaults.seed_salt = 9;
  EXPECT_EQ(resolve_seed(defaults, request, prompt), prompt_seed(prompt, 9));
  defaults.seed = 3;
  EXPECT_EQ(resolve_seed(defaults, request, prompt), 3u);
  request.seed = 0;
  EXPECT_EQ(resolve_seed(defaults, request, prompt), 0u);
}

TEST_F(ChoicesTest, EachEqualsASingleRequestWithItsSeed) {
  start();
  const Reply reply = ask(port(), chat("hello", R"("n":5,"seed":7,"max_tokens":12)"));
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = reply.json();
  ASSERT_EQ(json["choices"].size(), 5u);
  for (int i = 0; i < 5; ++i) {
    const Json& choice = json["choices"][static_cast<std::size_t>(i)];
    EXPECT_EQ(choice["index"], i);
    EXPECT_EQ(choice["message"]["content"], fake_reply("[user]hello[assistant]", choice_seed(7, i), 12));
    EXPECT_EQ(choice["seed"], choice_seed(7, i));
    const Reply single = ask(port(), chat("hello", fmt::format(R"("max_tokens":12,"seed":{})", choice_seed(7, i))));
    EXPECT_EQ(single.json()["choices"][0]["message"]["content"], choice["message"]["content"]);
    EXPECT_EQ(single.json()["tensorfold"]["token_sha"], choice["token_sha"]);
  }
  EXPECT_EQ(json["tensorfold"]["seed"], 7);
  EXPECT_EQ(json["tensorfold"]["token_sha"], json["choices"][0]["token_sha"]);
  EXPECT_EQ(json["usage"]["completion_tokens"], 60);
  EXPECT_EQ(json["usage"]["prompt_tokens"], 22);  // once
  EXPECT_EQ(json["usage"]["total_tokens"], 82);
}

TEST_F(ChoicesTest, StreamsAreInterleavedAndEqualTheWhole) {
  start();
  for (const bool apart : {false, true}) {
    const std::string more = apart ? R"(,"stream_options":{"include_usage":true})" : "";
    const Json whole = ask(port(), chat("hello", R"("n":3,"seed":7,"max_tokens":25)")).json();
    const Reply reply = ask(port(), chat("hello", R"("n":3,"seed":7,"max_tokens":25,"stream":true)" + more));
    ASSERT_EQ(reply.status, 200) << reply.body;
    const std::vector<Json> chunks = sse_chunks(reply.body);
    std::map<int, std::string> text;
    std::map<int, Json> ends;
    std::vector<int> order;
    int usages = 0;
    for (const Json& chunk : chunks) {
      usages += chunk.contains("usage") ? 1 : 0;
      if (chunk["choices"].empty()) continue;
      ASSERT_EQ(chunk["choices"].size(), 1u);
      const Json& choice = chunk["choices"][0];
      const int index = choice["index"];
      EXPECT_FALSE(ends.contains(index)) << "a chunk after the end of its choice";
      if (choice["delta"].contains("role")) {
        EXPECT_EQ(text.count(index), 0u);
        text[index] = "";
      }
      if (choice["delta"].contains("content")) {
        ASSERT_EQ(text.count(index), 1u) << "content before the role";
        text[index] += choice["delta"]["content"].get<std::string>();
        order.push_back(index);
      }
      if (!choice["finish_reason"].is_null()) ends[index] = chunk;
    }
    ASSERT_EQ(ends.size(), 3u);
    for (int i = 0; i < 3; ++i) {
      const Json& choice = whole["choices"][static_cast<std::size_t>(i)];
      EXPECT_EQ(text[i], choice["message"]["content"]);
      EXPECT_EQ(ends[i]["tensorfold"]["token_sha"], choice["token_sha"]);
      EXPECT_EQ(ends[i]["tensorfold"]["seed"], choice["seed"]);
    }
    int changes = 0;
    for (std::size_t i = 1; i < order.size(); ++i) changes += order[i] != order[i - 1] ? 1 : 0;
    EXPECT_GT(changes, 6);  // not one choice after the other
    EXPECT_EQ(usages, 1);
    EXPECT_EQ(chunks.back()["usage"]["completion_tokens"], 75);
    EXPECT_EQ(chunks.back()["choices"].empty(), apart);
  }
}

TEST_F(ChoicesTest, OneChoiceMayStopWhileOthersGoOn) {
  start();
  const std::string prompt = "[user]x[assistant]";
  const std::string stop = fake_reply(prompt, choice_seed(7, 1), 40).substr(4, 3);
  ASSERT_EQ(fake_reply(prompt, 7, 40).find(stop), std::string::npos);
  const Json json = ask(port(), chat("x", R"("n":2,"seed":7,"max_tokens":40,"stop":")" + stop + "\"")).json();
  EXPECT_EQ(json["choices"][0]["message"]["content"].get<std::string>().size(), 40u);
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  EXPECT_FALSE(json["choices"][0].contains("stop_sequence"));
  EXPECT_EQ(json["choices"][1]["message"]["content"].get<std::string>().size(), 4u);
  EXPECT_EQ(json["choices"][1]["finish_reason"], "stop");
  EXPECT_EQ(json["choices"][1]["stop_sequence"], stop);
  EXPECT_FALSE(json.contains("stop_sequence"));
}

TEST_F(ChoicesTest, CompletionsToo) {
  start();
  const std::string fields = R"({"prompt":"ab","n":2,"best_of":2,"seed":3,"max_tokens":6,"echo":true,"logprobs":1)";
  const Json whole = ask(port(), post("/v1/completions", fields + "}")).json();
  ASSERT_EQ(whole["choices"].size(), 2u) << whole;
  std::map<int, std::string> text;
  std::map<int, Json> lists;
  for (const Json& chunk : sse_chunks(ask(port(), post("/v1/completions", fields + R"(,"stream":true})")).body)) {
    const Json& choice = chunk["choices"][0];
    const int index = choice["index"];
    text[index] += choice["text"].get<std::string>();
    if (choice["logprobs"].is_null()) continue;
    for (const auto& [name, list] : choice["logprobs"].items()) {
      for (const Json& item : list) lists[index][name].push_back(item);
    }
  }
  for (int i = 0; i < 2; ++i) {
    const Json& choice = whole["choices"][static_cast<std::size_t>(i)];
    EXPECT_EQ(choice["text"], "ab" + fake_reply("ab", choice_seed(3, i), 6));
    EXPECT_EQ(choice["logprobs"]["tokens"].size(), 8u);
    EXPECT_EQ(text[i], choice["text"]);
    EXPECT_EQ(lists[i], choice["logprobs"]);
  }
}

TEST_F(ChoicesTest, ADisconnectCancelsAll) {
  start(2.0);
  int expected = 0;
  for (const char* more : {R"("n":4,"max_tokens":4000,"stream":true)", R"("n":4,"max_tokens":4000)"}) {
    auto client = std::make_unique<HttpClient>(port());
    client->send(chat("a", more));
    ASSERT_TRUE(eventually([this] { return engine_->load().running == 4; }));
    client.reset();
    expected += 4;
    ASSERT_TRUE(eventually([this, expected] { return engine_->cancelled() == expected; })) << engine_->cancelled();
    ASSERT_TRUE(eventually([this] { return engine_->load().running == 0; }));
  }
}

TEST_F(ChoicesTest, OneThatFailsFailsTheRequestAndCancelsTheOthers) {
  start();
  std::uint64_t seed = 2;  // choice 0 is even and lives, choice 1 is odd and breaks after three tokens
  while (choice_seed(seed, 1) % 2 == 0 || choice_seed(seed, 2) % 2 == 1) seed += 2;
  const std::string fields = fmt::format(R"("n":3,"max_tokens":4000,"seed":{})", seed);
  const Reply whole = ask(port(), chat("ODD", fields));
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(whole.json()["error"]["message"], "choice 1: a made-up failure");
  EXPECT_EQ(engine_->cancelled(), 2);
  engine_->set_round_ms(100.0);  // the failure comes when the stream has been opened
  const Reply streamed = ask(port(), chat("ODD", fields + R"(,"stream":true)"));
  engine_->set_round_ms(1.0);
  EXPECT_EQ(streamed.status, 200);
  EXPECT_NE(streamed.body.find("choice 1: a made-up failure"), std::string::npos) << streamed.body;
  EXPECT_EQ(streamed.body.substr(streamed.body.size() - 14), "data: [DONE]\n\n");
  EXPECT_EQ(streamed.body.find("\"finish_reason\":\"length\""), std::string::npos);
  EXPECT_EQ(engine_->cancelled(), 4);
  EXPECT_EQ(ask(port(), chat("SAY:fine", R"("n":2)")).json()["choices"][1]["message"]["content"], "fine");
}

TEST_F(ChoicesTest, AQueueThatFillsHalfwayLeavesNothingBehind) {
  start(2.0);
  engine_->set_requests_max(2);
  const Reply reply = ask(port(), chat("a", R"("n":3,"max_tokens":4000)"));
  EXPECT_EQ(reply.status, 503) << reply.body;
  EXPECT_TRUE(eventually([this] { return engine_->cancelled() == 2 && engine_->running() == 0; }));
  EXPECT_EQ(ask(port(), chat("SAY:fine", R"("n":2)")).status, 200);
}

}  // namespace
}  // namespace tensorfold::testing
