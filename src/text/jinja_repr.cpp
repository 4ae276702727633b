// str() and repr() as Python writes them. Brackets and numbers take the provenance of the value they belong to.
#include <charconv>
#include <cmath>

#include "text/jinja_runtime.h"
#include "text/jinja_unicode.h"

namespace tensorfold::jinja {

std::string integer_text(Integer integer) {
  if (integer == 0) return "0";
  const bool negative = integer < 0;
  std::string digits;
  for (; integer != 0; integer /= 10) {
    const int digit = static_cast<int>(integer % 10);
    digits.insert(digits.begin(), static_cast<char>('0' + (digit < 0 ? -digit : digit)));
  }
  return negative ? "-" + digits : digits;
}

std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number, std::chars_format::scientific).ptr;
  std::string scientific(buffer, end);
  const std::size_t mark = scientific.find('e');
  const int exponent = std::stoi(scientific.substr(mark + 1));
  if (exponent < -4 || exponent >= 16) return scientific;  // both write the exponent with two digits at least
  const bool negative = scientific[0] == '-';
  std::string digits;
  for (char byte : scientific.substr(0, mark)) {
    if (byte >= '0' && byte <= '9') digits += byte;
  }
  std::string text;
  if (exponent < 0) {
    text = "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  } else {
    const std::size_t whole = static_cast<std::size_t>(exponent) + 1;
    if (digits.size() <= whole) digits.append(whole - digits.size() + 1, '0');
    text = digits.substr(0, whole) + "." + digits.substr(whole);
  }
  return negative ? "-" + text : text;
}

namespace {

void append_escaped_code_point(std::string& out, std::uint32_t code) {
  if (code < 0x100) {
    out += fmt::format("\\x{:02x}", code);
  } else if (code < 0x10000) {
    out += fmt::format("\\u{:04x}", code);
  } else {
    out += fmt::format("\\U{:08x}", code);
  }
}

void append_text_repr(Runtime& runtime, Text& out, const Text& text) {
  runtime.charge_bytes(text.size());
  const bool single = text.bytes().find('\'') != std::string::npos;
  const bool both = single && text.bytes().find('"') != std::string::npos;
  const char quote = single && !both ? '"' : '\'';
  const bool frame = text.size() > 0 && text.data_at(0);
  out.append(std::string_view(&quote, 1), frame);
  for (std::size_t offset = 0; offset < text.size();) {
    const std::uint32_t code = code_point_at(text.bytes(), offset);
    std::string piece;
    if (code == static_cast<std::uint32_t>(quote) || code == '\\') {
      piece = {'\\', static_cast<char>(code)};
    } else if (code == '\n') {
      piece = "\\n";
    } else if (code == '\r') {
      piece = "\\r";
    } else if (code == '\t') {
      piece = "\\t";
    } else if (is_printable(code)) {
      append_code_point(piece, code);
    } else {
      append_escaped_code_point(piece, code);
    }
    out.append(piece, text.data_at(offset));
    offset += code_point_length(text.bytes(), offset);
  }
  out.append(std::string_view(&quote, 1), frame);
}

void append_items(Runtime& runtime, Text& out, const Value& value, const char* open, const char* close, int depth) {
  out.append(open, value.data);
  bool first = true;
  for (const Value& item : value.list->items) {
    if (!first) out.append(", ", value.data);
    first = false;
    append_repr(runtime, out, item, depth + 1);
  }
  if (value.kind == Kind::kTuple && value.list->items.size() == 1) out.append(",", value.data);
  out.append(close, value.data);
}

void append_dict(Runtime& runtime, Text& out, const Value& value, int depth) {
  out.append("{", value.data);
  bool first = true;
  for (const DictObject::Entry& entry : value.dict->entries()) {
    if (!first) out.append(", ", value.data);
    first = false;
    append_repr(runtime, out, entry.first, depth + 1);
    out.append(": ", value.data);
    append_repr(runtime, out, entry.second, depth + 1);
  }
  out.append("}", value.data);
}

}  // namespace

void append_repr(Runtime& runtime, Text& out, const Value& value, int depth) {
  runtime.check_depth(depth);
  runtime.charge(2);
  switch (value.kind) {
    case Kind::kUndefined:
      out.append("Undefined", false);
      break;
    case Kind::kNone:
      out.append("None", value.data);
      break;
    case Kind::kBoolean:
      out.append(value.boolean ? "True" : "False", value.data);
      break;
    case Kind::kInteger:
      out.append(integer_text(value.integer), value.data);
      break;
    case Kind::kFloat:
      out.append(float_text(value.number), value.data);
      break;
    case Kind::kText:
      if (value.text->markup) out.append("Markup(", false);
      append_text_repr(runtime, out, *value.text);
      if (value.text->markup) out.append(")", false);
      break;
    case Kind::kList:
      append_items(runtime, out, value, "[", "]", depth);
      break;
    case Kind::kTuple:
      append_items(runtime, out, value, "(", ")", depth);
      break;
    case Kind::kDict:
      append_dict(runtime, out, value, depth);
      break;
    case Kind::kView:
      out.append(value.list->view_name, false);
      append_items(runtime, out, value, "([", "])", depth);
      break;
    case Kind::kRange: {
      const RangeObject& range = *value.range;
      std::string text = fmt::format("range({}, {}", range.start, range.stop);
      if (range.step != 1) text += fmt::format(", {}", range.step);
      out.append(text + ")", value.data);
      break;
    }
    case Kind::kNamespace: {
      out.append("<Namespace {", false);
      bool first = true;
      for (const auto& [name, attribute] : value.name_space->attributes) {
        out.append(fmt::format("{}'{}': ", first ? "" : ", ", name), false);
        first = false;
        append_repr(runtime, out, attribute, depth + 1);
      }
      out.append("}>", false);
      break;
    }
    default:
      runtime.error("a {} has no text form that could be printed", type_name(value));
  }
  runtime.charge_bytes(out.size() > runtime.limits().output_bytes ? out.size() : 0);
}

const Text* to_text(Runtime& runtime, const Value& value) {
  if (value.is_text()) return value.text;
  Text* text = runtime.make_text();
  if (!value.is_undefined()) append_repr(runtime, *text, value);
  return text;
}

}  // namespace tensorfold::jinja
