// Filters on single values: strings, numbers, JSON. Filters on sequences are in jinja_sequence_filters.cpp.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <unordered_map>

#include "text/jinja_arguments.h"
#include "text/jinja_builtins.h"
#include "text/jinja_format.h"
#include "text/jinja_json.h"
#include "text/jinja_methods.h"
#include "text/jinja_operators.h"
#include "text/jinja_runtime.h"
#include "text/jinja_unicode.h"

namespace tensorfold::jinja {
namespace {

Value tojson(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonOptions options;
  options.ensure_ascii = bound.truth(0, false);
  options.sort_keys = bound.truth(3, false);
  if (const Value* indent = bound.given(1)) {
    if (indent->is_text()) {
      options.indent = indent->bytes();
    } else {
      const Integer width = bound.integer(1, 0);
      if (width > 1000) runtime.error("tojson: indent is limited to 1000");
      options.indent = std::string(static_cast<std::size_t>(std::max<Integer>(width, 0)), ' ');
    }
    options.item_separator = std::string(1, ',');
  }
  if (const Value* separators = bound.given(2)) {
    const std::vector<Value> parts = iterate(runtime, *separators);
    if (parts.size() != 2 || !parts[0].is_text() || !parts[1].is_text()) {
      runtime.error("tojson: separators must be two strings");
    }
    options.item_separator = parts[0].bytes();
    options.key_separator = parts[1].bytes();
  }
  return to_json(runtime, input, options);
}

Value trim(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "trim", arguments, {"chars"});
  return strip_text(runtime, *to_text(runtime, input), bound.given(0) != nullptr ? &bound.text(0) : nullptr, true,
                    true);
}

Value default_value(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "default", arguments, {"default_value", "boolean"});
  if (!input.is_undefined() && !(bound.truth(1, false) && !is_true(input))) return input;
  return bound.has(0) ? bound.value(0) : runtime.text("", false);
}

Value length(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments none(runtime, "length", arguments, {});
  const std::optional<std::size_t> size = length_of(runtime, input);
  if (!size) runtime.error("a value of type '{}' has no length", type_name(input));
  return integer_value(static_cast<Integer>(*size), input.data || (input.is_text() && input.text->any_data()));
}

template <Value (*operation)(Runtime&, const Text&)>
Value on_text(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments none(runtime, "the filter", arguments, {});
  return operation(runtime, *to_text(runtime, input));
}

/// jinja2's title: a word begins after whitespace or one of -({[<.
Value title(Runtime& runtime, const Text& text) {
  Text* out = runtime.make_text();
  std::size_t begin = 0;
  const auto separates = [&](std::size_t offset) {
    const std::uint32_t code = code_point_at(text.bytes(), offset);
    return is_space(code) || code == '-' || code == '(' || code == '{' || code == '[' || code == '<';
  };
  while (begin < text.size()) {
    std::size_t end = begin;
    const bool separator = separates(begin);
    while (end < text.size() && separates(end) == separator) end += code_point_length(text.bytes(), end);
    const std::size_t first = begin + code_point_length(text.bytes(), begin);
    const Value head = runtime.part(text, begin, first);
    const Value rest = runtime.part(text, first, end);
    out->append(*upper_text(runtime, *head.text).text);
    out->append(*lower_text(runtime, *rest.text).text);
    begin = end;
  }
  return text_value(out);
}

Value string(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments none(runtime, "string", arguments, {});
  return text_value(to_text(runtime, input));
}

Value replace(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "replace", arguments, {"old", "new", "count"}, 2);
  const Integer count = bound.given(2) != nullptr ? bound.integer(2, -1) : -1;
  const Value replaced = replace_text(runtime, *to_text(runtime, input), *to_text(runtime, bound.value(0)),
                                      *to_text(runtime, bound.value(1)), count);
  const_cast<Text*>(replaced.text)->markup = false;  // made just now, by us
  return replaced;
}

// --- numbers ---------------------------------------------------------------------------------------------------------

std::string without_underscores(std::string_view text) {
  std::string digits;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool between = i > 0 && i + 1 < text.size() && is_alphanumeric(static_cast<unsigned char>(text[i - 1])) &&
                         is_alphanumeric(static_cast<unsigned char>(text[i + 1]));
    if (text[i] != '_' || !between) digits += text[i];
  }
  return digits;
}

std::string_view trimmed(std::string_view text) {
  const ByteRange range = stripped_range(text, nullptr, true, true);
  return text.substr(range.begin, range.end - range.begin);
}

/// Python's int(text, base).
std::optional<Integer> parse_integer(Runtime& runtime, std::string_view text, int base) {
  std::string digits = without_underscores(trimmed(text));
  bool negative = false;
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) {
    negative = digits[0] == '-';
    digits.erase(0, 1);
  }
  if (digits.size() > 2 && digits[0] == '0') {
    const char mark = static_cast<char>(digits[1] | 0x20);
    const int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == marked || base == 0)) {
      digits.erase(0, 2);
      base = marked;
    }
  }
  if (digits.empty()) return std::nullopt;
  std::uint64_t magnitude = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), magnitude, base == 0 ? 10 : base);
  if (result.ptr != digits.data() + digits.size()) return std::nullopt;
  if (result.ec != std::errc()) runtime.error("an integer overflows 64 bits");
  return negative ? -static_cast<Integer>(magnitude) : static_cast<Integer>(magnitude);
}

/// Python's float(text).
std::optional<double> parse_float(std::string_view text) {
  std::string digits = without_underscores(trimmed(text));
  std::string lower = digits;
  for (char& byte : lower) byte = byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte + 32) : byte;
  const bool negative = !lower.empty() && lower[0] == '-';
  if (!lower.empty() && (lower[0] == '-' || lower[0] == '+')) lower.erase(0, 1);
  if (lower.empty() || lower[0] == '-' || lower[0] == '+') return std::nullopt;
  double number = 0;
  if (lower == "inf" || lower == "infinity") {
    number = INFINITY;
  } else if (lower == "nan") {
    number = NAN;
  } else {
    if (lower.find_first_not_of("0123456789.e+-") != std::string::npos) return std::nullopt;
    const auto result = std::from_chars(lower.data(), lower.data() + lower.size(), number);
    if (result.ptr != lower.data() + lower.size()) return std::nullopt;
    if (result.ec == std::errc::result_out_of_range) number = std::strtod(lower.c_str(), nullptr);
  }
  return negative ? -number : number;
}

Value to_integer(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "int", arguments, {"default", "base"});
  const Value fallback = bound.has(0) ? bound.value(0) : integer_value(0);
  std::optional<double> number;
  if (input.is_integral()) return integer_value(input.as_integer(), input.data);
  if (input.is_undefined()) runtime.error("'{}' is undefined", input.text != nullptr ? input.bytes() : "a value");
  if (input.kind == Kind::kFloat) number = input.number;
  if (input.is_text()) {
    const Integer base = bound.integer(1, 10);
    if (base != 0 && (base < 2 || base > 36)) return fallback;
    const std::optional<Integer> parsed = parse_integer(runtime, input.bytes(), static_cast<int>(base));
    if (parsed) return integer_value(*parsed, input.text->any_data());
    number = parse_float(input.bytes());
  }
  if (!number || !std::isfinite(*number)) return fallback;
  if (std::fabs(*number) >= 9.2e18) runtime.error("an integer overflows 64 bits");
  return integer_value(static_cast<std::int64_t>(*number), input.data || (input.is_text() && input.text->any_data()));
}

Value to_float(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "float", arguments, {"default"});
  if (input.is_number()) return float_value(input.as_double(), input.data);
  if (input.is_undefined()) runtime.error("'{}' is undefined", input.text != nullptr ? input.bytes() : "a value");
  if (input.is_text()) {
    const std::optional<double> number = parse_float(input.bytes());
    if (number) return float_value(*number, input.text->any_data());
  }
  return bound.has(0) ? bound.value(0) : float_value(0.0);
}

Value absolute(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments none(runtime, "abs", arguments, {});
  if (!input.is_number()) runtime.error("abs needs a number, not {}", type_name(input));
  if (input.kind == Kind::kFloat) return float_value(std::fabs(input.number), input.data);
  return input.as_integer() < 0 ? negate(runtime, input) : integer_value(input.as_integer(), input.data);
}

/// Python's round(): exact decimal half to even, as printf rounds.
double round_common(double number, Integer precision) {
  if (!std::isfinite(number) || precision > 22) return number;
  if (precision >= 0) return std::strtod(fmt::format("{:.{}f}", number, static_cast<int>(precision)).c_str(), nullptr);
  if (precision < -308) return 0.0 * number;
  const double scale = std::pow(10.0, static_cast<double>(-precision));
  return std::nearbyint(number / scale) * scale;
}

Value round(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "round", arguments, {"precision", "method"});
  const Integer precision = bound.integer(0, 0);
  const std::string method = bound.has(1) ? bound.text(1).bytes() : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    runtime.error("round: method must be common, ceil or floor");
  if (!input.is_number()) runtime.error("round needs a number, not {}", type_name(input));
  if (method == "common") {
    if (input.is_integral() && precision >= 0) return integer_value(input.as_integer(), input.data);
    if (input.is_integral()) {
      return integer_value(static_cast<std::int64_t>(round_common(input.as_double(), precision)), input.data);
    }
    return float_value(round_common(input.number, precision), input.data);
  }
  const double scale = std::pow(10.0, static_cast<double>(std::clamp<Integer>(precision, -300, 300)));
  const double scaled = input.as_double() * scale;
  if (!std::isfinite(scaled)) runtime.error("round: the number is too big");
  return float_value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale, input.data);
}

// --- layout ----------------------------------------------------------------------------------------------------------

Value indent(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "indent", arguments, {"width", "first", "blank"});
  if (!input.is_text()) runtime.error("indent needs a string, not {}", type_name(input));
  Text indention;
  if (bound.has(0) && bound.value(0).is_text()) {
    indention.append(bound.text(0));
  } else {
    const Integer width = bound.integer(0, 4);
    if (width > 10'000) runtime.error("indent: the width is limited to 10000");
    indention.append(std::string(static_cast<std::size_t>(std::max<Integer>(width, 0)), ' '), false);
  }
  const bool blank = bound.truth(2, false);
  Text with_newline;
  with_newline.append(*input.text);
  with_newline.append("\n", false);
  const std::vector<Value> lines = split_lines(runtime, with_newline, false);
  Text* out = runtime.make_text();
  if (bound.truth(1, false)) out->append(indention);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Text& line = *lines[i].text;
    runtime.charge_bytes(out->size() + indention.size() > runtime.limits().output_bytes
                             ? out->size() + indention.size()
                             : line.size() + indention.size());
    if (i > 0) {
      out->append("\n", with_newline.data_at(0) && with_newline.any_data());
      if (blank || line.size() > 0) out->append(indention);
    }
    out->append(line);
  }
  out->markup = input.text->markup;
  return text_value(out);
}

Value truncate(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "truncate", arguments, {"length", "killwords", "end", "leeway"});
  if (!input.is_text()) runtime.error("truncate needs a string, not {}", type_name(input));
  const Text& text = *input.text;
  const Text end = bound.has(2) ? bound.text(2) : Text("...", false);
  const Integer limit = bound.integer(0, 255);
  const Integer leeway = bound.given(3) != nullptr ? bound.integer(3, 5) : 5;
  const Integer end_size = static_cast<Integer>(count_code_points(end.bytes()));
  if (limit < end_size || leeway < 0) runtime.error("truncate: the length is too small");
  runtime.charge_bytes(text.size());
  if (static_cast<Integer>(count_code_points(text.bytes())) <= limit + leeway) return input;
  std::size_t cut = offset_of_code_point(text.bytes(), static_cast<std::size_t>(limit - end_size));
  if (!bound.truth(1, false)) {
    const std::size_t space = cut == 0 ? std::string::npos : text.bytes().rfind(' ', cut - 1);
    if (space != std::string::npos) cut = space;
  }
  Text* out = runtime.make_text();
  out->append(text, 0, cut);
  out->append(end);
  return text_value(out);
}

Value center(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "center", arguments, {"width"});
  return find_text_method("center")(runtime, *to_text(runtime, input), {{integer_value(bound.integer(0, 80))}, {}});
}

Value format(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  if (!arguments.positional.empty() && !arguments.keywords.empty()) {
    runtime.error("format takes positional or named arguments, not both");
  }
  Value values = runtime.list(arguments.positional, Kind::kTuple);
  if (!arguments.keywords.empty()) {
    values.kind = Kind::kDict;
    values.dict = runtime.make<DictObject>();
    for (const auto& [name, value] : arguments.keywords) values.dict->set(runtime, runtime.text(name, false), value);
  }
  return format_percent(runtime, *to_text(runtime, input), values);
}

Value word_count(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments none(runtime, "wordcount", arguments, {});
  const Text& text = *to_text(runtime, input);
  runtime.charge_bytes(text.size());
  Integer count = 0;
  bool inside = false;
  for (std::size_t offset = 0; offset < text.size(); offset += code_point_length(text.bytes(), offset)) {
    const std::uint32_t code = code_point_at(text.bytes(), offset);
    const bool word = code == '_' || is_alphanumeric(code);
    count += word && !inside ? 1 : 0;
    inside = word;
  }
  return integer_value(count);
}

Value safe(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments none(runtime, "safe", arguments, {});
  const Text& text = *to_text(runtime, input);
  runtime.charge_bytes(text.size());
  Text* marked = runtime.make<Text>(text);
  marked->markup = true;
  return text_value(marked);
}

Value escape(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments none(runtime, "escape", arguments, {});
  return text_value(escape_markup(runtime, input));
}

Value attribute(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "attr", arguments, {"name"}, 1);
  const std::string& name = to_text(runtime, bound.value(0))->bytes();
  if (input.is_dict()) {  // attr never looks at items
    Value without_items = input;
    without_items.dict = runtime.make<DictObject>();
    const Value found = get_attribute(runtime, without_items, name);
    return found.is_undefined() ? found : get_attribute(runtime, input, name);
  }
  if (input.is_undefined()) return runtime.undefined(name);
  return get_attribute(runtime, input, name);
}

}  // namespace

Filter find_filter(const std::string& name) {
  static const std::unordered_map<std::string, Filter> kFilters = {
      {"tojson", tojson},
      {"trim", trim},
      {"default", default_value},
      {"d", default_value},
      {"length", length},
      {"count", length},
      {"upper", on_text<upper_text>},
      {"lower", on_text<lower_text>},
      {"title", on_text<title>},
      {"capitalize", on_text<capitalize_text>},
      {"string", string},
      {"replace", replace},
      {"int", to_integer},
      {"float", to_float},
      {"abs", absolute},
      {"round", round},
      {"indent", indent},
      {"truncate", truncate},
      {"center", center},
      {"format", format},
      {"wordcount", word_count},
      {"safe", safe},
      {"escape", escape},
      {"e", escape},
      {"attr", attribute},
  };
  const auto found = kFilters.find(name);
  return found == kFilters.end() ? find_sequence_filter(name) : found->second;
}

}  // namespace tensorfold::jinja
