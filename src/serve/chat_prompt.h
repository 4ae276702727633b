// From a neutral request to prompt tokens: thinking and effort by precedence (api.md 4.7), the template's rendering,
// the tokenizer. What makes real templates accept real conversations is text/messages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "serve/generation_request.h"
#include "serve/served_model.h"

namespace tensorfold {

struct PromptTokens {
  std::vector<std::int32_t> tokens;
  std::vector<PromptMark> marks;      // where other prompts are likely to leave this one; ascending
  bool thinking = false;
  bool inside_thought = false;        // the prompt ends in an open reasoning block
  std::optional<std::string> effort;  // as the template heard it; none = the template's own
};

/// Throws ApiError(400) naming what is wrong, and TooManyTokens for a prompt that has more than `tokens_max`.
PromptTokens render_chat_prompt(const ServedModel& model, const GenerationRequest& request,
                                bool add_generation_prompt = true, std::size_t tokens_max = Tokenizer::kUnlimited);

bool is_effort_name(const std::string& name);

}  // namespace tensorfold
