// See chat_prompt.h.
#include "serve/chat_prompt.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>

#include "serve/api_error.h"
#include "text/messages.h"

namespace tensorfold {
namespace {

constexpr std::string_view kThinkOpen = "<think>";

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

}  // namespace

bool is_effort_name(const std::string& name) {
  static constexpr std::array<std::string_view, 7> kNames = {"none", "minimal", "low", "medium",
                                                             "high", "xhigh",   "max"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

PromptTokens render_chat_prompt(const ServedModel& model, const GenerationRequest& request,
                                bool add_generation_prompt) {
  if (model.prompts == nullptr) {
    throw ApiError(400, "invalid_request_error",
                   "this checkpoint has no chat template: use /v1/completions, or start with --chat-template FILE");
  }
  const TemplateFacts& facts = model.prompts->facts();
  ChatPrompt chat;
  chat.add_generation_prompt = add_generation_prompt;
  chat.template_kwargs = request.template_kwargs;
  chat.reasoning_effort = request.reasoning_effort ? request.reasoning_effort : model.effort_default;
  chat.thinking = facts.has_thinking_switch &&
                  resolve_thinking(request.template_kwargs, request.reasoning_effort, model.thinking_default);
  chat.now_unix_seconds = unix_now();
  PromptTokens prompt;
  std::vector<PromptSegment> segments;
  try {
    chat.messages = parse_messages(request.messages);
    segments = model.prompts->render(chat);
    prompt.tokens = model.tokenizer->encode_segments(segments);
  } catch (const Error& error) {
    // A limit that these messages meet is met again on every retry: 400, not the 503 of a busy server.
    if (error.code() != ErrorCode::kInvalidArgument && error.code() != ErrorCode::kResourceExhausted) throw;
    throw ApiError(400, "invalid_request_error", error.what()).with_param("messages");
  }
  prompt.inside_thought = add_generation_prompt && ends_in_open_thought(segments);
  prompt.thinking = chat.thinking || prompt.inside_thought;
  if (chat.reasoning_effort && *chat.reasoning_effort != "none" && prompt.thinking) {
    prompt.effort = coerce_effort(*chat.reasoning_effort, facts.effort_levels);
  }
  if (prompt.tokens.empty()) throw field_error("messages", "the chat template renders an empty prompt");
  return prompt;
}

}  // namespace tensorfold
