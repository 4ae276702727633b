// Template source to tokens, with the whitespace rules that transformers sets (trim_blocks, lstrip_blocks) and the `-`
// and
// `+` marks already applied, so that the parser sees only text that prints.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tensorfold::jinja {

enum class TokenType : unsigned char {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenType type = TokenType::kEnd;
  std::string text;  // names, operators, numbers as written; strings and data decoded
  int line = 1;
};

/// Throws Error(kInvalidCheckpoint) with the line of what isn't a token.
std::vector<Token> tokenize_template(std::string_view source);

}  // namespace tensorfold::jinja
