// The form in which templates write calls, as the probes find it: of the demo model, of templates like those of Qwen
// and Llama, and of the real ones where they are unpacked.
#include "text/tool_call_format.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "template_golden.h"
#include "text/messages.h"

namespace tensorfold {
namespace {

using Json = nlohmann::ordered_json;
using Style = ToolCallFormat::Style;

TemplateFacts facts_of(const std::string& source) {
  return PromptRenderer(ChatTemplate::compile(source), Json{{"bos_token", "<s>"}, {"eos_token", "</s>"}}).facts();
}

TEST(ToolCallFormat, OfTheDemoModel) {
  const std::filesystem::path file =
      std::filesystem::path(TENSORFOLD_SOURCE_DIR) / "models" / "demo" / "chat_template.jinja";
  const TemplateFacts facts = facts_of(read_whole_file(file));
  EXPECT_TRUE(facts.supports_tools);
  const ToolCallFormat& format = facts.call_format;
  EXPECT_EQ(format.style, Style::kXml);
  EXPECT_EQ(format.lead, "<tool_call>\n<function=");
  EXPECT_EQ(format.tail, "\n</tool_call>");
  EXPECT_EQ(format.separator, "\n");
  EXPECT_TRUE(format.several);
}

TEST(ToolCallFormat, OfHermesTemplates) {
  const ToolCallFormat format = facts_of(R"({%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{%- for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{%- endfor %}<|im_end|>
{% endfor %})")
                                    .call_format;
  EXPECT_EQ(format.style, Style::kJson);
  EXPECT_EQ(format.lead, "<tool_call>\n{\"name\": \"");
  EXPECT_EQ(format.after_name, "\", \"arguments\": ");
  EXPECT_EQ(format.tail, "}\n</tool_call>");
  EXPECT_TRUE(format.several);
}

TEST(ToolCallFormat, OfBareCallsOneATurn) {
  const ToolCallFormat format = facts_of(R"({%- for m in messages -%}
{%- if m.tool_calls -%}
{%- if m.tool_calls | length != 1 -%}{{ raise_exception("one at once") }}{%- endif -%}
<|header|>assistant

{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}<|eot_id|>
{%- else -%}<|header|>{{ m.role }}

{{ m.content }}<|eot_id|>{%- endif -%}
{%- endfor -%})")
                                    .call_format;
  EXPECT_EQ(format.style, Style::kJson);
  EXPECT_EQ(format.lead, "{\"name\": \"");
  EXPECT_EQ(format.after_name, "\", \"parameters\": ");
  EXPECT_EQ(format.tail, "}");
  EXPECT_FALSE(format.several);
}

TEST(ToolCallFormat, OfTemplatesWithoutOne) {
  EXPECT_EQ(facts_of("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}").call_format.style,
            Style::kNone);
  EXPECT_EQ(facts_of("{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }}]"
                     "{% endfor %}{% endfor %}")
                .call_format.style,
            Style::kNone);
}

TEST(ToolCallFormat, OfRealTokenizerFolders) {
  const char* variable = std::getenv("TENSORFOLD_TOKENIZERS_DIR");
  const std::filesystem::path folder = variable != nullptr
                                           ? std::filesystem::path(variable)
                                           : std::filesystem::path(TENSORFOLD_SOURCE_DIR) / ".cache" / "tokenizers";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "needs ../shared/data/tokenizers.tar.xz unpacked at " << folder;
  const auto format_of = [&](const char* name) {
    const Json config = Json::parse(read_whole_file(folder / name / "tokenizer_config.json"));
    return facts_of(config["chat_template"].get<std::string>()).call_format;
  };
  const ToolCallFormat qwen3 = format_of("qwen3");
  EXPECT_EQ(qwen3.style, Style::kJson);
  EXPECT_EQ(qwen3.lead, "<tool_call>\n{\"name\": \"");
  EXPECT_EQ(qwen3.after_name, "\", \"arguments\": ");
  EXPECT_EQ(qwen3.tail, "}\n</tool_call>");
  EXPECT_EQ(qwen3.separator, "\n");
  EXPECT_TRUE(qwen3.several);
  EXPECT_EQ(format_of("llama3").style, Style::kNone);  // of 3.0, which knows no tools
  EXPECT_EQ(format_of("gemma3").style, Style::kNone);
}

}  // namespace
}  // namespace tensorfold
