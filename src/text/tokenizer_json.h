// Reading tokenizer.json: the vocabulary and the merges, which are most of the file, go straight into flat lists; the
// rest becomes a small document. Also the checked member access that every component's reader uses.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tensorfold {

struct TokenizerDocument {
  std::vector<std::pair<std::string, std::int64_t>> vocabulary;  // model.vocab in file order
  std::vector<std::pair<std::string, std::string>> merges;       // model.merges, either spelling
  nlohmann::json rest;                                           // everything else
};

/// Throws Error(kInvalidCheckpoint) with the place of the error.
TokenizerDocument parse_tokenizer_document(std::string_view text);

/// Members of a JSON object, refused with the owner's name when absent or of another type.
const nlohmann::json& json_member(const nlohmann::json& object, const char* key, std::string_view owner);
std::string json_string(const nlohmann::json& object, const char* key, std::string_view owner);
const nlohmann::json& json_array(const nlohmann::json& object, const char* key, std::string_view owner);
std::int64_t json_integer(const nlohmann::json& object, const char* key, std::string_view owner);
/// `absent` when the member is absent or null.
bool json_bool(const nlohmann::json& object, const char* key, bool absent);
/// The member's string, or "" when it's absent, null or not a string.
std::string json_string_or_empty(const nlohmann::json& object, const char* key);

}  // namespace tensorfold
