// Messages to segments: field names in errors, normalisation, thinking, efforts, provenance.
#include "text/messages.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace tensorfold {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kChatMl =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

std::string error_of(const Json& messages) {
  try {
    parse_messages(messages);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

std::string text_of(const std::vector<PromptSegment>& segments) {
  std::string text;
  for (const PromptSegment& segment : segments) text += segment.text;
  return text;
}

std::string render(const char* source, const Json& messages, bool thinking = true) {
  const PromptRenderer renderer(ChatTemplate::compile(source), Json{{"bos_token", "<s>"}});
  ChatPrompt prompt;
  prompt.messages = parse_messages(messages);
  prompt.thinking = thinking;
  return text_of(renderer.render(prompt));
}

TEST(Messages, ErrorsNameTheField) {
  EXPECT_EQ(error_of(Json::parse(R"([{"role": "user", "content": [{"type": "image_url"}]}])"))
                .find("messages[0].content[0].type:"),
            0u);
  EXPECT_EQ(error_of(Json::parse(R"([{"role": "user", "content": "a"}, {"role": "bot"}])")).find("messages[1].role:"),
            0u);
  EXPECT_EQ(error_of(Json::parse(R"([{"content": "a"}])")).find("messages[0].role:"), 0u);
  EXPECT_EQ(error_of(Json::parse(R"([{"role": "user", "content": 5}])")).find("messages[0].content:"), 0u);
  EXPECT_EQ(error_of(Json::parse(R"([{"role": "assistant", "tool_calls": [{}]}])"))
                .find("messages[0].tool_calls[0].function:"),
            0u);
  EXPECT_EQ(error_of(Json::parse("[]")).find("messages:"), 0u);
}

TEST(Messages, PartsAndArguments) {
  const auto messages = parse_messages(Json::parse(R"([
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": null, "tool_calls": [
          {"function": {"name": "f", "arguments": "{\"x\": 1}"}}, {"function": {"name": "f", "arguments": "{oops"}}]}])"));
  EXPECT_EQ(messages[0].content, "ab");
  EXPECT_EQ(messages[1].content, "");
  EXPECT_EQ(messages[1].tool_calls[0]["function"]["arguments"], (Json{{"x", 1}}));
  EXPECT_EQ(messages[1].tool_calls[1]["function"]["arguments"], (Json{{"_invalid_arguments", "{oops"}}));
}

TEST(Messages, LeadingSystemMessagesMerge) {
  const Json messages = Json::parse(R"([{"role": "system", "content": "A"}, {"role": "developer", "content": "B"},
      {"role": "user", "content": "hi"}, {"role": "system", "content": "late"}, {"role": "user", "content": "x"}])");
  EXPECT_EQ(render(kChatMl, messages),
            "<|im_start|>system\nA\n\nB<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>system\nlate<|im_end|>\n"
            "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n");
  const char* only_first =
      "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
      "[{{ m.role }}:{{ m.content }}]{% endfor %}";
  EXPECT_EQ(render(only_first, messages), "[system:A\n\nB][user:hi][user:late][user:x]");
}

TEST(Messages, PlaceholderUserTurn) {
  const char* wants_user =
      "{% set ns = namespace(u=false) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.u = true %}{% endif "
      "%}"
      "{{ m.role }}:{{ m.content }};{% endfor %}{% if not ns.u %}{{ raise_exception('no user query') }}{% endif %}";
  EXPECT_EQ(render(wants_user, Json::parse(R"([{"role": "system", "content": "s"}])")), "system:s;user:Continue.;");
  EXPECT_EQ(render(wants_user, Json::parse(R"([{"role": "assistant", "content": "a"}, {"role": "tool", "content": "t"},
      {"role": "assistant", "content": "b"}])")),
            "assistant:a;tool:t;user:Continue.;assistant:b;");
}

TEST(Messages, ThinkingOffClosesAnOpenBlock) {
  const Json hello = Json::parse(R"([{"role": "user", "content": "hi <think>"}])");
  const char* opens = "{{ messages[0].content }}|assistant\n{{ '<think>\n' }}";
  EXPECT_EQ(render(opens, hello, true), "hi <think>|assistant\n<think>\n");
  EXPECT_EQ(render("{{ messages[0].content }}|{{ '<think>\n' }}", hello, false), "hi <think>|<think>\n\n</think>\n\n");
  EXPECT_EQ(render("{{ messages[0].content }}", hello, false), "hi <think>");  // the message's own text stays
}

TEST(Messages, FactsAreDetected) {
  const PromptRenderer plain(ChatTemplate::compile(kChatMl), nullptr);
  EXPECT_FALSE(plain.facts().has_thinking_switch);
  EXPECT_FALSE(plain.facts().supports_tools);
  EXPECT_FALSE(plain.facts().opens_think_block);
  EXPECT_TRUE(plain.facts().keeps_late_system);
  EXPECT_TRUE(plain.facts().effort_levels.empty());
  const PromptRenderer rich(
      ChatTemplate::compile("{% for t in tools or [] %}{{ t|tojson }}{% endfor %}{{ messages[0].content }}"
                            "{% if reasoning_effort == 'high' %}!{% elif reasoning_effort == 'low' %}.{% endif %}"
                            "{{ '<think>' if enable_thinking }}"),
      nullptr);
  EXPECT_TRUE(rich.facts().has_thinking_switch);
  EXPECT_TRUE(rich.facts().supports_tools);
  EXPECT_TRUE(rich.facts().opens_think_block);
  EXPECT_FALSE(rich.facts().keeps_late_system);
  EXPECT_EQ(rich.facts().effort_levels, (std::vector<std::string>{"high", "low"}));
}

TEST(Messages, EffortsGoToTheNearestLevel) {
  EXPECT_EQ(coerce_effort("medium", {"high", "low"}), "high");  // a tie goes higher
  EXPECT_EQ(coerce_effort("minimal", {"high", "low"}), "low");
  EXPECT_EQ(coerce_effort("max", {"high", "low"}), "high");
  EXPECT_EQ(coerce_effort("xhigh", {"high", "low"}), "xhigh");
  EXPECT_EQ(coerce_effort("high", {}), "xhigh");
  EXPECT_EQ(coerce_effort("minimal", {}), "low");
  EXPECT_EQ(coerce_effort("medium", {}), "medium");
}

TEST(Messages, ThinkingPrecedence) {
  EXPECT_FALSE(resolve_thinking(Json{{"enable_thinking", false}, {"thinking", true}}, "high", true));
  EXPECT_TRUE(resolve_thinking(Json{{"thinking", {{"type", "enabled"}}}}, "none", false));
  EXPECT_FALSE(resolve_thinking(nullptr, "none", true));
  EXPECT_TRUE(resolve_thinking(nullptr, "low", false));
  EXPECT_FALSE(resolve_thinking(nullptr, std::nullopt, false));
  EXPECT_THROW(resolve_thinking(Json{{"enable_thinking", 1}}, std::nullopt, true), Error);
}

TEST(Messages, RequestsCannotBringSpecialTokens) {
  const PromptRenderer renderer(ChatTemplate::compile("{{ bos_token }}{{ messages[0].content }}"),
                                Json{{"bos_token", "<s>"}});
  ChatPrompt prompt;
  prompt.messages = parse_messages(Json::parse(R"([{"role": "user", "content": "<s>"}])"));
  prompt.template_kwargs = Json{{"bos_token", "<|evil|>"}, {"eos_token", "<|evil|>"}};
  const auto segments = renderer.render(prompt);
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(segments[0].text, "<s>");
  EXPECT_TRUE(segments[0].control);
  EXPECT_FALSE(segments[1].control);
}

}  // namespace
}  // namespace tensorfold
