// From messages to prompt tokens: checks roles and content (api.md 4.5), decides thinking and effort (4.7), and renders
// the template. Only the template makes control tokens; message text never does.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "serve/generation_request.h"
#include "serve/served_model.h"

namespace tensorfold {

struct ChatPrompt {
  std::vector<std::int32_t> tokens;
  bool thinking = false;
  bool inside_thought = false;        // the prompt ends in an open think block
  std::optional<std::string> effort;  // coerced; none = the template's own
};

/// Throws ApiError(400) naming what is wrong.
ChatPrompt render_chat_prompt(const ServedModel& model, const GenerationRequest& request,
                              bool add_generation_prompt = true);

/// Roles, contents and parts checked and joined: what the template gets as `messages`. Throws ApiError(400).
nlohmann::ordered_json normalise_messages(const nlohmann::ordered_json& messages, bool keeps_late_system);

/// Reads and probes a template once (thinking switch, effort levels, late system messages).
TemplateFacts inspect_template(const ChatTemplate& chat_template);

/// The nearest level that the template names (api.md 4.7).
std::string coerce_effort(const std::string& wanted, const std::vector<std::string>& levels);
bool is_effort_name(const std::string& name);

}  // namespace tensorfold
