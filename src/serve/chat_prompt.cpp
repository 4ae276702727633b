// See chat_prompt.h.
#include "serve/chat_prompt.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>

#include "serve/api_error.h"

namespace tensorfold {
namespace {

using Json = nlohmann::ordered_json;

// High to low: the order in which the nearest level is looked for.
constexpr std::array<std::string_view, 6> kEfforts = {"max", "xhigh", "high", "medium", "low", "minimal"};
constexpr std::string_view kThinkOpen = "<think>";
constexpr std::string_view kThinkClose = "</think>";

ApiError message_error(std::size_t index, const std::string& problem) {
  return ApiError(400, "invalid_request_error", fmt::format("'messages[{}]': {}", index, problem))
      .with_param("messages");
}

std::string joined_parts(const Json& parts, std::size_t index) {
  std::string text;
  for (const Json& part : parts) {
    const bool is_text = part.is_object() && part.contains("type") && part["type"].is_string() &&
                         (part["type"] == "text" || part["type"] == "input_text");
    if (!is_text) throw message_error(index, "only content parts of type 'text' are supported");
    if (!part.contains("text") || !part["text"].is_string())
      throw message_error(index, "a text part needs a string 'text'");
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

std::string content_text(const Json& message, std::size_t index) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) return {};
  if (content->is_string()) return content->get<std::string>();
  if (content->is_array()) return joined_parts(*content, index);
  throw message_error(index, "'content' must be a string, null or a list of parts");
}

/// Tool calls in history: the arguments' JSON text becomes an object for the template.
Json tool_calls(const Json& calls, std::size_t index) {
  if (!calls.is_array()) throw message_error(index, "'tool_calls' must be a list");
  Json result = Json::array();
  for (const Json& call : calls) {
    const bool shaped = call.is_object() && call.contains("function") && call["function"].is_object() &&
                        call["function"].contains("name") && call["function"]["name"].is_string();
    if (!shaped) throw message_error(index, "a tool call needs 'function' with a string 'name'");
    Json copy = call;
    Json& function = copy["function"];
    Json arguments = function.contains("arguments") ? function["arguments"] : Json::object();
    if (arguments.is_string()) {
      const std::string text = arguments.get<std::string>();
      Json parsed = text.empty() ? Json::object() : Json::parse(text, nullptr, false);
      arguments = parsed.is_object() ? std::move(parsed) : Json{{"_invalid_arguments", text}};
    }
    function["arguments"] = std::move(arguments);
    result.push_back(std::move(copy));
  }
  return result;
}

Json normalised_message(const Json& message, std::size_t index) {
  if (!message.is_object()) throw message_error(index, "must be an object");
  const auto role_field = message.find("role");
  if (role_field == message.end() || !role_field->is_string()) throw message_error(index, "'role' must be a string");
  const std::string role = role_field->get<std::string>();
  static constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant", "tool"};
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
    throw message_error(index, fmt::format("unknown role '{}'", role));
  }
  Json result = {{"role", role == "developer" ? "system" : role}, {"content", content_text(message, index)}};
  for (const char* name : {"name", "tool_call_id", "reasoning_content"}) {
    const auto field = message.find(name);
    if (field == message.end() || field->is_null()) continue;
    if (!field->is_string()) throw message_error(index, fmt::format("'{}' must be a string", name));
    result[name] = *field;
  }
  const auto calls = message.find("tool_calls");
  if (calls != message.end() && !calls->is_null()) {
    Json parsed = tool_calls(*calls, index);
    if (!parsed.empty()) result["tool_calls"] = std::move(parsed);
  }
  return result;
}

bool decide_thinking(const ServedModel& model, const GenerationRequest& request) {
  if (!model.template_facts.has_thinking_switch) return false;
  if (request.enable_thinking) return *request.enable_thinking;
  if (request.reasoning_effort) return *request.reasoning_effort != "none";
  return model.thinking_default;
}

std::int64_t unix_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool ends_in_open_thought(const std::vector<PromptSegment>& segments) {
  std::string end;
  for (auto segment = segments.rbegin(); segment != segments.rend() && end.size() < 64; ++segment) {
    if (!segment->control) break;
    end = segment->text + end;
  }
  const std::size_t last = end.find_last_not_of(" \t\r\n");
  if (last == std::string::npos) return false;
  end.resize(last + 1);
  return end.size() >= kThinkOpen.size() &&
         end.compare(end.size() - kThinkOpen.size(), kThinkOpen.size(), kThinkOpen) == 0;
}

std::vector<PromptSegment> try_render(const ChatTemplate& chat_template, Json messages) {
  const Json variables = {{"messages", std::move(messages)}, {"add_generation_prompt", true}};
  try {
    return chat_template.render(variables, 0);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

bool is_effort_name(const std::string& name) {
  return name == "none" || std::find(kEfforts.begin(), kEfforts.end(), name) != kEfforts.end();
}

std::string coerce_effort(const std::string& wanted, const std::vector<std::string>& levels) {
  if (wanted == "none" || wanted == "xhigh") return wanted;
  if (levels.empty()) {
    if (wanted == "high" || wanted == "max") return "xhigh";
    return wanted == "minimal" ? "low" : wanted;
  }
  const auto rank = [](const std::string& name) {
    return static_cast<int>(std::find(kEfforts.begin(), kEfforts.end(), name) - kEfforts.begin());
  };
  const std::string* best = nullptr;
  for (const std::string& level : levels) {  // high to low: the first of two equally near ones is the higher
    if (best == nullptr || std::abs(rank(level) - rank(wanted)) < std::abs(rank(*best) - rank(wanted))) best = &level;
  }
  return *best;
}

Json normalise_messages(const Json& messages, bool keeps_late_system) {
  if (!messages.is_array() || messages.empty()) throw field_error("messages", "must be a nonempty list");
  Json result = Json::array();
  bool leading = true;
  for (std::size_t index = 0; index < messages.size(); ++index) {
    Json message = normalised_message(messages[index], index);
    const bool is_system = message["role"] == "system";
    if (leading && is_system && !result.empty()) {
      result[0]["content"] = result[0]["content"].get<std::string>() + "\n\n" + message["content"].get<std::string>();
      continue;
    }
    if (!is_system) leading = false;
    if (is_system && !leading && !keeps_late_system) message["role"] = "user";
    result.push_back(std::move(message));
  }
  return result;
}

TemplateFacts inspect_template(const ChatTemplate& chat_template) {
  TemplateFacts facts;
  const std::string& source = chat_template.source();
  facts.has_thinking_switch = source.find("enable_thinking") != std::string::npos;
  for (const std::string_view effort : kEfforts) {
    const bool quoted = source.find(fmt::format("'{}'", effort)) != std::string::npos ||
                        source.find(fmt::format("\"{}\"", effort)) != std::string::npos;
    const bool speaks_of_effort = source.find("reasoning_effort") != std::string::npos;
    if (quoted && speaks_of_effort) facts.effort_levels.emplace_back(effort);
  }
  const std::string probe = "late system probe 7351";
  const std::vector<PromptSegment> segments =
      try_render(chat_template, Json::array({{{"role", "user"}, {"content", "a"}},
                                             {{"role", "assistant"}, {"content", "b"}},
                                             {{"role", "system"}, {"content", probe}},
                                             {{"role", "user"}, {"content", "c"}}}));
  std::string text;
  for (const PromptSegment& segment : segments) text += segment.text;
  facts.keeps_late_system = text.find(probe) != std::string::npos;
  return facts;
}

ChatPrompt render_chat_prompt(const ServedModel& model, const GenerationRequest& request, bool add_generation_prompt) {
  if (model.chat_template == nullptr) {
    throw ApiError(400, "invalid_request_error",
                   "this checkpoint has no chat template: use /v1/completions, or start with --chat-template FILE");
  }
  ChatPrompt prompt;
  prompt.thinking = decide_thinking(model, request);
  Json variables = request.template_variables;
  variables["messages"] = normalise_messages(request.messages, model.template_facts.keeps_late_system);
  variables["add_generation_prompt"] = add_generation_prompt;
  for (const char* name : {"bos_token", "eos_token", "pad_token", "unk_token"}) {
    variables[name] = model.tokenizer->special_text(name);
  }
  if (model.template_facts.has_thinking_switch) variables["enable_thinking"] = prompt.thinking;
  const std::optional<std::string>& wanted = request.reasoning_effort ? request.reasoning_effort : model.effort_default;
  const bool can_hear_effort = prompt.thinking || !model.template_facts.has_thinking_switch;
  if (wanted && *wanted != "none" && can_hear_effort) {
    prompt.effort = coerce_effort(*wanted, model.template_facts.effort_levels);
    variables["reasoning_effort"] = *prompt.effort;
  }
  std::vector<PromptSegment> segments;
  try {
    segments = model.chat_template->render(variables, unix_now());
  } catch (const Error& error) {
    throw ApiError(400, "invalid_request_error",
                   fmt::format("the chat template rejects the messages: {}", error.what()))
        .with_param("messages");
  }
  prompt.inside_thought = add_generation_prompt && ends_in_open_thought(segments);
  if (prompt.inside_thought && model.template_facts.has_thinking_switch && !prompt.thinking) {
    segments.push_back({std::string(kThinkClose), true});
    prompt.inside_thought = false;
  }
  prompt.thinking = prompt.thinking || prompt.inside_thought;
  prompt.tokens = model.tokenizer->encode_segments(segments);
  if (prompt.tokens.empty()) throw field_error("messages", "the chat template renders an empty prompt");
  return prompt;
}

}  // namespace tensorfold
