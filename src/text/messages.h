// From a request's messages to the prompt's segments: one neutral list of messages whatever the wire format, the rules
// that make real templates accept real conversations, and what a template can do, found out once at load.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/tool_call_format.h"

namespace tensorfold {

struct ChatMessage {
  std::string role;  // system, developer, user, assistant or tool
  std::string content;
  std::optional<std::string> reasoning_content;
  nlohmann::ordered_json tool_calls;  // array with arguments as objects; null when there are none
  std::optional<std::string> tool_call_id;
  std::optional<std::string> name;
};

/// Checks and reads the `messages` field. Throws Error(kInvalidArgument) that names the field that is wrong.
std::vector<ChatMessage> parse_messages(const nlohmann::ordered_json& messages);
/// Checks the `tools` field; `{name, input_schema}` entries become function tools.
nlohmann::ordered_json parse_tools(const nlohmann::ordered_json& tools);

struct ChatPrompt {
  std::vector<ChatMessage> messages;
  nlohmann::ordered_json tools;  // from parse_tools; null when there are none
  bool add_generation_prompt = true;
  bool thinking = true;
  std::optional<std::string> reasoning_effort;
  nlohmann::ordered_json template_kwargs;  // chat_template_kwargs; null when absent
  std::int64_t now_unix_seconds = 0;
};

struct TemplateFacts {
  bool has_thinking_switch = false;        // reads enable_thinking or thinking
  std::vector<std::string> effort_levels;  // effort names that it quotes, highest first
  bool opens_think_block = false;          // its generation prompt ends inside a think block, thinking on
  bool supports_tools = false;
  ToolCallFormat call_format;      // how it writes the calls of a turn
  bool keeps_late_system = false;  // a system message after the first turns survives
};

/// Thinking on or off, by precedence: kwargs' enable_thinking, kwargs' thinking, the effort, the server's default.
bool resolve_thinking(const nlohmann::ordered_json& template_kwargs, const std::optional<std::string>& reasoning_effort,
                      bool server_default);
/// The level the template hears for a requested effort.
std::string coerce_effort(const std::string& effort, const std::vector<std::string>& levels);

class PromptRenderer {
 public:
  /// `special_tokens`: bos_token, eos_token ... by name, as the template's variables.
  PromptRenderer(std::shared_ptr<const ChatTemplate> chat_template, nlohmann::ordered_json special_tokens);

  /// Throws Error(kInvalidArgument) when the template refuses the conversation or renders nothing.
  std::vector<PromptSegment> render(const ChatPrompt& prompt) const;
  const TemplateFacts& facts() const { return facts_; }

 private:
  std::vector<PromptSegment> render_messages(const ChatPrompt& prompt, const std::vector<ChatMessage>& messages) const;
  std::optional<std::string> try_render(const ChatPrompt& prompt) const;
  TemplateFacts detect_facts() const;
  ToolCallFormat probe_call_format() const;

  std::shared_ptr<const ChatTemplate> template_;
  nlohmann::ordered_json special_tokens_;
  TemplateFacts facts_;
};

}  // namespace tensorfold
