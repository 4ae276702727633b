// The server over loopback sockets with a fake engine: framing, routes, keys, streams, cancels, drain.
#include "serve/server.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/limits.h"
#include "eventually.h"
#include "serve/fake_model.h"
#include "serve/http_client.h"

namespace tensorfold::testing {
namespace {

using namespace std::chrono_literals;

class ServerTest : public ::testing::Test {
 protected:
  void start(const std::vector<std::string>& keys = {}, std::int32_t lanes = 4, double round_ms = 1.0) {
    model_ = make_fake_model(engine_, lanes, 4096, round_ms);
    ApiKeys api_keys;
    api_keys.add_flag_keys(keys);
    ServerOptions options;
    options.port = 0;
    options.keepalive_seconds = 0.2;
    server_ = std::make_unique<Server>(options, std::move(api_keys));
    server_->start();
    server_->set_model(model_);
  }
  std::uint16_t port() const { return server_->port(); }
  std::string chat(const std::string& content, const std::string& more = "") const {
    return post("/v1/chat/completions", R"({"messages":[{"role":"user","content":")" + content + "\"}]" + more + "}");
  }

  FakeEngine* engine_ = nullptr;
  std::shared_ptr<ServedModel> model_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, AnswersAWholeChat) {
  start();
  const Reply reply = ask(port(), chat("SAY:hello", R"(,"model":"also-fake","seed":7)"));
  ASSERT_EQ(reply.status, 200) << reply.body;
  const auto json = reply.json();
  EXPECT_EQ(json["choices"][0]["message"]["content"], "hello");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["model"], "also-fake");
  EXPECT_EQ(json["usage"]["completion_tokens"], 6);  // the end token counts
  EXPECT_EQ(json["tensorfold"]["seed"], 7);
  EXPECT_EQ(json["tensorfold"]["token_sha"].get<std::string>(), sha256_hex("104,101,108,108,111,256", 12));
  EXPECT_NE(reply.head.find("Server: TensorFold"), std::string::npos);
  EXPECT_NE(reply.head.find("Date: "), std::string::npos);
}

TEST_F(ServerTest, StreamsInOrderWithUsageApart) {
  start();
  const Reply reply = ask(port(), chat("SAY:hi", R"(,"stream":true,"stream_options":{"include_usage":true})"));
  ASSERT_EQ(reply.status, 200);
  EXPECT_NE(reply.head.find("Content-Type: text/event-stream"), std::string::npos);
  const std::size_t role = reply.body.find("\"role\":\"assistant\"");
  const std::size_t content = reply.body.find("\"content\":\"h");
  const std::size_t finish = reply.body.find("\"finish_reason\":\"stop\"");
  const std::size_t usage = reply.body.find("\"choices\":[],\"usage\"");
  const std::size_t done = reply.body.find("data: [DONE]\n\n");
  EXPECT_LT(role, content);
  EXPECT_LT(content, finish);
  EXPECT_LT(finish, usage);
  EXPECT_LT(usage, done);
  EXPECT_EQ(done + 14, reply.body.size());
}

TEST_F(ServerTest, SplitsReasoningAndCountsIt) {
  start();
  const Reply reply =
      ask(port(), chat("SAY:why</think>\\n\\nso", R"(,"chat_template_kwargs":{"enable_thinking":true})"));
  const auto json = reply.json();
  EXPECT_EQ(json["choices"][0]["message"]["reasoning_content"], "why");
  EXPECT_EQ(json["choices"][0]["message"]["content"], "so");
  EXPECT_EQ(json["usage"]["completion_tokens_details"]["reasoning_tokens"], 11);
  EXPECT_EQ(json["tensorfold"]["enable_thinking"], true);
}

TEST_F(ServerTest, StopStringsEndTheTextBeforeTheMatch) {
  start();
  for (const char* stream : {"", R"(,"stream":true)"}) {
    const Reply reply = ask(port(), chat("SAY:one, two, three", std::string(R"(,"stop":["two,","zzz"])") + stream));
    ASSERT_EQ(reply.status, 200);
    EXPECT_NE(reply.body.find("\"stop_sequence\":\"two,\""), std::string::npos) << reply.body;
    EXPECT_NE(reply.body.find("\"completion_tokens\":9"), std::string::npos) << reply.body;
    EXPECT_EQ(reply.body.find("three"), std::string::npos);
    EXPECT_EQ(reply.body.find("\"content\":\"t"), std::string::npos);  // nothing of the match leaks
  }
}

TEST_F(ServerTest, CompletionsEchoScoreAndStream) {
  start();
  const Reply scored =
      ask(port(), post("/v1/completions", R"({"prompt":"abc","max_tokens":0,"echo":true,"logprobs":1})"));
  ASSERT_EQ(scored.status, 200) << scored.body;
  const auto json = scored.json();
  EXPECT_EQ(json["choices"][0]["text"], "abc");
  const auto& lists = json["choices"][0]["logprobs"];
  EXPECT_EQ(lists["tokens"], nlohmann::json({"a", "b", "c"}));
  EXPECT_TRUE(lists["token_logprobs"][0].is_null());
  EXPECT_EQ(lists["token_logprobs"][1], -1.5);
  EXPECT_EQ(lists["text_offset"], nlohmann::json({0, 1, 2}));
  const Reply drawn =
      ask(port(), post("/v1/completions", R"({"prompt":[97,98],"max_tokens":5,"seed":3,"logprobs":2})"));
  EXPECT_EQ(drawn.json()["choices"][0]["text"], fake_reply("ab", 3, 5));
  EXPECT_EQ(drawn.json()["choices"][0]["logprobs"]["tokens"].size(), 5u);
  EXPECT_EQ(drawn.json()["choices"][0]["finish_reason"], "length");
  const Reply streamed = ask(port(), post("/v1/completions", R"({"prompt":"SAY:xy","stream":true})"));
  EXPECT_NE(streamed.body.find("\"object\":\"text_completion\""), std::string::npos);
  EXPECT_EQ(streamed.body.find("delta"), std::string::npos);
  EXPECT_NE(streamed.body.find("[DONE]"), std::string::npos);
}

TEST_F(ServerTest, RefusesWrongFieldsByName) {
  start();
  struct Case {
    const char* fields;
    const char* param;
  };
  const Case cases[] = {
      {R"("temperature":true)", "temperature"},
      {R"("temperature":"hot")", "temperature"},
      {R"("temperature":"nan")", "temperature"},
      {R"("top_k":1.5)", "top_k"},
      {R"("min_p":2)", "min_p"},
      {R"("max_tokens":-1)", "max_tokens"},
      {R"("max_tokens":[])", "max_tokens"},
      {R"("max_tokens":0)", "max_tokens"},
      {R"("max_completion_tokens":0)", "max_completion_tokens"},
      {R"("max_tokens":5,"max_completion_tokens":0)", "max_completion_tokens"},
      {R"("max_completion_tokens":false)", "max_completion_tokens"},
      {R"("n":0)", "n"},
      {R"("n":9)", "n"},
      {R"("n":1.5)", "n"},
      {R"("n":true)", "n"},
      {R"("best_of":2)", "best_of"},
      {R"("n":3,"best_of":1)", "best_of"},
      {R"("stop":"")", "stop"},
      {R"("stop":[1])", "stop"},
      {R"("stream":1)", "stream"},
      {R"("ignore_eos":"yes")", "ignore_eos"},
      {R"("seed":1.5)", "seed"},
      {R"("top_logprobs":3)", "top_logprobs"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
      {R"("logprobs":2)", "logprobs"},
      {R"("temperature":NaN)", "temperature"},
      {R"("top_p":1e999)", "top_p"},
      {R"("tools":[{"type":"function","function":{"name":""}}])", "tools"},
      {R"("tools":[{"type":"web_search"}])", "tools"},
      {R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"function":{"name":"f"}})",
       "tool_choice"},
      {R"("tools":[{"function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"g"}})",
       "tool_choice"},
      {R"("tools":[{"function":{"name":"f"}}],"tool_choice":"must")", "tool_choice"},
      {R"("tools":[{"function":{"name":"f"}}],"tool_choice":"required","guided_regex":"a")", "tool_choice"},
      {R"("functions":[{"name":"f"}])", "functions"},
      {R"("tool_choice":"required")", "tool_choice"},
      {R"("parallel_tool_calls":"x")", "parallel_tool_calls"},
      {R"("logit_bias":[[5,1]])", "logit_bias"},
      {R"("logit_bias":7)", "logit_bias"},
      {R"("logit_bias":{"260":1})", "logit_bias"},
      {R"("logit_bias":{"-1":1})", "logit_bias"},
      {R"("logit_bias":{"1.5":1})", "logit_bias"},
      {R"("logit_bias":{"hello":1})", "logit_bias"},
      {R"("logit_bias":{"":1})", "logit_bias"},
      {R"("logit_bias":{"99999999999999999999":1})", "logit_bias"},
      {R"("logit_bias":{"5":100.5})", "logit_bias"},
      {R"("logit_bias":{"5":"nan"})", "logit_bias"},
      {R"("logit_bias":{"5":NaN})", "logit_bias"},
      {R"("logit_bias":{"5":true})", "logit_bias"},
      {R"("logit_bias":{"5":null})", "logit_bias"},
      {R"("logit_bias":{"5":[1]})", "logit_bias"},
      {R"("logit_bias":{"5":1,"05":2})", "logit_bias"},
      {R"("presence_penalty":2.5)", "presence_penalty"},
      {R"("presence_penalty":"-inf")", "presence_penalty"},
      {R"("frequency_penalty":-2.01)", "frequency_penalty"},
      {R"("frequency_penalty":{})", "frequency_penalty"},
      {R"("repetition_penalty":0)", "repetition_penalty"},
      {R"("repetition_penalty":-1)", "repetition_penalty"},
      {R"("repetition_penalty":"inf")", "repetition_penalty"},
      {R"("response_format":{"type":"xml"})", "response_format.type"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":[]}})", "response_format.json_schema.schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":{"contains":{}}}})",
       "response_format.json_schema.schema"},
      {R"("guided_regex":"a(")", "guided_regex"},
      {R"("guided_regex":5)", "guided_regex"},
      {R"("guided_choice":[])", "guided_choice"},
      {R"("guided_choice":["a",""])", "guided_choice"},
      {R"("guided_json":"{")", "guided_json"},
      {R"("guided_json":{"type":"thing"})", "guided_json"},
      {R"("guided_grammar":"a ::= b")", "guided_grammar"},
      {R"x("structured_outputs":{"regex":"(?=a)"})x", "structured_outputs.regex"},
      {R"("structured_outputs":{"whitespace":true})", "structured_outputs.whitespace"},
      {R"("thinking_budget":-5)", "thinking_budget"},
      {R"("modalities":["text","audio"])", "modalities"},
      {R"("audio":{})", "audio"},
      {R"("reasoning_effort":"huge")", "reasoning_effort"},
      {R"("chat_template_kwargs":{"enable_thinking":1})", "chat_template_kwargs.enable_thinking"},
      {R"("stream_options":{"include_usage":"x"})", "stream_options.include_usage"},
      {R"("model":5)", "model"},
      {R"("priority":1)", "priority"},
      {R"("priority":"urgent")", "priority"},
      {R"("priority":"")", "priority"},
      {R"("draft":"no")", "draft"},
      {R"("draft":0)", "draft"},
      {R"("draft":[])", "draft"},
      {R"("draft":{})", "draft"},
      {R"("stop":1180591620717411303424)", "stop"},
      {R"("model":1180591620717411303424)", "model"}};
  for (const Case& entry : cases) {
    const Reply reply = ask(port(), chat("hi", std::string(",") + entry.fields));
    EXPECT_EQ(reply.status, 400) << entry.fields << reply.body;
    const auto json = reply.json();
    EXPECT_EQ(json["error"].value("param", ""), entry.param) << entry.fields;
    EXPECT_NE(json["error"].value("message", "").find(entry.param), std::string::npos) << reply.body;
    EXPECT_EQ(json["error"]["type"], "invalid_request_error");
  }
}

TEST_F(ServerTest, RefusesHugeValuesByName) {
  start();
  std::string biases = R"(,"logit_bias":{)";
  for (int i = 0; i < 2000; ++i) biases += fmt::format("{}\"{}\":1", i == 0 ? "" : ",", i);
  std::string stops = R"(,"stop":["x")";
  for (int i = 0; i < 100'000; ++i) stops += R"(,"x")";
  const std::pair<std::string, const char*> cases[] = {
      {biases + "}", "logit_bias"},
      {stops + "]", "stop"},
      {R"(,"logit_bias":{")" + std::string(1'000'000, '9') + R"(":1})", "logit_bias"},
      {R"(,"repetition_penalty":)" + std::string(100'000, '9') + "e" + std::string(1000, '9'), "repetition_penalty"},
      {R"(,"logit_bias":)" + std::string(5000, '['), "logit_bias"}};
  for (const auto& [fields, param] : cases) {
    const Reply reply = ask(port(), chat("hi", fields));
    EXPECT_EQ(reply.status, 400) << param;
    EXPECT_EQ(reply.json()["error"].value("param", ""), param);
    EXPECT_LT(reply.body.size(), 400u) << param;  // what was sent isn't sent back whole
  }
}

TEST_F(ServerTest, AcceptsWhatAsksForNothing) {
  start();
  const Reply reply = ask(
      port(),
      chat(
          "SAY:ok",
          R"(,"temperature":"0.5","top_k":3.0,"top_p":null,"n":1,"presence_penalty":0,"tools":[],"tool_choice":"none",)"
          R"("response_format":{"type":"text"},"modalities":["text"],"logit_bias":{},"thinking_budget":0,"draft":false,)"
          R"("priority":"background","max_tokens":"9","nobody_knows":{"x":[1]},"seed":-36893488147419103233)"));
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.json()["tensorfold"]["seed"].get<std::uint64_t>(), 0 - 1ull);  // -(2^65 + 1) mod 2^64
  EXPECT_EQ(reply.json()["tensorfold"]["drafts"], false);
  EXPECT_EQ(reply.json()["tensorfold"]["sampling"], "exact");
  EXPECT_FALSE(engine_->last_drafts());
  EXPECT_EQ(ask(port(), chat("SAY:ok", R"(,"draft":null,"priority":"normal")")).status, 200);
  EXPECT_TRUE(engine_->last_drafts());
}

TEST_F(ServerTest, RefusesWrongMessagesAndBodies) {
  start();
  const char* bodies[] = {R"({"messages":[]})",
                          R"({"messages":"hi"})",
                          R"({"messages":[{"role":"wizard","content":"x"}]})",
                          R"({"messages":[{"role":"user","content":5}]})",
                          R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
                          R"({"messages":[{"role":"user","content":1180591620717411303424}]})",
                          R"({"messages":[{"role":"user","content":"REJECT"}]})",
                          R"({"messages":[{"role":"user","content":"OVERFLOW"}]})",
                          R"({"messages":[}])",
                          "[1]",
                          "{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}",
                          ""};
  for (const char* body : bodies) {
    const Reply reply = ask(port(), post("/v1/chat/completions", body));
    EXPECT_EQ(reply.status, 400) << body << reply.body;
    EXPECT_EQ(reply.json()["error"]["type"], "invalid_request_error") << body;
  }
  // Bad JSON is nobody's field; a tool of another type is told by its type.
  const auto broken = ask(port(), post("/v1/chat/completions", R"({"messages":[],"model":"x",})")).json()["error"];
  EXPECT_FALSE(broken.contains("param")) << broken;
  EXPECT_NE(broken.value("message", "").find("not valid JSON"), std::string::npos) << broken;
  const auto tool = ask(port(), chat("hi", R"(,"tools":[{"type":"web_search"}])")).json()["error"];
  EXPECT_NE(tool.value("message", "").find("tools[0].type"), std::string::npos) << tool;
  EXPECT_NE(tool.value("message", "").find("web_search"), std::string::npos) << tool;
  const std::string deep = R"({"messages":)" + std::string(100000, '[') + std::string(100000, ']') + "}";
  EXPECT_EQ(ask(port(), post("/v1/chat/completions", deep)).status, 400);
}

TEST_F(ServerTest, RefusesWhatDoesNotFitWithTheWireText) {
  start();
  const Reply reply = ask(port(), chat("hi", R"(,"max_tokens":5000,"stream":true)"));
  EXPECT_EQ(reply.status, 400);
  const auto error = reply.json()["error"];
  EXPECT_EQ(error["message"].get<std::string>().find("This server's maximum context length is 4096 tokens"), 0u);
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["param"], "max_tokens");
  const Reply newer = ask(port(), chat("hi", R"(,"max_completion_tokens":5000)"));
  EXPECT_EQ(newer.json()["error"]["param"], "max_completion_tokens");
  const Reply prompt = ask(port(), chat(std::string(5000, 'x')));
  EXPECT_EQ(prompt.json()["error"]["param"], "messages");
  const Reply raw = ask(port(), post("/v1/completions", R"({"prompt":")" + std::string(5000, 'x') + "\"}"));
  EXPECT_EQ(raw.json()["error"]["param"], "prompt");
}

/// Holds every text that says GATE until it is opened, as a long text's tokenization does.
class GatedTokenizer final : public FakeTokenizer {
 public:
  std::vector<std::int32_t> encode_segments(std::span<const PromptSegment> segments,
                                            std::size_t tokens_max) const override {
    for (const PromptSegment& segment : segments) {
      if (segment.text.find("GATE") == std::string::npos) continue;
      ++waiting;
      open.wait(false);
    }
    return FakeTokenizer::encode_segments(segments, tokens_max);
  }
  mutable std::atomic<int> waiting{0};
  std::atomic<bool> open{false};
};

TEST_F(ServerTest, LargeBodiesKeepNoSmallOneWaiting) {
  model_ = make_fake_model(engine_, 4, 4096, 1.0);
  const auto tokenizer = std::make_shared<GatedTokenizer>();
  model_->tokenizer = tokenizer;
  ServerOptions options;
  options.port = 0;
  options.small_body_bytes_max = 1000;
  server_ = std::make_unique<Server>(options, ApiKeys());
  server_->start();
  server_->set_model(model_);
  std::vector<std::unique_ptr<HttpClient>> large;
  for (int i = 0; i < 6; ++i) {
    large.push_back(std::make_unique<HttpClient>(port()));
    large.back()->send(chat("GATE" + std::string(2000, ' ') + "SAY:large", R"(,"max_tokens":9)"));
  }
  ASSERT_TRUE(eventually([&tokenizer] { return tokenizer->waiting > 0; }));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(ask(port(), chat("SAY:small")).status, 200);
  EXPECT_EQ(ask(port(), get("/v1/models")).status, 200);
  tokenizer->open = true;
  tokenizer->open.notify_all();
  for (const auto& client : large) EXPECT_EQ(client->receive().value_or(Reply{}).status, 200);
}

TEST_F(ServerTest, EngineFailuresAreStatusOrEvent) {
  start();
  EXPECT_EQ(ask(port(), chat("BREAK")).status, 500);
  EXPECT_EQ(ask(port(), chat("BREAK", R"(,"stream":true)")).status, 500);
  engine_->set_round_ms(100.0);  // the failure comes when the stream has been opened
  const Reply late = ask(port(), chat("FAIL", R"(,"stream":true)"));
  EXPECT_EQ(late.status, 200);
  EXPECT_NE(late.body.find(R"("type":"server_error")"), std::string::npos);
  EXPECT_EQ(late.body.substr(late.body.size() - 14), "data: [DONE]\n\n");
}

TEST_F(ServerTest, SendsKeepalivesWhileQueued) {
  start({}, 1, 5.0);
  HttpClient busy(port());
  busy.send(chat("long", R"(,"stream":true,"max_tokens":4000)"));
  busy.receive_until("content");
  HttpClient waiting(port());
  waiting.send(chat("SAY:x", R"(,"stream":true)"));
  EXPECT_NE(waiting.receive_until(": keepalive\n\n").find("\"role\":\"assistant\""), std::string::npos);
}

TEST_F(ServerTest, CancelsWhenTheClientLeaves) {
  start({}, 1, 2.0);
  int expected = 0;
  for (const bool streamed : {true, false}) {
    for (int way = 0; way < 3; ++way) {
      const std::string more = std::string(R"(,"max_tokens":4000)") + (streamed ? R"(,"stream":true)" : "");
      auto active = std::make_unique<HttpClient>(port());
      active->send(chat("a", more));
      ASSERT_TRUE(eventually([this] { return engine_->load().running == 1; }));
      auto queued = std::make_unique<HttpClient>(port());
      queued->send(chat("b", more));
      ASSERT_TRUE(eventually([this] { return engine_->load().waiting == 1; }));
      for (auto* client : {&queued, &active}) {
        if (way == 0) client->reset();  // the object's end: FIN
        if (way == 1) (*client)->half_close();
        if (way == 2) (*client)->reset();  // RST
      }
      expected += 2;
      ASSERT_TRUE(eventually([this, expected] { return engine_->cancelled() == expected; })) << way << streamed;
      ASSERT_TRUE(eventually([this] { return engine_->load().running == 0; }));
    }
  }
  EXPECT_EQ(ask(port(), chat("SAY:still here")).json()["choices"][0]["message"]["content"], "still here");
}

TEST_F(ServerTest, CancelsWhenAClientLeavesBehindUnreadRequests) {
  start({}, 1, 2.0);
  // More than the server reads ahead, and little enough that the rest fits the window: a FIN behind it must arrive.
  std::string ahead;
  while (ahead.size() < limits::kHttpPipelinedBytesMax + (8u << 10)) ahead += get("/health");
  for (int way = 0; way < 2; ++way) {
    HttpClient client(port());
    client.send(chat("a", R"(,"max_tokens":4000)") + ahead);
    ASSERT_TRUE(eventually([this] { return engine_->load().running == 1; }));
    std::this_thread::sleep_for(100ms);  // until the server reads no further
    way == 0 ? client.reset() : client.half_close();
    ASSERT_TRUE(eventually([this, way] { return engine_->cancelled() == way + 1; })) << way;
  }
}

TEST_F(ServerTest, SixteenClientsAtOnceEqualThemselvesAlone) {
  start();
  std::vector<std::string> together(16);
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([this, i, &together] {
      const std::string more = R"(,"max_tokens":20,"seed":)" + std::to_string(i);
      const Reply reply = ask(port(), chat("prompt " + std::to_string(i % 5), more));
      if (reply.status == 200) together[static_cast<std::size_t>(i)] = reply.json()["choices"][0]["message"]["content"];
    });
  }
  for (auto& thread : threads) thread.join();
  for (int i = 0; i < 16; ++i) {
    const std::string prompt = "[user]prompt " + std::to_string(i % 5) + "[assistant]";
    EXPECT_EQ(together[static_cast<std::size_t>(i)], fake_reply(prompt, static_cast<std::uint64_t>(i), 20));
  }
}

TEST_F(ServerTest, RefusesForeignHostsOnEveryRoute) {
  start();
  for (const char* path : {"/health", "/v1/models", "/nowhere"}) {
    const Reply reply = ask(port(), std::string("GET ") + path + " HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    EXPECT_EQ(reply.status, 403) << path;
    EXPECT_EQ(reply.head.find("HTTP/1.1 403 Forbidden\r\n"), 0u) << reply.head;
    EXPECT_EQ(reply.json()["error"]["code"], "host_not_allowed") << path;
    EXPECT_TRUE(reply.closes()) << path;
  }
  EXPECT_EQ(ask(port(), "GET /health HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n").status, 200);
}

TEST_F(ServerTest, KeysGateAndLabel) {
  start({"secret"});
  EXPECT_EQ(ask(port(), get("/health")).body, R"({"status":"ok"})");
  const Reply without = ask(port(), get("/v1/models"));
  EXPECT_EQ(without.status, 401);
  EXPECT_TRUE(without.closes());
  EXPECT_NE(without.head.find("WWW-Authenticate: Bearer"), std::string::npos);
  EXPECT_EQ(without.json()["error"]["code"], "invalid_api_key");
  EXPECT_TRUE(without.json()["error"]["param"].is_null());
  EXPECT_EQ(ask(port(), get("/v1/nothing")).status, 401);
  EXPECT_EQ(ask(port(), get("/v1/models", "Authorization: Bearer wrong\r\n")).status, 401);
  EXPECT_EQ(ask(port(), get("/v1/models", "x-api-key: secret\r\nx-api-key: secret\r\n")).status, 401);
  EXPECT_EQ(ask(port(), get("/v1/models", "x-api-key: secret\r\n")).status, 200);
  EXPECT_EQ(ask(port(), post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"SAY:x"}]})",
                             "Authorization: bEARER secret\r\n"))
                .status,
            200);
  EXPECT_EQ(engine_->last_owner(), sha256_hex("tensorfold owner " + sha256_hex("secret"), 32)) << "a scope, no label";
}

TEST_F(ServerTest, ListsModelsAndHealthAndTokens) {
  start();
  const auto models = ask(port(), get("/openai/v1/models/")).json();
  EXPECT_EQ(models["data"][0]["id"], "fake");
  EXPECT_EQ(models["data"][1]["id"], "also-fake");
  EXPECT_EQ(models["data"][0]["max_model_len"], 4096);
  EXPECT_EQ(ask(port(), get("//health?x=1")).json()["status"], "ok");
  EXPECT_EQ(ask(port(), get("/health")).json()["model"], "fake");
  const auto tokens = ask(port(), post("/v1/tokenize", R"({"prompt":"ab","return_token_strs":true})")).json();
  EXPECT_EQ(tokens["tokens"], nlohmann::json({97, 98}));
  EXPECT_EQ(tokens["token_strs"], nlohmann::json({"a", "b"}));
  EXPECT_EQ(tokens["count"], 2);
  const auto chat_tokens = ask(port(), post("/tokenize", R"({"messages":[{"role":"user","content":"x"}]})")).json();
  EXPECT_EQ(chat_tokens["count"], 18);
  EXPECT_EQ(ask(port(), post("/v1/detokenize", R"({"tokens":[[104,105]]})")).json()["prompt"], "hi");
  EXPECT_EQ(ask(port(), post("/v1/detokenize", R"({"tokens":[260]})")).status, 400);
  EXPECT_EQ(ask(port(), post("/v1/tokenize", R"({"prompt":"a","add_special_tokens":"x"})")).json()["error"]["param"],
            "add_special_tokens");
  const Reply nowhere = ask(port(), get("/nowhere"));
  EXPECT_EQ(nowhere.status, 404);
  EXPECT_EQ(nowhere.json()["error"]["type"], "invalid_request_error");
  EXPECT_EQ(ask(port(), get("/v1/models/also-fake")).json(), models["data"][1]);
  EXPECT_EQ(ask(port(), get("/v1/models/also%2Dfake")).json(), models["data"][1]);
  const Reply other = ask(port(), get("/v1/models/owner/other"));
  EXPECT_EQ(other.status, 404);
  EXPECT_EQ(other.json()["error"]["code"], "model_not_found");
  EXPECT_NE(other.body.find("owner/other"), std::string::npos);
  EXPECT_EQ(ask(port(), "PUT /v1/models HTTP/1.1\r\n\r\n").status, 501);
  const std::string completion = "POST /v1/completions HTTP/1.1\r\n";
  EXPECT_EQ(ask(port(), completion + "Content-Length: 99999999\r\n\r\n").status, 413);
  EXPECT_EQ(ask(port(), completion + "Transfer-Encoding: chunked\r\n\r\n5000000\r\n").status, 413);
}

TEST_F(ServerTest, LoadingIs503) {
  ServerOptions options;
  options.port = 0;
  server_ = std::make_unique<Server>(options, ApiKeys());
  server_->start();
  const Reply health = ask(port(), get("/health"));
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.body, R"({"status":"loading"})");
  EXPECT_EQ(ask(port(), get("/v1/models")).status, 503);
  EXPECT_EQ(ask(port(), chat("x")).status, 503);
  ServerOptions same = options;
  same.port = port();
  Server second(same, ApiKeys());
  EXPECT_THROW(second.start(), std::exception);
}

TEST_F(ServerTest, FramingTortureClosesOrAnswers) {
  start();
  struct Case {
    std::string bytes;
    int status;
    bool closes;
  };
  const std::string head = "POST /v1/tokenize HTTP/1.1\r\nHost: localhost\r\n";
  const Case cases[] = {
      {head + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, true},
      {head + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, true},
      {head + "Content-Length: 2x\r\n\r\n{}", 400, true},
      {head + "Content-Length: -2\r\n\r\n{}", 400, true},
      {head + "Content-Length: 99999999999\r\n\r\n", 413, true},
      {head + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400, true},
      {head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, true},
      {head + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}x\r\n0\r\n\r\n", 400, true},
      {head + "Transfer-Encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n", 400, true},
      {head + "Transfer-Encoding: chunked\r\n\r\n2;" + std::string(70000, 'e') + "\r\n", 400, true},
      {"POST /v1/tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, true},
      {"GET /health HTTP/2.0\r\n\r\n", 505, true},
      {"GET /health HTTP/1.1\nHost: x\n\n", 400, true},
      {"GET /health\r\n\r\n", 400, true},
      {"GET /health HTTP/1.1\r\nbad header\r\n\r\n", 400, true},
      {"GET /health HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400, true},
      {"GET /" + std::string(70000, 'a') + " HTTP/1.1\r\n\r\n", 414, true},
      {"GET /health HTTP/1.1\r\nA: " + std::string(70000, 'a') + "\r\n\r\n", 431, true},
      {"GET /health HTTP/1.0\r\n\r\n", 200, true},
      {"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 200, false},
      {"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n", 200, true},
      {"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, false},
      {head + "Transfer-Encoding: chunked\r\n\r\nE;x=y\r\n{\"prompt\":\"a\"}\r\n0\r\nT: v\r\n\r\n", 200, false},
      {"POST /unknown HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 404, false},
  };
  for (const Case& entry : cases) {
    HttpClient client(port());
    client.send(entry.bytes);
    const auto reply = client.receive();
    ASSERT_TRUE(reply) << entry.bytes.substr(0, 120);
    EXPECT_EQ(reply->status, entry.status) << entry.bytes.substr(0, 120) << reply->body;
    EXPECT_EQ(reply->closes(), entry.closes) << entry.bytes.substr(0, 120);
    if (entry.closes) {
      EXPECT_TRUE(client.closed_by_server()) << entry.bytes.substr(0, 120);
    } else {
      client.send(get("/health"));
      EXPECT_EQ(client.receive().value_or(Reply{}).status, 200) << "leftover bytes: " << entry.bytes.substr(0, 120);
    }
  }
  std::string many = "GET /health HTTP/1.1\r\n";
  for (int i = 0; i < 101; ++i) many += "H" + std::to_string(i) + ": v\r\n";
  EXPECT_EQ(ask(port(), many + "\r\n").status, 431);
  HttpClient early(port());
  early.send(head + "Content-Length: 10\r\n\r\n{}");
  early.half_close();
  EXPECT_EQ(early.receive().value_or(Reply{}).status, 400);
}

TEST_F(ServerTest, KeepsPipelinedRequestsAndSplitBytes) {
  start();
  HttpClient client(port());
  client.send(chat("SAY:one") + chat("SAY:two", R"(,"stream":true)") + get("/health"));
  EXPECT_NE(client.receive().value_or(Reply{}).body.find("\"content\":\"one\""), std::string::npos);
  EXPECT_NE(client.receive().value_or(Reply{}).body.find("[DONE]"), std::string::npos);
  EXPECT_EQ(client.receive().value_or(Reply{}).status, 200);
  for (const char byte : chat("SAY:slow")) client.send(std::string(1, byte));
  EXPECT_NE(client.receive().value_or(Reply{}).body.find("slow"), std::string::npos);
}

TEST_F(ServerTest, ContinuesOnlyAfterTheKey) {
  start({"secret"});
  const std::string head = "POST /v1/tokenize HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 14\r\n";
  HttpClient refused(port());
  refused.send(head + "\r\n");
  EXPECT_EQ(refused.receive().value_or(Reply{}).status, 401);
  HttpClient client(port());
  client.send(head + "x-api-key: secret\r\n\r\n");
  EXPECT_EQ(client.receive().value_or(Reply{}).status, 100);
  client.send(R"({"prompt":"a"})");
  EXPECT_EQ(client.receive().value_or(Reply{}).status, 200);
}

TEST_F(ServerTest, StalledAndIdleConnectionsEnd) {
  model_ = make_fake_model(engine_);
  ServerOptions options;
  options.port = 0;
  options.idle_seconds = 1;
  options.stalled_seconds = 1;
  server_ = std::make_unique<Server>(options, ApiKeys());
  server_->start();
  server_->set_model(model_);
  HttpClient idle(port());
  EXPECT_TRUE(idle.closed_by_server());
  HttpClient stalled(port());
  stalled.send("POST /v1/tokenize HTTP/1.1\r\nContent-Length: 5\r\n\r\n{");
  EXPECT_EQ(stalled.receive().value_or(Reply{}).status, 408);
}

TEST_F(ServerTest, DrainFinishesWhatRunsAndRefusesTheRest) {
  start({}, 4, 2.0);
  HttpClient running(port());
  running.send(chat("x", R"(,"max_tokens":100)"));
  ASSERT_TRUE(eventually([this] { return engine_->load().running == 1; }));
  HttpClient late(port());
  EXPECT_EQ(server_->running_replies(), 1);
  std::thread drain([this] { EXPECT_EQ(server_->drain(10), 0); });
  ASSERT_TRUE(eventually([this] { return ask(port(), chat("SAY:.")).status == 503; }));  // it has begun
  const Reply health = ask(port(), get("/health"));
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.body, R"({"status":"draining"})");
  late.send(chat("y"));
  const Reply refused = late.receive().value_or(Reply{});
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.head.find("Retry-After: 30"), std::string::npos);
  EXPECT_TRUE(refused.closes());
  EXPECT_EQ(refused.json()["error"]["code"], "server_restarting");
  EXPECT_EQ(running.receive().value_or(Reply{}).status, 200);
  drain.join();
  EXPECT_EQ(engine_->cancelled(), 0);
  server_->stop();
}

TEST_F(ServerTest, StopCancelsWhatStillRuns) {
  start({}, 4, 2.0);
  HttpClient running(port());
  running.send(chat("x", R"(,"max_tokens":4000,"stream":true)"));
  running.receive_until("content");
  server_->stop();
  EXPECT_EQ(engine_->cancelled(), 1);
}

TEST_F(ServerTest, WhatIsCutOffByStoppingIsTold) {
  start({}, 2, 2.0);
  HttpClient streamed(port()), whole(port()), queued(port()), queued_stream(port()), uploading(port());
  streamed.send(chat("x", R"(,"max_tokens":4000,"stream":true)"));
  streamed.receive_until("content");
  whole.send(chat("x", R"(,"max_tokens":4000)"));
  ASSERT_TRUE(eventually([this] { return engine_->load().running == 2; }));
  queued.send(chat("x", R"(,"max_tokens":4000)"));
  queued_stream.send(chat("x", R"(,"max_tokens":4000,"stream":true)"));
  ASSERT_TRUE(eventually([this] { return engine_->load().waiting == 2; }));
  uploading.send("POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{");
  EXPECT_EQ(server_->drain(0.05), 4);
  server_->stop();
  const std::string events = streamed.receive_until("0\r\n\r\n");
  EXPECT_NE(events.find(R"("type":"server_error")"), std::string::npos) << events;
  EXPECT_NE(events.find("data: [DONE]"), std::string::npos) << events;
  EXPECT_EQ(events.find(R"("finish_reason":"stop")"), std::string::npos) << events;
  EXPECT_TRUE(streamed.closed_by_server());
  for (HttpClient* client : {&whole, &queued, &queued_stream}) {
    const Reply reply = client->receive().value_or(Reply{});
    EXPECT_EQ(reply.status, 503);
    EXPECT_EQ(reply.json()["error"]["code"], "server_restarting");
    EXPECT_TRUE(reply.closes());
  }
  EXPECT_EQ(uploading.receive().value_or(Reply{}).status, 503);
  EXPECT_EQ(engine_->cancelled(), 4);
}

}  // namespace
}  // namespace tensorfold::testing
