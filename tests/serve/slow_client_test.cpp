// Clients that don't take what they asked for, and more requests than the engine queues: each costs only itself.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/limits.h"
#include "eventually.h"
#include "serve/fake_model.h"
#include "serve/http_client.h"
#include "serve/server.h"

namespace tensorfold::testing {
namespace {

using namespace std::chrono_literals;

constexpr int kEndless = 1'900'000'000;  // no engine of a test comes to it

std::string chat(int tokens, bool streamed, bool logprobs = false) {
  return post("/v1/chat/completions",
              fmt::format(R"({{"messages":[{{"role":"user","content":"go on"}}],"max_tokens":{},"stream":{},"logprobs":{}}})", tokens,
                          streamed, logprobs));
}

// A client that never reads, beside one that does: it is let go of, its stream is cancelled, nobody else notices.
std::chrono::duration<double> time_until_let_go(double round_ms, int not_reading_seconds) {
  FakeEngine* engine = nullptr;
  auto model = make_fake_model(engine, 2, 2'000'000'000, round_ms);
  ServerOptions options;
  options.port = 0;
  options.not_reading_seconds = not_reading_seconds;
  Server server(options, ApiKeys());
  server.start();
  server.set_model(model);

  const auto start = std::chrono::steady_clock::now();
  HttpClient silent(server.port());
  // With logprobs every token takes a hundred bytes and more on the wire, however many of them one event holds: without,
  // a reply may fit into the kernel's buffers.
  silent.send(chat(kEndless, true, true));
  EXPECT_TRUE(eventually([&] { return engine->running() == 1; }));
  const std::string hello = post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"SAY:hello"}]})");
  EXPECT_EQ(ask(server.port(), hello).status, 200);
  EXPECT_TRUE(eventually([&] { return engine->cancelled() == 1 && engine->running() == 0; }));
  const auto elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(ask(server.port(), get("/health")).status, 200);
  return elapsed;
}

TEST(SlowClient, IsLetGoOfAfterTheTimeLimit) {
  // Slow enough that the writes stall (the reply outgrows the kernel's buffers) long before the events pile up.
  EXPECT_GE(time_until_let_go(0.05, 1).count(), 1.0);
}

TEST(SlowClient, IsLetGoOfWhenItsEventsPileUp) {
  constexpr int kLongerThanTheTest = 3600;  // so that only what piled up can be the reason
  time_until_let_go(0.0, kLongerThanTheTest);
}

/// Keeps whoever turns tokens into text waiting while it is shut.
class GatedText final : public FakeTokenizer {
 public:
  std::string token_bytes(std::int32_t id) const override {
    shut.wait(true);
    return FakeTokenizer::token_bytes(id);
  }
  void open() {
    shut = false;
    shut.notify_all();
  }
  std::atomic<bool> shut{false};
};

/// A server that falls behind its own replies: the clients are there and read.
struct SlowServer : ::testing::Test {
  SlowServer() {
    model->tokenizer = text;
    server.start();
    server.set_model(model);
  }
  ~SlowServer() override { text->open(); }
  static ServerOptions options() {
    ServerOptions options;
    options.port = 0;
    return options;
  }
  static constexpr int kMoreThanIsHeld = 2 * static_cast<int>(limits::kStreamEventsMax) + 1;

  FakeEngine* engine = nullptr;
  std::shared_ptr<ServedModel> model = make_fake_model(engine, 2, 2'000'000'000, 0.0);
  std::shared_ptr<GatedText> text = std::make_shared<GatedText>();
  Server server{options(), ApiKeys()};
};

TEST_F(SlowServer, AReplyThatEndedWithTokensMissingIsRefused) {
  for (const bool streamed : {false, true}) {
    text->shut = true;
    HttpClient client(server.port());
    client.send(chat(2 * kMoreThanIsHeld, streamed));
    ASSERT_TRUE(eventually([&] { return engine->tokens_made() == (streamed ? 4 : 2) * kMoreThanIsHeld; }));
    text->open();
    const Reply reply = client.receive().value_or(Reply{});
    EXPECT_EQ(reply.status, 500);
    EXPECT_NE(reply.body.find("read too slowly"), std::string::npos) << reply.body.substr(0, 400);
  }
  EXPECT_EQ(engine->cancelled(), 0);  // it was too late for that
}

TEST_F(SlowServer, AStreamWithTokensMissingEndsWithAnError) {
  engine->set_round_ms(1.0);  // until the reply is being read
  HttpClient client(server.port());
  client.send(chat(kEndless, true));
  EXPECT_NE(client.receive_until("\"content\""), "");
  text->shut = true;
  engine->set_round_ms(0.0);
  const std::int64_t before = engine->tokens_made();
  ASSERT_TRUE(eventually([&] { return engine->tokens_made() > before + kMoreThanIsHeld; }));
  text->open();
  const std::string events = client.receive_until("[DONE]");
  EXPECT_NE(events.find("read too slowly"), std::string::npos) << events.substr(0, 400);
  EXPECT_EQ(events.find(R"("finish_reason":"length")"), std::string::npos);
  EXPECT_EQ(engine->cancelled(), 1);
}

// A client that leaves while its reply is being written: its events may have piled up unread by then, and the request
// must end with its stream all the same. (One that waited for another event never came to its end.)
TEST(LeavingClient, LeavesNoRequestBehind) {
  FakeEngine* engine = nullptr;
  auto model = make_fake_model(engine, 8, 2'000'000'000, 0.0);
  ServerOptions options;
  options.port = 0;
  Server server(options, ApiKeys());
  server.start();
  server.set_model(model);
  for (int i = 0; i < 100; ++i) {
    HttpClient client(server.port());
    client.send(chat(kEndless, true));
    client.receive_until("{");  // of the reply, or of an error where the server fell behind the engine at once
    std::this_thread::sleep_for(std::chrono::microseconds(i * 50));
    client.reset();
  }
  ASSERT_TRUE(eventually([&] { return engine->load().running + engine->load().waiting == 0; }));
  const auto start = std::chrono::steady_clock::now();
  server.drain(120);
  // Less than the time after which a connection looks for events that nobody told it of.
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s) << "a request without a stream is still counted";
}

// The engine refuses what its queue can't hold; the client learns when to come back, and who was there is served.
TEST(FullQueue, Answers503WithRetryAfter) {
  FakeEngine* engine = nullptr;
  auto model = make_fake_model(engine, 1, 4096, 1.0);
  engine->set_requests_max(3);
  ServerOptions options;
  options.port = 0;
  Server server(options, ApiKeys());
  server.start();
  server.set_model(model);

  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server.port()));
    clients.back()->send(chat(4000, true));
    ASSERT_TRUE(eventually([&] { return engine->load().running + engine->load().waiting == i + 1; }));
  }
  const std::string hello = post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"SAY:hello"}]})");
  const Reply refused = ask(server.port(), hello);
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.head.find("Retry-After: "), std::string::npos) << refused.head;
  EXPECT_NE(refused.body.find("queue is full"), std::string::npos) << refused.body;
  clients.clear();  // they leave: their streams are cancelled and there is room again
  ASSERT_TRUE(eventually([&] { return engine->load().running + engine->load().waiting == 0; }));
  EXPECT_EQ(ask(server.port(), hello).status, 200);
}

}  // namespace
}  // namespace tensorfold::testing
