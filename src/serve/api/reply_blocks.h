// Blocks that every OpenAI-shaped reply carries: usage, the tensorfold and speculative blocks, and token texts with
// their bytes (api.md 3.5).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "serve/generation.h"

namespace tensorfold {

std::int64_t unix_seconds_now();
const char* finish_reason_text(FinishReason reason);
nlohmann::ordered_json usage_block(const Generation& generation);
/// Adds exact_mode, stop_sequence, tensorfold and speculative to `reply`.
void add_runtime_blocks(const Generation& generation, nlohmann::ordered_json& reply);
/// "data: JSON\n\n".
std::string sse_event(const nlohmann::ordered_json& json);
inline constexpr const char* kSseDone = "data: [DONE]\n\n";

/// A token's text; bytes that aren't UTF-8 by themselves are spelled "bytes:\xNN".
std::string token_label(const Tokenizer& tokenizer, std::int32_t token);
/// The exact bytes a token adds, special tokens spelled.
std::string token_exact_bytes(const Tokenizer& tokenizer, std::int32_t token);

}  // namespace tensorfold
