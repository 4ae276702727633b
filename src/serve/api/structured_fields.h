// The fields that ask for structured output, from all dialects (api.md 4.8), as one neutral source.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "serve/generation_request.h"

namespace tensorfold {

/// The first field that asks for something, in the order response_format, guided_json, guided_regex, guided_choice,
/// guided_grammar, structured_outputs. Throws ApiError(400) that names the field.
std::optional<RequestedGrammar> parse_structured_fields(const nlohmann::ordered_json& body);

}  // namespace tensorfold
