// From a body to the neutral request, for the two OpenAI text routes. Apart from the reply writers, so that the parsing
// of hostile bytes can be fuzzed by itself.
#pragma once

#include <string_view>

#include "serve/generation_request.h"

namespace tensorfold {

/// What parsing needs to know of the model: ids must be inside the vocabulary.
struct ParseContext {
  std::int32_t vocabulary_size = 0;
};

/// POST .../chat/completions. Throws ApiError(400).
GenerationRequest parse_chat_request(std::string_view body, const ParseContext& context);
/// POST .../completions; a body with nonempty `messages` is a chat request. Throws ApiError(400).
GenerationRequest parse_completion_request(std::string_view body, const ParseContext& context);

/// chat_template_kwargs and reasoning_effort, shared with /tokenize.
void parse_template_fields(const nlohmann::ordered_json& body, GenerationRequest& request);

}  // namespace tensorfold
