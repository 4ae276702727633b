// Blocks that every OpenAI-shaped reply carries: usage, the tensorfold and speculative blocks, and token texts with
// their bytes (api.md 3.5).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "serve/generation.h"

namespace tensorfold {

std::int64_t unix_seconds_now();
const char* finish_reason_text(const GenerationResult& result);
nlohmann::ordered_json usage_block(const Generation& generation);
/// Adds exact_mode, tensorfold and speculative to `reply`: of one choice, or of all together (rounds and drafts summed,
/// seed and token_sha those of choice 0).
void add_runtime_blocks(const Generation& generation, std::optional<int> choice, nlohmann::ordered_json& reply);
/// Adds to a choice's entry of a whole reply: token_ids when asked for, and with n > 1 its own seed, token_sha and
/// stop_sequence, which otherwise stand at the top.
void add_choice_facts(const Generation& generation, int choice, nlohmann::ordered_json& entry);
/// Adds stop_sequence, where one matched.
void add_stop_sequence(const GenerationResult& result, nlohmann::ordered_json& object);
/// "data: JSON\n\n".
std::string sse_event(const nlohmann::ordered_json& json);
inline constexpr const char* kSseDone = "data: [DONE]\n\n";

/// A token's text; bytes that aren't UTF-8 by themselves are spelled "bytes:\xNN".
std::string token_label(const Tokenizer& tokenizer, std::int32_t token);
/// The exact bytes a token adds, special tokens spelled.
std::string token_exact_bytes(const Tokenizer& tokenizer, std::int32_t token);

}  // namespace tensorfold
