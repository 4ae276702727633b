// See chat_prompt.h.
#include "serve/chat_prompt.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>

#include "base/limits.h"
#include "serve/api_error.h"
#include "text/messages.h"

namespace tensorfold {
namespace {

constexpr std::string_view kThinkOpen = "<think>";
constexpr std::size_t kSystemTokensMin = 64;  // a shorter beginning is computed in no time
constexpr const char* kProbeText = "~";       // few messages begin with it; one that does moves a mark by a token

std::int64_t unix_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool ends_in_open_thought(const std::vector<PromptSegment>& segments) {
  std::string end;
  for (auto segment = segments.rbegin(); segment != segments.rend() && end.size() < 64; ++segment) {
    if (!segment->control) break;  // text of a message never opens a block
    end = segment->text + end;
  }
  const std::size_t last = end.find_last_not_of(" \t\r\n");
  if (last == std::string::npos) return false;
  end.resize(last + 1);
  return end.size() >= kThinkOpen.size() &&
         end.compare(end.size() - kThinkOpen.size(), kThinkOpen.size(), kThinkOpen) == 0;
}

/// The end of what the template writes before the first message that isn't the system's: where a prompt with another
/// message there would part from this one. 0: nothing worth naming.
std::int32_t system_end(const ServedModel& model, const ChatPrompt& chat, const std::vector<std::int32_t>& tokens) {
  if (tokens.size() < kSystemTokensMin) return 0;
  ChatPrompt probe = chat;
  const auto first = std::find_if(chat.messages.begin(), chat.messages.end(), [](const ChatMessage& message) {
    return message.role != "system" && message.role != "developer";
  });
  probe.messages.assign(chat.messages.begin(), first);
  ChatMessage other;
  other.role = "user";
  other.content = kProbeText;
  probe.messages.push_back(std::move(other));
  std::vector<std::int32_t> probed;
  try {
    probed = model.tokenizer->encode_segments(model.prompts->render(probe));
  } catch (const Error&) {
    return 0;  // a template that refuses the probe: the prompt has fewer marks, and that is all
  }
  const std::size_t most = std::min(probed.size(), tokens.size());
  const auto common =
      std::mismatch(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(most), probed.begin()).first -
      tokens.begin();
  return common >= static_cast<std::ptrdiff_t>(kSystemTokensMin) ? static_cast<std::int32_t>(common) : 0;
}

/// Ends of messages are the template's end tokens (text of a message never yields one).
std::vector<PromptMark> find_marks(const ServedModel& model, const ChatPrompt& chat,
                                   const std::vector<std::int32_t>& tokens) {
  std::vector<PromptMark> marks;
  const std::int32_t system = system_end(model, chat, tokens);
  const auto add_system = [&] {
    if (system > 0 && (marks.empty() || marks.back().position < system))
      marks.push_back({system, PromptMarkKind::kSystemEnd});
  };
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    if (!std::binary_search(model.stop_tokens.begin(), model.stop_tokens.end(), tokens[i])) continue;
    const auto position = static_cast<std::int32_t>(i + 1);
    if (position >= system) add_system();
    if (position != system) marks.push_back({position, PromptMarkKind::kMessageEnd});
  }
  add_system();
  if (marks.size() > limits::kPromptMarksMax) marks.erase(marks.begin(), marks.end() - limits::kPromptMarksMax);
  return marks;
}

}  // namespace

bool is_effort_name(const std::string& name) {
  static constexpr std::array<std::string_view, 7> kNames = {"none", "minimal", "low", "medium",
                                                             "high", "xhigh",   "max"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

PromptTokens render_chat_prompt(const ServedModel& model, const GenerationRequest& request, bool add_generation_prompt,
                                std::size_t tokens_max) {
  if (model.prompts == nullptr) {
    throw ApiError(400, "invalid_request_error",
                   "this checkpoint has no chat template: use /v1/completions, or start with --chat-template FILE");
  }
  const TemplateFacts& facts = model.prompts->facts();
  ChatPrompt chat;
  chat.add_generation_prompt = add_generation_prompt;
  chat.template_kwargs = request.template_kwargs;
  chat.tools = request.tools;
  if (!request.tools.is_null() && !facts.supports_tools) {
    throw field_error("tools", "this model's chat template has no place for tools; leave the field out");
  }
  chat.reasoning_effort = request.reasoning_effort ? request.reasoning_effort : model.effort_default;
  chat.thinking = facts.has_thinking_switch &&
                  resolve_thinking(request.template_kwargs, request.reasoning_effort, model.thinking_default);
  chat.now_unix_seconds = unix_now();
  PromptTokens prompt;
  std::vector<PromptSegment> segments;
  try {
    chat.messages = parse_messages(request.messages);
    segments = model.prompts->render(chat);
    prompt.tokens = model.tokenizer->encode_segments(segments, tokens_max);
  } catch (const TooManyTokens&) {
    throw;
  } catch (const Error& error) {
    // A limit that these messages meet is met again on every retry: 400, not the 503 of a busy server.
    if (error.code() != ErrorCode::kInvalidArgument && error.code() != ErrorCode::kResourceExhausted) throw;
    throw ApiError(400, "invalid_request_error", error.what()).with_param("messages");
  }
  prompt.marks = find_marks(model, chat, prompt.tokens);
  prompt.inside_thought = add_generation_prompt && ends_in_open_thought(segments);
  prompt.thinking = chat.thinking || prompt.inside_thought;
  if (chat.reasoning_effort && *chat.reasoning_effort != "none" && prompt.thinking) {
    prompt.effort = coerce_effort(*chat.reasoning_effort, facts.effort_levels);
  }
  if (prompt.tokens.empty()) throw field_error("messages", "the chat template renders an empty prompt");
  return prompt;
}

}  // namespace tensorfold
