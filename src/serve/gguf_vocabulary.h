// A GGUF file's tokenizer as text/ wants it: text/ doesn't know the container, the container doesn't know tokenizers.
// Used where a model is served and where one is converted.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "text/tokenizer.h"

namespace tensorfold {

/// Throws Error(kInvalidCheckpoint) for ids outside any vocabulary.
GgufVocabulary gguf_vocabulary(const Checkpoint& checkpoint);
/// An id under `key`; nullopt where there is none. Throws as above.
std::optional<std::int32_t> gguf_token_id(const nlohmann::json& config, const char* key);
std::string gguf_text(const nlohmann::json& config, const char* key, const char* otherwise);

}  // namespace tensorfold
