// Patterns of tokenizer.json: a literal string or a regular expression, found in a text from left to right as the
// `tokenizers` package does. Regular expressions run in PCRE2 with a match limit; the few classes whose meaning differs
// from Oniguruma's are rewritten before compiling.
#pragma once

#include <cstddef>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tensorfold {

struct TextRange {
  std::size_t begin = 0, end = 0;
};

class TextPattern {
 public:
  virtual ~TextPattern() = default;
  /// Appends the non-overlapping matches in order; empty ones included, as Oniguruma's iterator yields them.
  virtual void find_all(std::string_view text, std::vector<TextRange>& matches) const = 0;

  static std::unique_ptr<TextPattern> literal(std::string text);
  static std::unique_ptr<TextPattern> regex(const std::string& source);
  /// From {"String": ...} or {"Regex": ...}.
  static std::unique_ptr<TextPattern> from_json(const nlohmann::json& pattern);
};

}  // namespace tensorfold
