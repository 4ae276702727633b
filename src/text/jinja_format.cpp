// format_percent and format_braces. Literal text keeps its provenance, and so does every value.
#include "text/jinja_format.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "text/jinja_methods.h"
#include "text/jinja_operators.h"
#include "text/jinja_runtime.h"
#include "text/jinja_unicode.h"

namespace tensorfold::jinja {

namespace {

constexpr int kWidthMax = 10'000;

struct Specification {
  std::uint32_t fill = ' ';
  char align = 0;  // '<', '>', '^', '='
  char sign = '-';
  bool alternate = false;
  bool grouped = false;
  int width = 0;
  int precision = -1;
  char type = 0;
};

int read_number(Runtime& runtime, std::string_view text, std::size_t& offset) {
  int number = 0;
  while (offset < text.size() && is_decimal_ascii(static_cast<unsigned char>(text[offset]))) {
    number = number * 10 + (text[offset++] - '0');
    if (number > kWidthMax) runtime.error("a format's width or precision is beyond {}", kWidthMax);
  }
  return number;
}

std::string group_thousands(std::string digits) {
  for (std::size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, 1, ',');
  return digits;
}

std::string integer_digits(Integer magnitude, int base) {
  if (magnitude == 0) return "0";
  std::string digits;
  for (; magnitude != 0; magnitude /= base) {
    digits.insert(digits.begin(), "0123456789abcdef"[static_cast<int>(magnitude % base)]);
  }
  return digits;
}

/// Digits of |number| for types e, f, g, % and their upper case forms.
std::string float_digits(double magnitude, char type, int precision, bool alternate) {
  if (std::isnan(magnitude)) return "nan";
  if (std::isinf(magnitude)) return "inf";
  if (precision < 0) precision = 6;
  const char lower = type == 'E' || type == 'F' || type == 'G' ? static_cast<char>(type + 32) : type;
  std::string pattern = alternate ? "%#.*" : "%.*";
  pattern += lower == '%' ? 'f' : lower;
  std::string digits(static_cast<std::size_t>(precision) + 400, '\0');
  const double scaled = lower == '%' ? magnitude * 100 : magnitude;
  const int size = std::snprintf(digits.data(), digits.size(), pattern.c_str(), precision, scaled);
  digits.resize(static_cast<std::size_t>(size));
  if (lower == '%') digits += '%';
  return digits;
}

std::string upper_ascii(std::string text) {
  for (char& byte : text) byte = byte >= 'a' && byte <= 'z' ? static_cast<char>(byte - 32) : byte;
  return text;
}

void append_padded(Runtime& runtime, Text& out, const Text& body, const Specification& spec, char default_align,
                   std::size_t sign_bytes, bool data) {
  const std::size_t size = count_code_points(body.bytes());
  const std::size_t width = static_cast<std::size_t>(spec.width);
  const std::size_t missing = width > size ? width - size : 0;
  runtime.charge_bytes(body.size() + missing * 4);
  const char align = spec.align != 0 ? spec.align : default_align;
  const std::size_t before = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  std::string fill;
  append_code_point(fill, spec.fill);
  const auto pad = [&](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) out.append(fill, data);
  };
  if (align == '=') out.append(body, 0, sign_bytes);
  pad(before);
  out.append(body, align == '=' ? sign_bytes : 0, body.size());
  pad(missing - before);
}

void append_number(Runtime& runtime, Text& out, const Value& value, const Specification& spec) {
  const bool integral = value.is_integral();
  const char type = spec.type != 0 ? spec.type : integral ? 'd' : 'r';
  std::string digits;
  std::string prefix;
  bool negative = false;
  const std::string_view integer_types = "dboxXn";
  if (integral && integer_types.find(type) != std::string_view::npos) {
    if (spec.precision >= 0) runtime.error("a precision isn't allowed for an integer");
    const Integer integer = value.as_integer();
    negative = integer < 0;
    const int base = type == 'b' ? 2 : type == 'o' ? 8 : type == 'x' || type == 'X' ? 16 : 10;
    digits = integer_digits(negative ? -integer : integer, base);
    if (type == 'X') digits = upper_ascii(digits);
    if (spec.alternate && base != 10) prefix = std::string("0") + type;
    if (spec.grouped) digits = group_thousands(digits);
  } else if (std::string_view("eEfFgG%r").find(type) != std::string_view::npos) {
    const double number = value.as_double();
    negative = std::signbit(number) && !std::isnan(number);
    if (type == 'r' && spec.precision < 0) {
      digits = float_text(std::fabs(number));
    } else {
      digits = float_digits(std::fabs(number), type == 'r' ? 'g' : type, spec.precision, spec.alternate);
    }
    if (type == 'E' || type == 'F' || type == 'G') digits = upper_ascii(digits);
    if (spec.grouped) {
      const std::size_t whole = digits.find_first_not_of("0123456789");
      digits = group_thousands(digits.substr(0, whole)) + (whole == std::string::npos ? "" : digits.substr(whole));
    }
  } else {
    runtime.error("unknown format code '{}' for '{}'", type, type_name(value));
  }
  const std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  const std::size_t framed = sign.size() + prefix.size();
  append_padded(runtime, out, Text(sign + prefix + digits, value.data), spec, '>', framed, value.data);
}

void append_formatted_text(Runtime& runtime, Text& out, const Text& text, const Specification& spec) {
  Text body;
  const std::size_t end =
      spec.precision < 0 ? text.size() : offset_of_code_point(text.bytes(), static_cast<std::size_t>(spec.precision));
  body.append(text, 0, end);
  append_padded(runtime, out, body, spec, '<', 0, text.any_data());
}

// --- % ---------------------------------------------------------------------------------------------------------------

class PercentFormatter {
 public:
  PercentFormatter(Runtime& runtime, const Text& format, const Value& values)
      : runtime_(runtime), format_(format), values_(values) {}

  Value run() {
    const std::string& bytes = format_.bytes();
    std::size_t plain = 0;
    runtime_.charge_bytes(bytes.size());
    for (std::size_t offset = bytes.find('%'); offset != std::string::npos; offset = bytes.find('%', plain)) {
      out_->append(format_, plain, offset);
      plain = append_conversion(offset + 1);
    }
    out_->append(format_, plain, bytes.size());
    const bool tuple = values_.kind == Kind::kTuple;
    const std::size_t given = tuple ? values_.list->items.size() : 1;
    const bool may_be_unused = values_.is_dict() || values_.kind == Kind::kList;
    if (!may_be_unused && next_ < given && !used_names_) {
      runtime_.error("not all arguments were converted during string formatting");
    }
    return text_value(out_);
  }

 private:
  Value next_value() {
    if (values_.kind == Kind::kTuple) {
      if (next_ >= values_.list->items.size()) runtime_.error("not enough arguments for the format string");
      return values_.list->items[next_++];
    }
    if (next_++ > 0) runtime_.error("not enough arguments for the format string");
    return values_;
  }

  int number_or_star(std::size_t& offset) {
    if (offset >= format_.size() || format_.bytes()[offset] != '*')
      return read_number(runtime_, format_.bytes(), offset);
    ++offset;
    const Value value = next_value();
    if (!value.is_integral()) runtime_.error("* wants an integer");
    if (value.as_integer() > kWidthMax || value.as_integer() < -kWidthMax)
      runtime_.error("a format's width is too big");
    return static_cast<int>(value.as_integer());
  }

  std::size_t append_conversion(std::size_t offset) {
    const std::string& bytes = format_.bytes();
    const auto peek = [&] { return offset < bytes.size() ? bytes[offset] : '\0'; };
    std::optional<Value> named;
    if (peek() == '(') {
      const std::size_t close = bytes.find(')', offset);
      if (close == std::string::npos) runtime_.error("incomplete format key");
      if (!values_.is_dict()) runtime_.error("format requires a mapping");
      const Value* found = values_.dict->find(runtime_, std::string_view(bytes).substr(offset + 1, close - offset - 1));
      if (found == nullptr) runtime_.error("the format names a key that isn't there");
      named = *found;
      used_names_ = true;
      offset = close + 1;
    }
    Specification spec;
    for (bool more = true; more;) {
      switch (peek()) {
        case '-':
          spec.align = '<';
          break;
        case '+':
          spec.sign = '+';
          break;
        case ' ':
          spec.sign = spec.sign == '+' ? '+' : ' ';
          break;
        case '#':
          spec.alternate = true;
          break;
        case '0':
          zero_ = true;
          break;
        default:
          more = false;
          continue;
      }
      ++offset;
    }
    spec.width = number_or_star(offset);
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    if (peek() == '.') spec.precision = std::max(0, number_or_star(++offset));
    while (peek() == 'l' || peek() == 'h' || peek() == 'L') ++offset;
    const char type = peek();
    if (type == '\0') runtime_.error("incomplete format");
    if (type == '%') {
      out_->append(format_, offset, offset + 1);
    } else {
      append_value(named ? *named : next_value(), type, spec);
    }
    zero_ = false;
    return offset + 1;
  }

  void append_value(const Value& value, char type, Specification spec) {
    switch (type) {
      case 's':
      case 'r':
      case 'a': {
        Text repr;
        if (type != 's') append_repr(runtime_, repr, value);
        if (spec.align == 0) spec.align = '>';
        append_formatted_text(runtime_, *out_, type == 's' ? *to_text(runtime_, value) : repr, spec);
        return;
      }
      case 'c': {
        Text body;
        if (value.is_text() && count_code_points(value.bytes()) == 1) {
          body.append(*value.text);
        } else if (value.kind == Kind::kInteger && value.integer >= 0 && value.integer < 0x110000) {
          std::string bytes;
          append_code_point(bytes, static_cast<std::uint32_t>(value.integer));
          body.append(bytes, value.data);
        } else {
          runtime_.error("%c requires an integer or one character");
        }
        if (spec.align == 0) spec.align = '>';
        append_formatted_text(runtime_, *out_, body, spec);
        return;
      }
      default:
        append_percent_number(value, type, spec);
    }
  }

  void append_percent_number(const Value& value, char type, Specification spec) {
    if (!value.is_number()) runtime_.error("%{} needs a number, not {}", type, type_name(value));
    Value number = value;
    if (std::string_view("diuoxX").find(type) != std::string_view::npos) {
      if (value.kind == Kind::kFloat) {
        if (std::string_view("oxX").find(type) != std::string_view::npos) runtime_.error("%{} needs an integer", type);
        if (!(std::fabs(value.number) < 9e18)) runtime_.error("a float is too big for %{}", type);
        number = integer_value(static_cast<std::int64_t>(value.number), value.data);
      }
      if (type == 'i' || type == 'u') type = 'd';
      if (spec.precision >= 0) {  // at least so many digits
        std::string digits =
            integer_digits(number.as_integer() < 0 ? -number.as_integer() : number.as_integer(), type == 'd'   ? 10
                                                                                                 : type == 'o' ? 8
                                                                                                               : 16);
        const std::size_t least = static_cast<std::size_t>(spec.precision);
        if (digits.size() < least) digits.insert(0, least - digits.size(), '0');
        if (type == 'X') digits = upper_ascii(digits);
        if (number.as_integer() < 0) digits.insert(0, 1, '-');
        spec.precision = -1;
        if (spec.align == 0) spec.align = '>';
        return append_formatted_text(runtime_, *out_, Text(digits, number.data), spec);
      }
    } else if (std::string_view("eEfFgG").find(type) == std::string_view::npos) {
      runtime_.error("unsupported format character '{}'", type);
    }
    spec.type = type;
    if (zero_ && spec.align == 0) {
      spec.align = '=';
      spec.fill = '0';
    }
    append_number(runtime_, *out_, number, spec);
  }

  Runtime& runtime_;
  const Text& format_;
  const Value& values_;
  Text* out_ = runtime_.make_text();
  std::size_t next_ = 0;
  bool used_names_ = false;
  bool zero_ = false;
};

// --- {} --------------------------------------------------------------------------------------------------------------

class BraceFormatter {
 public:
  BraceFormatter(Runtime& runtime, const CallArguments& arguments) : runtime_(runtime), arguments_(arguments) {}

  void append(Text& out, const Text& format, int depth) {
    if (depth > 1) runtime_.error("a format specification is nested too deep");
    const std::string& bytes = format.bytes();
    runtime_.charge_bytes(bytes.size());
    for (std::size_t offset = 0; offset < bytes.size();) {
      const char byte = bytes[offset];
      if ((byte == '{' || byte == '}') && offset + 1 < bytes.size() && bytes[offset + 1] == byte) {
        out.append(format, offset, offset + 1);
        offset += 2;
      } else if (byte == '{') {
        offset = append_field(out, format, offset + 1, depth);
      } else if (byte == '}') {
        runtime_.error("single '}}' in a format string");
      } else {
        const std::size_t stop = std::min(bytes.find_first_of("{}", offset), bytes.size());
        out.append(format, offset, stop);
        offset = stop;
      }
    }
  }

 private:
  std::size_t append_field(Text& out, const Text& format, std::size_t offset, int depth) {
    const std::string& bytes = format.bytes();
    std::size_t end = offset;
    for (int open = 1; end < bytes.size(); ++end) {
      if (bytes[end] == '{') ++open;
      if (bytes[end] == '}' && --open == 0) break;
    }
    if (end >= bytes.size()) runtime_.error("expected '}}' before the end of the format string");
    std::size_t name_end = std::min(bytes.find_first_of(":!", offset), end);
    const std::size_t bracket = bytes.find('[', offset);
    if (bracket < name_end)
      name_end = std::min(bytes.find_first_of(":!", std::min(bytes.find(']', bracket), end)), end);
    Value value = field_value(bytes.substr(offset, name_end - offset));
    std::size_t position = name_end;
    if (position < end && bytes[position] == '!') {
      const char conversion = position + 1 < end ? bytes[position + 1] : '\0';
      if (conversion == 'r') {
        Text* repr = runtime_.make_text();
        append_repr(runtime_, *repr, value);
        value = text_value(repr);
      } else if (conversion == 's') {
        value = text_value(to_text(runtime_, value));
      } else {
        runtime_.error("unknown conversion in a format string");
      }
      position += 2;
      if (position < end && bytes[position] != ':') runtime_.error("expected ':' after a conversion");
    }
    Text spec;
    if (position < end) {
      Text raw;
      raw.append(format, position + 1, end);
      append_spec(spec, raw, depth);
    }
    append_value(out, value, spec.bytes());
    return end + 1;
  }

  void append_spec(Text& spec, const Text& raw, int depth) {
    if (raw.bytes().find('{') == std::string::npos) return spec.append(raw);
    append(spec, raw, depth + 1);
  }

  Value field_value(const std::string& field) {
    std::size_t offset = std::min(field.find_first_of(".["), field.size());
    const std::string name = field.substr(0, offset);
    Value value = argument(name);
    while (offset < field.size()) {
      if (field[offset] == '.') {
        const std::size_t end = std::min(field.find_first_of(".[", offset + 1), field.size());
        value = get_attribute(runtime_, value, field.substr(offset + 1, end - offset - 1));
        offset = end;
      } else {
        const std::size_t close = field.find(']', offset);
        if (close == std::string::npos) runtime_.error("missing ']' in a format string");
        const std::string key = field.substr(offset + 1, close - offset - 1);
        const bool numeric = !key.empty() && key.size() < 10 &&
                             std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
        value = get_item(runtime_, value, numeric ? integer_value(std::stol(key)) : runtime_.text(key, false));
        offset = close + 1;
      }
    }
    return value;
  }

  Value argument(const std::string& name) {
    const bool numeric = std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!numeric) {
      for (const auto& [key, value] : arguments_.keywords) {
        if (key == name) return value;
      }
      runtime_.error("the format string names '{}', which wasn't given", name);
    }
    if (name.size() > 9) runtime_.error("too many digits in a format string");
    const std::size_t index = name.empty() ? automatic_++ : static_cast<std::size_t>(std::stol(name));
    if (index >= arguments_.positional.size()) runtime_.error("a replacement index is out of range");
    return arguments_.positional[index];
  }

  Specification parse(const std::string& text) {
    Specification spec;
    std::size_t offset = 0;
    const std::string_view aligns = "<>^=";
    if (!text.empty()) {
      const std::size_t first = code_point_length(text, 0);
      if (first < text.size() && aligns.find(text[first]) != std::string_view::npos) {
        spec.fill = code_point_at(text, 0);
        spec.align = text[first];
        offset = first + 1;
      } else if (aligns.find(text[0]) != std::string_view::npos) {
        spec.align = text[0];
        offset = 1;
      }
    }
    const auto peek = [&] { return offset < text.size() ? text[offset] : '\0'; };
    if (peek() == '+' || peek() == '-' || peek() == ' ') spec.sign = text[offset++];
    if (peek() == '#') spec.alternate = ++offset > 0;
    if (peek() == '0') {
      ++offset;
      if (spec.align == 0) {
        spec.align = '0';  // '=' for numbers, '<' for strings
        spec.fill = '0';
      }
    }
    spec.width = read_number(runtime_, text, offset);
    if (peek() == ',') spec.grouped = ++offset > 0;
    if (peek() == '.') {
      const std::size_t before = ++offset;
      spec.precision = read_number(runtime_, text, offset);
      if (offset == before) runtime_.error("a format specification lacks its precision");
    }
    if (offset < text.size()) spec.type = text[offset++];
    if (offset != text.size()) runtime_.error("invalid format specification '{}'", text);
    return spec;
  }

  void append_value(Text& out, const Value& value, const std::string& spec_text) {
    if (spec_text.empty()) {
      const Text* text = to_text(runtime_, value);
      runtime_.charge_bytes(out.size() + text->size() > runtime_.limits().output_bytes ? out.size() + text->size() : 0);
      out.append(*text);
      return;
    }
    Specification spec = parse(spec_text);
    if (value.is_text()) {
      if (spec.align == '0') spec.align = '<';
      if ((spec.type != 0 && spec.type != 's') || spec.align == '=') runtime_.error("invalid format for a string");
      return append_formatted_text(runtime_, out, *value.text, spec);
    }
    if (spec.align == '0') spec.align = '=';
    if (!value.is_number()) runtime_.error("'{}' takes no format specification", type_name(value));
    if (value.kind == Kind::kBoolean && spec.type == 0)
      return append_formatted_text(runtime_, out, *to_text(runtime_, value), spec);
    append_number(runtime_, out, value, spec);
  }

  Runtime& runtime_;
  const CallArguments& arguments_;
  std::size_t automatic_ = 0;
};

}  // namespace

Value format_percent(Runtime& runtime, const Text& format, const Value& values) {
  return PercentFormatter(runtime, format, values).run();
}

Value format_braces(Runtime& runtime, const Text& format, const CallArguments& arguments) {
  Text* out = runtime.make_text();
  BraceFormatter(runtime, arguments).append(*out, format, 0);
  return text_value(out);
}

}  // namespace tensorfold::jinja
