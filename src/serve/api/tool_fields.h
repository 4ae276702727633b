// The fields of a chat request that speak of tools: which are offered, whether a call is wanted, allowed or required,
// and how many (api.md 3.4, 4.6).
#pragma once

#include <nlohmann/json.hpp>

#include "serve/generation_request.h"

namespace tensorfold {

/// Reads `tools`, `tool_choice` and `parallel_tool_calls`. Throws ApiError(400) that names the field.
void parse_tool_fields(const nlohmann::ordered_json& body, GenerationRequest& request);
/// For routes without a chat template: a body that offers tools is refused.
void refuse_tool_fields(const nlohmann::ordered_json& body);

}  // namespace tensorfold
