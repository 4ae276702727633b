// See tool_value.h.
#include "text/tool_value.h"

#include <fmt/format.h>

#include <cctype>
#include <cmath>

#include "base/limits.h"

namespace tensorfold {
namespace {

using Json = nlohmann::ordered_json;

bool is_blank(char byte) {
  return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n';
}

bool is_control(char byte) {
  return static_cast<unsigned char>(byte) < 0x20;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

bool fits(const Json& value, ToolValueType type) {
  switch (type) {
    case ToolValueType::kArray:
      return value.is_array();
    case ToolValueType::kObject:
      return value.is_object();
    case ToolValueType::kBoolean:
      return value.is_boolean();
    case ToolValueType::kInteger:
      return value.is_number_integer() ||
             (value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>());
    case ToolValueType::kNumber:
      return value.is_number();
    case ToolValueType::kNull:
      return value.is_null();
    case ToolValueType::kText:
      break;
  }
  return false;
}

/// A Python literal as JSON text: True, False and None, strings in either quotes, tuples as lists, a comma before a
/// closing bracket. None: a word that isn't a value stands outside the strings.
class PythonLiteral {
 public:
  explicit PythonLiteral(std::string_view text) : text_(text) {}

  std::optional<std::string> as_json() {
    while (position_ < text_.size()) {
      if (!take()) return std::nullopt;
    }
    return json_;
  }

 private:
  bool take() {
    const char byte = text_[position_];
    if (byte == '"' || byte == '\'') return take_string(byte);
    if (std::isalpha(static_cast<unsigned char>(byte)) != 0) return take_word();
    if (std::isdigit(static_cast<unsigned char>(byte)) != 0) return take_number();
    ++position_;
    if (byte == '(') {
      json_ += '[';
    } else if (byte == ')' || byte == ']' || byte == '}') {
      drop_comma();
      json_ += byte == '}' ? '}' : ']';
    } else {
      json_ += byte;
    }
    return true;
  }

  void drop_comma() {
    std::size_t end = json_.size();
    while (end > 0 && is_blank(json_[end - 1])) --end;
    if (end > 0 && json_[end - 1] == ',') json_.resize(end - 1);
  }

  bool take_word() {
    const std::size_t begin = position_;
    while (position_ < text_.size() && std::isalnum(static_cast<unsigned char>(text_[position_])) != 0) ++position_;
    const std::string_view word = text_.substr(begin, position_ - begin);
    if (word == "True") {
      json_ += "true";
    } else if (word == "False") {
      json_ += "false";
    } else if (word == "None") {
      json_ += "null";
    } else if (word == "true" || word == "false" || word == "null") {
      json_ += word;
    } else {
      return false;
    }
    return true;
  }

  bool take_number() {
    while (position_ < text_.size()) {
      const char byte = text_[position_];
      const bool sign = (byte == '+' || byte == '-') && (json_.back() == 'e' || json_.back() == 'E');
      if (!sign && byte != '.' && std::isalnum(static_cast<unsigned char>(byte)) == 0) break;
      json_ += byte;
      ++position_;
    }
    return true;
  }

  bool take_string(char quote) {
    json_ += '"';
    for (++position_; position_ < text_.size(); ++position_) {
      const char byte = text_[position_];
      if (byte == quote) {
        json_ += '"';
        ++position_;
        return true;
      }
      if (byte != '\\') {
        const bool plain = !is_control(byte) && byte != '"';
        json_ += plain ? std::string(1, byte) : json_escaped(std::string_view(&byte, 1));
        continue;
      }
      if (++position_ == text_.size()) return false;
      if (!take_escape(text_[position_])) return false;
    }
    return false;
  }

  bool take_escape(char byte) {
    if (byte == '\'') {
      json_ += '\'';
    } else if (byte == 'x') {  // two hexadecimal digits
      if (position_ + 2 >= text_.size()) return false;
      json_ += "\\u00";
      json_ += text_.substr(position_ + 1, 2);
      position_ += 2;
    } else {
      json_ += '\\';
      json_ += byte;
    }
    return true;
  }

  std::string_view text_;
  std::size_t position_ = 0;
  std::string json_;
};

std::optional<Json> parse_within(std::string_view text, bool may_close) {
  JsonNesting nesting;
  std::string closed;
  closed.reserve(text.size());
  for (const char byte : text) {
    nesting.step(byte);
    if (nesting.mismatched() || nesting.depth() > static_cast<std::size_t>(limits::kJsonDepthMax)) return std::nullopt;
    if (nesting.in_string() && is_control(byte)) {
      closed += json_escaped(std::string_view(&byte, 1));  // models write line ends as they are
    } else {
      closed += byte;
    }
  }
  if (nesting.in_string() || (!may_close && nesting.depth() > 0)) return std::nullopt;
  closed += nesting.closers();
  Json parsed = Json::parse(closed, nullptr, false);
  if (parsed.is_discarded()) return std::nullopt;  // numbers past a double's range are an error, too
  return parsed;
}

}  // namespace

std::optional<Json> parse_bounded_json(std::string_view text) {
  return parse_within(text, false);
}

std::optional<Json> parse_unclosed_json(std::string_view text) {
  return parse_within(text, true);
}

Json read_tool_value(std::string_view text, ToolValueType type, bool python_literals) {
  if (type == ToolValueType::kText) return Json(std::string(text));
  const std::string_view inner = trimmed(text);
  const bool may_close = type == ToolValueType::kArray || type == ToolValueType::kObject;
  const auto read = [&](std::string_view json) -> std::optional<Json> {
    std::optional<Json> value = may_close ? parse_unclosed_json(json) : parse_bounded_json(json);
    if (!value || !fits(*value, type)) return std::nullopt;
    if (type == ToolValueType::kInteger && value->is_number_float()) {
      const double number = value->get<double>();
      if (std::fabs(number) < 9007199254740992.0) return Json(static_cast<std::int64_t>(number));
    }
    return value;
  };
  if (auto value = read(inner)) return std::move(*value);
  if (python_literals) {
    if (const auto json = PythonLiteral(inner).as_json()) {
      if (auto value = read(*json)) return std::move(*value);
    }
  }
  return Json(std::string(text));
}

std::string compact_json(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string json_escaped(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (const char byte : text) {
    if (byte == '"' || byte == '\\') {
      escaped += '\\';
      escaped += byte;
    } else if (byte == '\n') {
      escaped += "\\n";
    } else if (byte == '\r') {
      escaped += "\\r";
    } else if (byte == '\t') {
      escaped += "\\t";
    } else if (is_control(byte)) {
      escaped += fmt::format("\\u{:04x}", static_cast<unsigned char>(byte));
    } else {
      escaped += byte;
    }
  }
  return escaped;
}

}  // namespace tensorfold
