// ChatTemplate over the interpreter: compiles once, and turns a rendered text's provenance into prompt segments.
#include "text/chat_template.h"

#include <algorithm>

#include "base/error.h"
#include "text/chat_template_limits.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_json.h"
#include "text/jinja_parser.h"

namespace tensorfold {
namespace {

/// Variables that hold the tokenizer's own control tokens rather than a caller's words.
bool is_special_token_variable(const std::string& name) {
  constexpr const char* kNames[] = {"bos_token", "eos_token", "pad_token",  "unk_token",
                                    "sep_token", "cls_token", "mask_token", "additional_special_tokens"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

class JinjaTemplate final : public ChatTemplate {
 public:
  JinjaTemplate(std::string_view source, jinja::RenderLimits limits)
      : source_(source), program_(jinja::parse_template(source)), limits_(limits) {}

  std::vector<PromptSegment> render(const nlohmann::ordered_json& variables,
                                    std::int64_t now_unix_seconds) const override {
    jinja::Runtime runtime(limits_, now_unix_seconds);
    jinja::Interpreter interpreter(*program_, runtime);
    for (const auto& [name, value] : variables.items()) {
      interpreter.set_variable(name, jinja::from_json(runtime, value, !is_special_token_variable(name)));
    }
    const jinja::Text& text = interpreter.run();
    std::vector<PromptSegment> segments;
    std::size_t begin = 0;
    for (const jinja::TextRun& run : text.runs()) {
      segments.push_back({text.bytes().substr(begin, run.end - begin), !run.data});
      begin = run.end;
    }
    return segments;
  }

  const std::string& source() const override { return source_; }

 private:
  std::string source_;
  std::unique_ptr<const jinja::Program> program_;
  jinja::RenderLimits limits_;
};

}  // namespace

std::shared_ptr<const ChatTemplate> ChatTemplate::compile(std::string_view source) {
  return compile_chat_template(source, {});
}

std::shared_ptr<const ChatTemplate> compile_chat_template(std::string_view source, jinja::RenderLimits limits) {
  return std::make_shared<JinjaTemplate>(source, limits);
}

}  // namespace tensorfold
