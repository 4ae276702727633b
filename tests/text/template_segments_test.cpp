// Provenance: whatever a template does to the caller's text, it never comes out as control text; and the limits hold.
#include <gtest/gtest.h>

#include "base/error.h"
#include "template_golden.h"
#include "text/chat_template_limits.h"

namespace tensorfold {
namespace {

/// The render with data in «».
std::string marked(const std::string& source, const char* variables) {
  std::string text;
  for (const PromptSegment& segment :
       ChatTemplate::compile(source)->render(nlohmann::ordered_json::parse(variables), 0)) {
    text += segment.control ? segment.text : "«" + segment.text + "»";
  }
  return text;
}

TEST(TemplateSegments, CallerTextStaysData) {
  const char* v = R"({"x": "<a>b", "n": 5, "l": ["p", "q"], "d": {"k": "v"}, "bos_token": "<s>"})";
  EXPECT_EQ(marked("<|{{ x }}|>", v), "<|«<a>b»|>");
  EXPECT_EQ(marked("{{ bos_token + x }}", v), "<s>«<a>b»");
  EXPECT_EQ(marked("{{ ('[' + x + ']')[1:5] }}", v), "«<a>b»");
  EXPECT_EQ(marked("{{ ('[' + x + ']')|upper }}", v), "[«<A>B»]");
  EXPECT_EQ(marked("{{ 'a-b'.replace('-', x) }}", v), "a«<a>b»b");
  EXPECT_EQ(marked("{{ '%s!' % x }}{{ '{}?'.format(x) }}", v), "«<a>b»!«<a>b»?");
  EXPECT_EQ(marked("{{ l|join(', ') }}", v), "«p», «q»");
  EXPECT_EQ(marked("{{ d|tojson }}", v), "«{\"k\": \"v\"}»");
  EXPECT_EQ(marked("{{ {'r': x}|tojson }}", v), "{\"r\": «\"<a>b\"»}");
  EXPECT_EQ(marked("{{ l }}{{ n }}{{ n + 1 }}", v), "«['p', 'q']56»");
  EXPECT_EQ(marked("{{ x.split('>')[1] ~ '|' ~ x|trim|replace('a', '-') }}", v), "«b»|«<»-«>b»");
  EXPECT_EQ(marked("{% for c in x %}{{ c }}.{% endfor %}", v), "«<».«a».«>».«b».");
  EXPECT_EQ(marked("{% macro m(t) %}<{{ t }}>{% endmacro %}{{ m(x) }}", v), "<«<a>b»>");
  EXPECT_EQ(marked("{% set y %}<{{ x }}>{% endset %}{{ y|indent(2, true) }}", v), "  <«<a>b»>");
  EXPECT_EQ(marked("{{ {'<a>b': '<|im_end|>'}[x] }}", v), "<|im_end|>");  // a literal chosen by data is control
  EXPECT_EQ(marked("{{ '<|x|>' if x == '<a>b' }}", v), "<|x|>");
  EXPECT_EQ(marked("{{ x|reverse }}{{ x|title }}{{ x|e }}", v), "«b>a<<A>b&lt;a&gt;b»");
}

TEST(TemplateLimits, AreMetWithClearErrors) {
  const auto code_of = [](const std::string& source) {
    try {
      ChatTemplate::compile(source)->render(nlohmann::ordered_json::object(), 0);
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::kInternal;
  };
  EXPECT_EQ(code_of("{{ 'x' * 10 ** 9 }}"), ErrorCode::kResourceExhausted);
  EXPECT_EQ(code_of("{{ [1] * 10 ** 9 }}"), ErrorCode::kResourceExhausted);
  EXPECT_EQ(code_of("{{ range(10 ** 9) }}"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
            ErrorCode::kResourceExhausted);
  EXPECT_EQ(code_of("{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"),
            ErrorCode::kResourceExhausted);
  EXPECT_EQ(code_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), ErrorCode::kResourceExhausted);
  EXPECT_EQ(code_of("{% set l = [] %}{% set _ = l.append(l) %}{{ l }}"), ErrorCode::kResourceExhausted);
  EXPECT_EQ(
      code_of("{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}"),
      ErrorCode::kResourceExhausted);
  EXPECT_EQ(code_of("{{ " + std::string(100'000, '(') + " }}"), ErrorCode::kInvalidCheckpoint);
  std::string chain = "{{ 1";
  for (int i = 0; i < 10'000; ++i) chain += "+1";
  EXPECT_EQ(code_of(chain + " }}"), ErrorCode::kInvalidCheckpoint);
  EXPECT_EQ(code_of(std::string(2u << 20, 'x')), ErrorCode::kInvalidCheckpoint);
  EXPECT_EQ(code_of("{{ 2 ** 70 }}"), ErrorCode::kInvalidArgument);
}

TEST(TemplateSegments, LimitsSayThatTheConversationIsTooLong) {
  const auto complaint = [](jinja::RenderLimits limits) -> std::string {
    const auto compiled = compile_chat_template("{% for m in messages %}{{ m }}{{ m }}{% endfor %}", limits);
    try {
      compiled->render({{"messages", std::vector<std::string>(1000, "hello")}}, 0);
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
      return error.what();
    }
  };
  jinja::RenderLimits few_steps, few_bytes;
  few_steps.steps = 100;
  few_bytes.output_bytes = 100;
  EXPECT_EQ(complaint({}), "");
  for (const auto& limits : {few_steps, few_bytes}) {
    EXPECT_NE(complaint(limits).find("the conversation is too long"), std::string::npos) << complaint(limits);
  }
}

}  // namespace
}  // namespace tensorfold
