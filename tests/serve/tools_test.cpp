// Tools over the wire: what the template sees, calls in whole and streamed replies, roles, log-probabilities, and calls
// that must come. The fake engine says what the prompt asks it to say, token by byte.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "serve/fake_model.h"
#include "serve/http_client.h"
#include "serve/reply_rules.h"
#include "serve/reply_text.h"
#include "serve/server.h"
#include "serve/sse_chunks.h"
#include "serve/tool_gate.h"

namespace tensorfold::testing {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"look","parameters":{"type":"object","properties":)"
    R"({"place":{"type":"string"},"times":{"type":"integer"}},"required":["place"]}}},)"
    R"({"type":"function","function":{"name":"ping"}}])";
constexpr const char* kCall = R"(<tool_call>\n{\"name\": \"look\", \"arguments\": {\"place\": \"sea\"}}\n</tool_call>)";

/// Of a tokenize reply: a token of the fake model is a byte.
std::string text_of_tokens(const Reply& reply) {
  std::string text;
  const Json tokens = reply.json()["tokens"];
  for (const Json& id : tokens) text += static_cast<char>(id.get<int>());
  return text;
}

class ToolsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = make_fake_model(engine_, 4, 4096, 0.2);
    model_->defaults.max_tokens = 400;
    ServerOptions options;
    options.port = 0;
    server_ = std::make_unique<Server>(options, ApiKeys());
    server_->start();
    server_->set_model(model_);
  }
  Reply chat(const std::string& content, const std::string& more) const {
    return ask(server_->port(), post("/v1/chat/completions",
                                     R"({"messages":[{"role":"user","content":")" + content + "\"}]," + more + "}"));
  }

  FakeEngine* engine_ = nullptr;
  std::shared_ptr<ServedModel> model_;
  std::unique_ptr<Server> server_;
};

TEST_F(ToolsTest, AWholeReplyHasItsCallsAndNoContent) {
  const Reply reply = chat(std::string("SAY:Let me see. ") + kCall + kCall, kTools);
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json choice = reply.json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  const Json calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2u);
  for (const Json& call : calls) {
    EXPECT_EQ(call["type"], "function");
    EXPECT_EQ(call["function"]["name"], "look");
    EXPECT_EQ(call["function"]["arguments"], R"({"place":"sea"})");
    EXPECT_EQ(call["id"].get<std::string>().rfind("call_", 0), 0u);
    EXPECT_EQ(call["id"].get<std::string>().size(), 29u);
  }
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);
}

TEST_F(ToolsTest, OneCallWhereMoreAreForbidden) {
  const Reply reply =
      chat(std::string("SAY:") + kCall + kCall, std::string(kTools) + R"(,"parallel_tool_calls":false)");
  EXPECT_EQ(reply.json()["choices"][0]["message"]["tool_calls"].size(), 1u) << reply.body;
}

TEST_F(ToolsTest, StreamsRoleTextHeadAndArguments) {
  const Reply reply = chat(std::string("SAY:So. ") + kCall, std::string(kTools) + R"(,"stream":true,"logprobs":true)");
  std::string content, arguments;
  int roles = 0, heads = 0;
  bool first = true;
  std::size_t entries = 0;
  Json finish;
  for (const Json& chunk : sse_chunks(reply.body)) {
    const Json& choice = chunk["choices"][0];
    const Json& delta = choice["delta"];
    EXPECT_EQ(delta.contains("role"), first);
    first = false;
    roles += delta.contains("role") ? 1 : 0;
    content += delta.value("content", "");
    if (choice.contains("logprobs") && delta.contains("content")) entries += choice["logprobs"]["content"].size();
    for (const Json& call : delta.value("tool_calls", Json::array())) {
      EXPECT_EQ(call["index"], 0);
      if (call.contains("id")) {
        ++heads;
        EXPECT_EQ(call["function"]["name"], "look");
        EXPECT_EQ(call["function"]["arguments"], "");
        EXPECT_EQ(call["type"], "function");
      } else {
        arguments += call["function"]["arguments"].get<std::string>();
      }
    }
    finish = choice["finish_reason"];
  }
  EXPECT_EQ(finish, "tool_calls");
  EXPECT_EQ(roles, 1);
  EXPECT_EQ(heads, 1);
  EXPECT_EQ(content, "So.");
  EXPECT_EQ(entries, 3u);  // of the shown text's tokens, and of no markup
  EXPECT_EQ(arguments, R"({"place":"sea"})");
}

TEST_F(ToolsTest, WithoutToolsMarkupIsText) {
  for (const std::string& more : {std::string(R"("seed":1)"), std::string(kTools) + R"(,"tool_choice":"none")"}) {
    const Json choice = chat(std::string("SAY:") + kCall, more).json()["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_NE(choice["message"]["content"].get<std::string>().find("<tool_call>"), std::string::npos);
  }
}

TEST_F(ToolsTest, TheTemplateSeesWhatIsOffered) {
  const auto prompt_of = [this](const std::string& more) {
    const Reply reply =
        ask(server_->port(), post("/v1/tokenize", R"({"messages":[{"role":"user","content":"x"}],)" + more + "}"));
    return text_of_tokens(reply);
  };
  EXPECT_EQ(prompt_of(kTools), "[tool]look[tool]ping[user]x[assistant]");
  EXPECT_EQ(prompt_of(std::string(kTools) + R"(,"tool_choice":"none")"), "[user]x[assistant]");
  EXPECT_EQ(prompt_of(std::string(kTools) + R"(,"tool_choice":{"type":"function","function":{"name":"ping"}})"),
            "[tool]ping[user]x[assistant]");
}

TEST_F(ToolsTest, CallsAndResultsComeBackInTheConversation) {
  const Reply reply =
      ask(server_->port(),
          post("/v1/tokenize",
               std::string(R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":null,)"
                           R"("tool_calls":[{"id":"call_1","type":"function","function":{"name":"look",)"
                           R"("arguments":"{\"place\":\"sea\"}"}}]},{"role":"tool","tool_call_id":"call_1",)"
                           R"("content":"blue"}],)") +
                   kTools + "}"));
  const std::string text = text_of_tokens(reply);
  EXPECT_NE(text.find("[user]x[assistant]\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"place\":\"sea\"}}"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("[tool]blue"), std::string::npos);
}

TEST_F(ToolsTest, ACallThatIsCutIsNoCall) {
  const Reply reply = chat(std::string("SAY:") + kCall, std::string(kTools) + R"(,"max_tokens":30)");
  const Json choice = reply.json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["message"]["content"].get<std::string>().size(), 30u);
}

std::string feed(ReplyText& text, const std::string& reply, std::string& reasoning, std::string& content) {
  std::string calls;
  const auto take = [&](const ReplyTextPiece& piece) {
    reasoning += piece.reasoning;
    content += piece.content;
    for (const ToolCallPiece& call : piece.calls) calls += call.name + call.arguments;
  };
  for (const char c : reply) take(text.push(static_cast<unsigned char>(c)));
  take(text.finish(true));
  return calls;
}

TEST(ToolsInReasoning, ACallThatEndsAnOpenBlockCounts) {
  const auto offer = std::make_shared<const ToolOffer>(OrderedJson::parse(R"([{"function":{"name":"ping"}}])"));
  const struct {
    const char* reply;
    const char* reasoning;
    const char* content;
    const char* calls;
  } cases[] = {
      {"I need it.\n<tool_call><function=ping></function></tool_call>", "I need it.", "", "ping{}"},
      {"I could <tool_call>{\"name\": \"ping\"}</tool_call> but no",
       "I could <tool_call>{\"name\": \"ping\"}</tool_call> but no", "", ""},
      {"Like <tool_call>x</tool_call>.</think>\nNo.", "Like <tool_call>x</tool_call>.", "No.", ""},
      {"<tool_call>{\"name\": \"ping\"}</tool_call></think>Yes", "<tool_call>{\"name\": \"ping\"}</tool_call>", "Yes",
       ""},
      {"a</think>\n\n<tool_call>{\"name\": \"ping\"}</tool_call>", "a", "", "ping{}"},
  };
  for (const auto& test : cases) {
    ReplyText text(std::make_shared<FakeTokenizer>(), {}, ReasoningFormat::kThink, true);
    text.read_calls(offer, false);
    std::string reasoning, content;
    EXPECT_EQ(feed(text, test.reply, reasoning, content), test.calls) << test.reply;
    EXPECT_EQ(reasoning, test.reasoning) << test.reply;
    EXPECT_EQ(content, test.content) << test.reply;
    EXPECT_EQ(text.calls().size(), *test.calls == '\0' ? 0u : 1u);
  }
}

/// A rule of a request that must call, over the fake model.
class RequiredCall : public ToolsTest {
 protected:
  std::unique_ptr<PathRule> rule(const std::string& tools, bool parallel = true) const {
    GenerationRequest request;
    request.is_chat = true;
    request.tools = parse_tools(OrderedJson::parse(tools));
    request.tool_choice = ToolChoice::kRequired;
    request.parallel_tool_calls = parallel;
    return make_reply_rule(*model_, request, PromptTokens());
  }
  static std::string allowed(PathRule& rule) {
    std::vector<std::uint32_t> bits((kFakeVocabulary + 31) / 32);
    EXPECT_TRUE(rule.mask(bits));
    std::string bytes;
    for (std::int32_t id = 0; id < kFakeVocabulary; ++id) {
      if ((bits[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1u) == 0) continue;
      bytes += id < 256 ? static_cast<char>(id) : '$';
    }
    return bytes;
  }
  static bool accepts(PathRule& rule, const std::string& text) {
    for (const char byte : text) {
      if (allowed(rule).find(byte) == std::string::npos) return false;
      rule.advance(static_cast<unsigned char>(byte));
    }
    return true;
  }
};

TEST_F(RequiredCall, IsHeldToMarkupNamesAndSchemas) {
  const std::string tools =
      R"([{"function":{"name":"look","parameters":{"type":"object","properties":{"place":{"enum":["sea","sky"]}},)"
      R"("required":["place"]}}},{"function":{"name":"listen"}}])";
  const auto first = rule(tools);
  EXPECT_EQ(allowed(*first), "\t\n\r <");
  EXPECT_TRUE(accepts(*first, "\n<tool_call>\n{\"name\": \"l"));
  EXPECT_EQ(allowed(*first), "io");
  EXPECT_TRUE(accepts(*first, "ook\", \"arguments\": {\"place\": \"s"));
  EXPECT_EQ(allowed(*first), "ek");
  EXPECT_TRUE(accepts(*first, "ea\"}}\n</tool_call>"));
  EXPECT_EQ(allowed(*first), "\n$");  // another call, or the end
  const auto free = rule(tools);
  EXPECT_TRUE(accepts(
      *free, "<tool_call>\n{\"name\": \"listen\", \"arguments\": {\"any\": [1, null]}}\n</tool_call>\n<tool_call>"));
  const auto one = rule(tools, false);
  EXPECT_TRUE(accepts(*one, "<tool_call>\n{\"name\": \"listen\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_EQ(allowed(*one), "$");
}

TEST_F(RequiredCall, ASchemaThatCannotBeEnforcedLeavesAnyObject) {
  const auto any = rule(R"([{"function":{"name":"f","parameters":{"type":"object","not":{}}}}])");
  EXPECT_TRUE(accepts(*any, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>"));
}

TEST(RequiredXmlCall, HoldsValuesToTheirTypes) {
  ToolCallFormat format;
  format.style = ToolCallFormat::Style::kXml;
  format.lead = "<tool_call>\n<function=";
  format.tail = "\n</tool_call>";
  format.separator = "\n";
  const OrderedJson tools = parse_tools(OrderedJson::parse(
      R"([{"function":{"name":"set","parameters":{"type":"object","properties":{"room":{"type":"string"},)"
      R"("level":{"type":"integer"},"mode":{"type":"string","enum":["warm","cold"]}},"required":["room"]}}}])"));
  StructuredOutput output(std::make_shared<FakeTokenizer>(), kFakeVocabulary, ReasoningFormat::kNone);
  const auto grammar = output.compile(required_calls_source(format, tools, false));
  const auto complete = [&](const std::string& text) {
    const auto matcher = grammar->start();
    for (const char byte : text) {
      if (!matcher->advance(static_cast<unsigned char>(byte))) return false;
    }
    return matcher->is_complete();
  };
  const std::string open = "<tool_call>\n<function=set>\n<parameter=room>\n", close = "</function>\n</tool_call>";
  EXPECT_TRUE(complete(open + "any <text> </param\n</parameter>\n" + close));
  EXPECT_TRUE(complete(open + "\xc3\xa9</</parameter>\n<parameter=level>\n-5\n</parameter>\n" + close));
  EXPECT_TRUE(complete(open + "\n</parameter>\n<parameter=mode>\ncold\n</parameter>\n" + close));
  EXPECT_FALSE(complete(open + "x</parameter>\n<parameter=level>\nfive\n</parameter>\n" + close));
  EXPECT_FALSE(complete(open + "x</parameter>\n<parameter=mode>\nhot\n</parameter>\n" + close));
  EXPECT_FALSE(complete("<tool_call>\n<function=set>\n" + close));  // a required parameter is missing
  EXPECT_FALSE(complete(open + "x</parameter>\n" + close + "\n" + open + "x</parameter>\n" + close));
}

}  // namespace
}  // namespace tensorfold::testing
