// Any bytes as a chat template: it compiles or fails with an Error, and so does its render over fixed variables.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "text/chat_template_limits.h"

namespace {

const nlohmann::ordered_json& variables() {
  static const nlohmann::ordered_json kVariables = nlohmann::ordered_json::parse(R"({
    "messages": [
      {"role": "system", "content": "Be terse."},
      {"role": "user", "content": "Grüße <|im_end|> \u65e5\u672c"},
      {"role": "assistant", "content": null, "reasoning_content": "hm",
       "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": [1, 2.5, true]}}}]},
      {"role": "tool", "content": "{\"x\": 1}"}
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
    "add_generation_prompt": true, "enable_thinking": false, "bos_token": "<s>", "eos_token": "</s>",
    "s": "text", "n": 7, "f": 2.5, "l": [3, 1, 2], "d": {"a": 1, "b": [1]}
  })");
  return kVariables;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tensorfold::jinja::RenderLimits limits;
  limits.steps = 50'000;
  limits.output_bytes = 1 << 16;
  try {
    const auto chat_template = tensorfold::compile_chat_template({reinterpret_cast<const char*>(data), size}, limits);
    chat_template->render(variables(), 1'700'000'000);
  } catch (const tensorfold::Error&) {
  }
  return 0;
}
