// Log-probabilities go out with the text they belong to: streamed or whole, beside stop strings and reasoning.
#include <gtest/gtest.h>

#include "serve/fake_model.h"
#include "serve/http_client.h"
#include "serve/server.h"
#include "serve/sse_chunks.h"

namespace tensorfold::testing {
namespace {

using Json = nlohmann::json;

class LogprobsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = make_fake_model(engine_, 4, 4096, 0.2);
    ServerOptions options;
    options.port = 0;
    server_ = std::make_unique<Server>(options, ApiKeys());
    server_->start();
    server_->set_model(model_);
  }
  Reply chat(const std::string& content, const std::string& more) const {
    return ask(server_->port(),
               post("/v1/chat/completions", R"({"messages":[{"role":"user","content":")" + content +
                                                R"("}],"logprobs":true,"top_logprobs":2)" + more + "}"));
  }
  /// The entries of a whole reply and of a streamed one, which must agree; text is the content.
  Json entries(const std::string& content, const std::string& more, std::string& text) const {
    const Json whole = chat(content, more).json();
    const Json& choice = whole["choices"][0];
    text = choice["message"]["content"];
    Json streamed = Json::array();
    std::string streamed_text, spelled;
    for (const Json& chunk : sse_chunks(chat(content, more + R"(,"stream":true)").body)) {
      if (chunk["choices"].empty()) continue;
      const Json& delta = chunk["choices"][0];
      if (delta["delta"].contains("content")) streamed_text += delta["delta"]["content"].get<std::string>();
      if (delta.contains("logprobs") && !delta["logprobs"].is_null()) {
        EXPECT_TRUE(delta["logprobs"].contains("refusal"));
        for (const Json& entry : delta["logprobs"]["content"]) {
          streamed.push_back(entry);
          if (entry["token"] == "<end>") continue;
          for (const Json& byte : entry["bytes"]) spelled.push_back(static_cast<char>(byte.get<int>()));
        }
      }
      EXPECT_EQ(spelled, streamed_text);  // tokens are bytes here: entries and text go out together
    }
    EXPECT_EQ(streamed_text, text);
    EXPECT_EQ(streamed, choice["logprobs"]["content"]);
    return streamed;
  }
  static std::string spelled(const Json& list) {
    std::string all;
    for (const Json& entry : list) {
      if (entry["token"] == "<end>") {
        all += "$";
        continue;
      }
      for (const Json& byte : entry["bytes"]) all.push_back(static_cast<char>(byte.get<int>()));
    }
    return all;
  }

  FakeEngine* engine_ = nullptr;
  std::shared_ptr<ServedModel> model_;
  std::unique_ptr<Server> server_;
};

TEST_F(LogprobsTest, EveryTokenAndTheEnd) {
  std::string text;
  const Json list = entries("SAY:h\u00e9llo \u6f22\u5b57", "", text);
  EXPECT_EQ(text, "h\u00e9llo \u6f22\u5b57");
  EXPECT_EQ(spelled(list), text + "$");
  EXPECT_EQ(list.size(), text.size() + 1);
  EXPECT_EQ(list[0]["logprob"], -0.5);
  EXPECT_EQ(list[0]["top_logprobs"][1]["token"], "~");
  EXPECT_EQ(list[1]["token"], "bytes:\\xc3");
}

TEST_F(LogprobsTest, AStopStringTakesItsTokensWithIt) {
  std::string text;
  EXPECT_EQ(spelled(entries("SAY:one, two, three", R"(,"stop":["two,","zzz"])", text)), "one, ");
  EXPECT_EQ(text, "one, ");
  // Held back and released: "tw" might have begun the stop string.
  EXPECT_EQ(spelled(entries("SAY:one twelve", R"(,"stop":["two"])", text)), "one twelve$");
  // Held back to the end: what never completes is text.
  EXPECT_EQ(spelled(entries("SAY:one tw", R"(,"stop":["two"])", text)), "one tw$");
  EXPECT_EQ(spelled(entries("SAY:a\u00e9b", R"(,"stop":["\u00e9"])", text)), "a");
  EXPECT_EQ(spelled(entries("SAY:stop", R"(,"stop":["stop"])", text)), "");
}

TEST_F(LogprobsTest, BeginAfterTheReasoning) {
  std::string text;
  const std::string on = R"(,"chat_template_kwargs":{"enable_thinking":true})";
  EXPECT_EQ(spelled(entries("SAY:why</think>\\n\\nso it is", on, text)), "so it is$");
  EXPECT_EQ(spelled(entries("SAY:why</think>\\n\\nso it is", on + R"(,"stop":[" it"])", text)), "so");
  EXPECT_EQ(spelled(entries("SAY:never closed", on, text)), "");
  EXPECT_EQ(text, "");
}

TEST_F(LogprobsTest, WithoutAskingThereAreNone) {
  const Reply reply = ask(server_->port(), post("/v1/chat/completions",
                                                R"({"messages":[{"role":"user","content":"SAY:x"}],"stream":true})"));
  EXPECT_EQ(reply.body.find("logprobs"), std::string::npos);
}

TEST_F(LogprobsTest, StreamedCompletionsKeepTheirOffsets) {
  const std::string fields = R"({"prompt":"SAY:d\u00e9j\u00e0 vu.","echo":true,"logprobs":2,"stop":["."])";
  const Json whole = ask(server_->port(), post("/v1/completions", fields + "}")).json()["choices"][0];
  EXPECT_EQ(whole["text"], "SAY:d\u00e9j\u00e0 vu.d\u00e9j\u00e0 vu");
  Json lists;
  std::string text;
  int chunks = 0;
  for (const Json& chunk :
       sse_chunks(ask(server_->port(), post("/v1/completions", fields + R"(,"stream":true})")).body)) {
    const Json& choice = chunk["choices"][0];
    text += choice["text"].get<std::string>();
    if (choice["logprobs"].is_null()) continue;
    ++chunks;
    for (const auto& [name, list] : choice["logprobs"].items()) {
      for (const Json& item : list) lists[name].push_back(item);
    }
  }
  EXPECT_EQ(text, whole["text"]);
  EXPECT_EQ(lists, whole["logprobs"]);
  EXPECT_GT(chunks, 1);
  EXPECT_EQ(lists["text_offset"].back(), 18);  // characters, not bytes
}

}  // namespace
}  // namespace tensorfold::testing
