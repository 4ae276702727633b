// Values of a call's parameters that were written as plain text: read as JSON or as a Python literal where the tool
// declares another type than text, and kept as the text they are where that doesn't fit. Brackets that are missing at
// the end are closed; nothing else is ever made up.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "text/tool_offer.h"

namespace tensorfold {

/// The value as its tool declares it; the text itself when it can't be read so.
nlohmann::ordered_json read_tool_value(std::string_view text, ToolValueType type, bool python_literals);

/// JSON within the depth that this server reads; none when it isn't JSON, or holds a number that isn't finite.
std::optional<nlohmann::ordered_json> parse_bounded_json(std::string_view text);
/// The same for a text whose closing brackets may be missing at its end.
std::optional<nlohmann::ordered_json> parse_unclosed_json(std::string_view text);

/// Compact JSON text; bytes that aren't UTF-8 are replaced.
std::string compact_json(const nlohmann::ordered_json& json);
/// Text as it stands inside a JSON string, quotes not included; a piece of a text may end inside a character.
std::string json_escaped(std::string_view text);

/// Where a text stands in JSON's nesting, byte by byte. It doesn't validate.
class JsonNesting {
 public:
  void step(char byte) {
    if (in_string_) {
      if (escaped_) {
        escaped_ = false;
      } else if (byte == '\\') {
        escaped_ = true;
      } else if (byte == '"') {
        in_string_ = false;
      }
      return;
    }
    if (byte == '"') in_string_ = true;
    if (byte == '{') closers_ += '}';
    if (byte == '[') closers_ += ']';
    if (byte == '}' || byte == ']') {
      mismatched_ = mismatched_ || closers_.empty() || closers_.back() != byte;
      if (!closers_.empty()) closers_.pop_back();
    }
  }
  bool in_string() const { return in_string_; }
  bool mismatched() const { return mismatched_; }
  std::size_t depth() const { return closers_.size(); }
  /// What would close it.
  std::string closers() const { return {closers_.rbegin(), closers_.rend()}; }

 private:
  std::string closers_;
  bool in_string_ = false;
  bool escaped_ = false;
  bool mismatched_ = false;
};

}  // namespace tensorfold
