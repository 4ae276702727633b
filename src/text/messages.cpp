// Messages: parsing with field names in every error, normalisation, and the probes behind TemplateFacts.
#include "text/messages.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/limits.h"

namespace tensorfold {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, 6> kEffortOrder = {"max", "xhigh", "high", "medium", "low", "minimal"};
constexpr const char* kOpenThink = "<think>";

[[noreturn]] void fail_field(const std::string& field, const std::string& wanted) {
  fail(ErrorCode::kInvalidArgument, "{}: {}", field, wanted);
}

std::string required_text(const Json& object, const char* key, const std::string& field) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) fail_field(field + "." + key, "must be a string");
  return found->get<std::string>();
}

std::optional<std::string> optional_text(const Json& object, const char* key, const std::string& field) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::nullopt;
  if (!found->is_string()) fail_field(field + "." + key, "must be a string");
  return found->get<std::string>();
}

std::string parse_content(const Json& message, const std::string& field) {
  const auto found = message.find("content");
  if (found == message.end() || found->is_null()) return {};
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) fail_field(field + ".content", "must be a string, null or an array of parts");
  std::string content;
  for (std::size_t i = 0; i < found->size(); ++i) {
    const Json& part = (*found)[i];
    const std::string part_field = fmt::format("{}.content[{}]", field, i);
    if (!part.is_object()) fail_field(part_field, "must be an object");
    const std::string type = required_text(part, "type", part_field);
    if (type != "text") fail_field(part_field + ".type", "only \"text\" parts are supported by this model");
    content += required_text(part, "text", part_field);
  }
  return content;
}

/// Arguments as the template wants them: an object.
Json parse_call_arguments(const Json& function) {
  const auto found = function.find("arguments");
  if (found == function.end() || found->is_null()) return Json::object();
  if (found->is_object()) return *found;
  if (found->is_string()) {
    const std::string& text = found->get_ref<const std::string&>();
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) return Json::object();
    Json parsed = Json::parse(text, nullptr, false);
    if (parsed.is_object()) return parsed;
  }
  return Json{{"_invalid_arguments", *found}};
}

Json parse_tool_calls(const Json& message, const std::string& field) {
  const auto found = message.find("tool_calls");
  if (found == message.end() || found->is_null()) return nullptr;
  if (!found->is_array()) fail_field(field + ".tool_calls", "must be an array");
  if (found->empty()) return nullptr;
  Json calls = Json::array();
  for (std::size_t i = 0; i < found->size(); ++i) {
    const std::string call_field = fmt::format("{}.tool_calls[{}]", field, i);
    Json call = (*found)[i];
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) {
      fail_field(call_field + ".function", "must be an object");
    }
    required_text(call["function"], "name", call_field + ".function");
    optional_text(call, "id", call_field);
    call["function"]["arguments"] = parse_call_arguments(call["function"]);
    if (!call.contains("type")) call["type"] = "function";
    calls.push_back(std::move(call));
  }
  return calls;
}

ChatMessage parse_message(const Json& json, const std::string& field) {
  if (!json.is_object()) fail_field(field, "must be an object");
  ChatMessage message;
  message.role = required_text(json, "role", field);
  for (const char* role : {"system", "developer", "user", "assistant", "tool"}) {
    if (message.role != role) continue;
    message.content = parse_content(json, field);
    message.name = optional_text(json, "name", field);
    if (message.role == "tool") message.tool_call_id = optional_text(json, "tool_call_id", field);
    if (message.role != "assistant") return message;
    message.reasoning_content = optional_text(json, "reasoning_content", field);
    message.tool_calls = parse_tool_calls(json, field);
    return message;
  }
  fail_field(field + ".role", "must be system, developer, user, assistant or tool");
}

bool is_system(const ChatMessage& message) {
  return message.role == "system" || message.role == "developer";
}

/// Leading system and developer messages become one; later ones become the user's when the template would drop them.
std::vector<ChatMessage> normalized(const std::vector<ChatMessage>& messages, bool keeps_late_system) {
  std::vector<ChatMessage> out;
  for (const ChatMessage& message : messages) {
    const bool leading = is_system(message) && out.size() <= 1 && (out.empty() || out[0].role == "system");
    if (leading && !out.empty()) {
      out[0].content += "\n\n" + message.content;
      continue;
    }
    out.push_back(message);
    if (!is_system(message)) continue;
    out.back().role = leading || keeps_late_system ? "system" : "user";
  }
  return out;
}

Json to_json(const std::vector<ChatMessage>& messages) {
  Json list = Json::array();
  for (const ChatMessage& message : messages) {
    Json item = {{"role", message.role}, {"content", message.content}};
    if (message.reasoning_content) item["reasoning_content"] = *message.reasoning_content;
    if (!message.tool_calls.is_null()) item["tool_calls"] = message.tool_calls;
    if (message.tool_call_id) item["tool_call_id"] = *message.tool_call_id;
    if (message.name) item["name"] = *message.name;
    list.push_back(std::move(item));
  }
  return list;
}

std::string joined(const std::vector<PromptSegment>& segments) {
  std::string text;
  for (const PromptSegment& segment : segments) text += segment.text;
  return text;
}

bool ends_in_open_think(const std::string& text) {
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  return end != std::string::npos && std::string_view(text).substr(0, end + 1).ends_with(kOpenThink);
}

/// Thinking is off, but the template opened the block all the same.
void close_think_block(std::vector<PromptSegment>& segments) {
  if (segments.empty() || !segments.back().control) return;
  std::string& text = segments.back().text;
  if (!ends_in_open_think(text)) return;
  text.resize(text.find_last_not_of(" \t\r\n") + 1);
  text += "\n\n</think>\n\n";
}

/// After the last run of tool messages; behind the system message when there is none.
std::vector<ChatMessage> with_placeholder_user(std::vector<ChatMessage> messages) {
  std::size_t position = messages.size();
  while (position > 0 && messages[position - 1].role != "tool") --position;
  if (position == 0) position = !messages.empty() && is_system(messages[0]) ? 1 : 0;
  ChatMessage placeholder;
  placeholder.role = "user";
  placeholder.content = "Continue.";
  messages.insert(messages.begin() + static_cast<std::ptrdiff_t>(position), placeholder);
  return messages;
}

ChatMessage probe_message(const char* role, const char* content) {
  ChatMessage made;
  made.role = role;
  made.content = content;
  return made;
}

std::vector<std::string> quoted_efforts(const std::string& source) {
  std::vector<std::string> levels;
  if (source.find("reasoning_effort") == std::string::npos) return levels;
  for (const char* level : kEffortOrder) {
    const std::string name = level;
    if (source.find("'" + name + "'") != std::string::npos || source.find('"' + name + '"') != std::string::npos) {
      levels.push_back(name);
    }
  }
  // One name alone is the default of a template that prints whatever it is given.
  if (levels.size() == 1) levels = {"high", "medium", "low"};
  return levels;
}

}  // namespace

std::vector<ChatMessage> parse_messages(const Json& messages) {
  if (!messages.is_array() || messages.empty()) fail_field("messages", "must be an array with one message at least");
  std::vector<ChatMessage> parsed;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    parsed.push_back(parse_message(messages[i], fmt::format("messages[{}]", i)));
  }
  return parsed;
}

namespace {

std::string tool_name(const Json& object, const std::string& field) {
  std::string name = required_text(object, "name", field);
  if (name.empty() || name.size() > limits::kToolNameBytesMax) {
    fail_field(field + ".name", fmt::format("must have 1 to {} bytes", limits::kToolNameBytesMax));
  }
  return name;
}

/// "function", or "custom" where the tool is of the form {name, input_schema}.
void check_tool_type(const Json& tool, const std::string& field) {
  const std::string type = optional_text(tool, "type", field).value_or("function");
  if (type == "function" || (type == "custom" && tool.contains("input_schema"))) return;
  fail_field(field + ".type", fmt::format("is \"{}\"; only \"function\" tools are supported",
                                          type.substr(0, limits::kToolNameBytesMax)));
}

/// A function as it was given, checked.
Json checked_function(const Json& tool, const std::string& field) {
  const std::string function_field = field + ".function";
  const Json& function = tool["function"];
  if (!function.is_object()) fail_field(function_field, "must be an object");
  tool_name(function, function_field);
  optional_text(function, "description", function_field);
  const auto parameters = function.find("parameters");
  if (parameters != function.end() && !parameters->is_null() && !parameters->is_object()) {
    fail_field(function_field + ".parameters", "must be an object");
  }
  return tool;
}

}  // namespace

Json parse_tools(const Json& tools) {
  if (tools.is_null()) return nullptr;
  if (!tools.is_array()) fail_field("tools", "must be an array");
  Json parsed = Json::array();
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const std::string field = fmt::format("tools[{}]", i);
    const Json& tool = tools[i];
    if (!tool.is_object()) fail_field(field, "must be an object");
    check_tool_type(tool, field);
    if (tool.contains("function")) {
      parsed.push_back(checked_function(tool, field));
      continue;
    }
    Json function = {{"name", tool_name(tool, field)}};
    if (const auto description = optional_text(tool, "description", field)) function["description"] = *description;
    if (!tool.contains("input_schema") || !tool["input_schema"].is_object()) {
      fail_field(field, "must have `function` or `input_schema`");
    }
    function["parameters"] = tool["input_schema"];
    parsed.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return parsed.empty() ? Json(nullptr) : parsed;
}

bool resolve_thinking(const Json& template_kwargs, const std::optional<std::string>& reasoning_effort,
                      bool server_default) {
  if (template_kwargs.is_object()) {
    const auto enabled = template_kwargs.find("enable_thinking");
    if (enabled != template_kwargs.end() && !enabled->is_null()) {
      if (!enabled->is_boolean()) fail_field("chat_template_kwargs.enable_thinking", "must be true or false");
      return enabled->get<bool>();
    }
    const auto thinking = template_kwargs.find("thinking");
    if (thinking != template_kwargs.end() && !thinking->is_null()) {
      if (thinking->is_boolean()) return thinking->get<bool>();
      const std::string type = thinking->is_object() ? thinking->value("type", "") : "";
      if (type == "enabled" || type == "disabled") return type == "enabled";
      fail_field("chat_template_kwargs.thinking", "must be a boolean or {\"type\": \"enabled\" or \"disabled\"}");
    }
  }
  return reasoning_effort ? *reasoning_effort != "none" : server_default;
}

std::string coerce_effort(const std::string& effort, const std::vector<std::string>& levels) {
  const auto names = [&](const std::string& level) {
    return std::find(levels.begin(), levels.end(), level) != levels.end();
  };
  if (names(effort) || effort == "xhigh" || effort == "none") return effort;
  if (levels.empty()) {
    if (effort == "high" || effort == "max") return "xhigh";
    return effort == "minimal" ? "low" : effort;
  }
  const auto place = std::find(kEffortOrder.begin(), kEffortOrder.end(), effort) - kEffortOrder.begin();
  for (std::ptrdiff_t distance = 1; distance < static_cast<std::ptrdiff_t>(kEffortOrder.size()); ++distance) {
    for (const std::ptrdiff_t candidate : {place - distance, place + distance}) {  // ties go higher
      if (candidate < 0 || candidate >= static_cast<std::ptrdiff_t>(kEffortOrder.size())) continue;
      const char* level = kEffortOrder[static_cast<std::size_t>(candidate)];
      if (names(level)) return level;
    }
  }
  return effort;
}

PromptRenderer::PromptRenderer(std::shared_ptr<const ChatTemplate> chat_template, Json special_tokens)
    : template_(std::move(chat_template)), special_tokens_(std::move(special_tokens)), facts_(detect_facts()) {}

std::vector<PromptSegment> PromptRenderer::render_messages(const ChatPrompt& prompt,
                                                           const std::vector<ChatMessage>& messages) const {
  Json variables = prompt.template_kwargs.is_object() ? prompt.template_kwargs : Json::object();
  variables.erase("reasoning_effort");
  variables["messages"] = to_json(messages);
  if (prompt.tools.is_null()) {
    variables.erase("tools");
  } else {
    variables["tools"] = prompt.tools;
  }
  variables["add_generation_prompt"] = prompt.add_generation_prompt;
  variables["enable_thinking"] = prompt.thinking;
  variables["thinking"] = prompt.thinking;
  if (prompt.thinking && prompt.reasoning_effort && *prompt.reasoning_effort != "none") {
    variables["reasoning_effort"] = coerce_effort(*prompt.reasoning_effort, facts_.effort_levels);
  }
  // The names below are trusted as control text, so a request may not bring its own.
  for (const char* name : {"bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token",
                           "additional_special_tokens"}) {
    variables.erase(name);
  }
  if (special_tokens_.is_object()) variables.update(special_tokens_);
  return template_->render(variables, prompt.now_unix_seconds);
}

std::vector<PromptSegment> PromptRenderer::render(const ChatPrompt& prompt) const {
  const std::vector<ChatMessage> messages = normalized(prompt.messages, facts_.keeps_late_system);
  const bool has_user =
      std::any_of(messages.begin(), messages.end(), [](const ChatMessage& message) { return message.role == "user"; });
  std::vector<PromptSegment> segments;
  try {
    segments = render_messages(prompt, messages);
  } catch (const Error& error) {
    if (has_user || error.code() != ErrorCode::kInvalidArgument) throw;
    segments = render_messages(prompt, with_placeholder_user(messages));
  }
  if (joined(segments).empty()) fail_field("messages", "the chat template renders them to nothing");
  if (!prompt.thinking && prompt.add_generation_prompt) close_think_block(segments);
  return segments;
}

std::optional<std::string> PromptRenderer::try_render(const ChatPrompt& prompt) const {
  try {
    return joined(render_messages(prompt, prompt.messages));
  } catch (const Error&) {
    return std::nullopt;  // a template that refuses a probe simply lacks what was probed
  }
}

ToolCallFormat PromptRenderer::probe_call_format() const {
  const auto turn = [this](std::initializer_list<const char*> names) {
    ChatPrompt prompt;
    prompt.add_generation_prompt = false;
    prompt.messages = {probe_message("user", "probe"), probe_message("assistant", ToolCallProbes::kContent)};
    Json calls = Json::array();
    for (const char* name : names) {
      const Json function = {{"name", name}, {"arguments", {{ToolCallProbes::kKey, ToolCallProbes::kValue}}}};
      calls.push_back({{"type", "function"}, {"id", "call00000"}, {"function", function}});
    }
    if (!calls.empty()) prompt.messages.back().tool_calls = std::move(calls);
    return try_render(prompt);
  };
  return detect_call_format(
      {turn({}), turn({ToolCallProbes::kFirst}), turn({ToolCallProbes::kFirst, ToolCallProbes::kSecond})});
}

TemplateFacts PromptRenderer::detect_facts() const {
  TemplateFacts facts;
  const std::string& source = template_->source();
  facts.effort_levels = quoted_efforts(source);
  ChatPrompt prompt;
  prompt.messages = {probe_message("user", "probe")};
  const std::optional<std::string> plain = try_render(prompt);
  facts.opens_think_block = plain && ends_in_open_think(*plain);
  prompt.thinking = false;
  facts.has_thinking_switch = source.find("enable_thinking") != std::string::npos || try_render(prompt) != plain;
  prompt.thinking = true;
  prompt.tools = Json::parse(R"([{"type": "function", "function": {"name": "probe_tool_name", "description": "probe",
      "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "x"}}}}}])");
  const std::optional<std::string> with_tools = try_render(prompt);
  facts.supports_tools = with_tools && with_tools->find("probe_tool_name") != std::string::npos;
  facts.call_format = probe_call_format();
  prompt.tools = nullptr;
  prompt.messages = {probe_message("user", "probe"), probe_message("assistant", "probe"),
                     probe_message("system", "late_system_probe"), probe_message("user", "probe")};
  const std::optional<std::string> late = try_render(prompt);
  facts.keeps_late_system = late && late->find("late_system_probe") != std::string::npos;
  return facts;
}

}  // namespace tensorfold
