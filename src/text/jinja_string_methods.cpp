// Python's string methods over Text: each keeps the provenance of every byte it passes on.
#include <algorithm>
#include <functional>
#include <unordered_map>

#include "text/jinja_arguments.h"
#include "text/jinja_format.h"
#include "text/jinja_methods.h"
#include "text/jinja_operators.h"
#include "text/jinja_runtime.h"
#include "text/jinja_unicode.h"

namespace tensorfold::jinja {
namespace {

using Append = void (*)(std::string&, std::uint32_t);

/// Maps each code point by the function that `choose` picks for its byte offset.
template <typename Choose>
Value map_code_points(Runtime& runtime, const Text& text, Choose choose) {
  runtime.charge_bytes(text.size());
  Text* out = runtime.make_text();
  std::string piece;
  for (std::size_t offset = 0; offset < text.size();) {
    piece.clear();
    const std::uint32_t code = code_point_at(text.bytes(), offset);
    choose(offset, code)(piece, code);
    out->append(piece, text.data_at(offset));
    offset += code_point_length(text.bytes(), offset);
  }
  out->markup = text.markup;
  return text_value(out);
}

/// Case_Ignorable enough for the final sigma rule: marks and apostrophes don't occur in roles and names.
bool cased_before(const std::string& bytes, std::size_t offset) {
  while (offset > 0) {
    --offset;
    if ((static_cast<unsigned char>(bytes[offset]) & 0xc0u) != 0x80u) return is_cased(code_point_at(bytes, offset));
  }
  return false;
}

void append_final_sigma(std::string& out, std::uint32_t) {
  append_code_point(out, 0x3c2);
}

Append lower_rule(const std::string& bytes, std::size_t offset, std::uint32_t code) {
  if (code != 0x3a3) return append_lower;
  const std::size_t next = offset + 2;
  const bool cased_after = next < bytes.size() && is_cased(code_point_at(bytes, next));
  return cased_before(bytes, offset) && !cased_after ? append_final_sigma : append_lower;
}

void append_swapped(std::string& out, std::uint32_t code) {
  std::string lower;
  append_lower(lower, code);
  std::string same;
  append_code_point(same, code);
  lower != same ? void(out += lower) : append_upper(out, code);
}

Value title_text(Runtime& runtime, const Text& text) {
  bool inside = false;
  return map_code_points(runtime, text, [&](std::size_t offset, std::uint32_t code) -> Append {
    const bool begins = !inside;
    inside = is_cased(code);
    return begins ? append_title : lower_rule(text.bytes(), offset, code);
  });
}

std::vector<Value> split_whitespace(Runtime& runtime, const Text& text, Integer limit) {
  std::vector<Value> parts;
  const std::string& bytes = text.bytes();
  std::size_t offset = 0;
  const auto skip_spaces = [&] {
    while (offset < bytes.size() && is_space(code_point_at(bytes, offset))) offset += code_point_length(bytes, offset);
  };
  for (skip_spaces(); offset < bytes.size(); skip_spaces()) {
    const std::size_t begin = offset;
    if (limit >= 0 && static_cast<Integer>(parts.size()) >= limit) {
      parts.push_back(runtime.part(text, begin, stripped_range(bytes, nullptr, false, true).end));
      break;
    }
    while (offset < bytes.size() && !is_space(code_point_at(bytes, offset))) offset += code_point_length(bytes, offset);
    parts.push_back(runtime.part(text, begin, offset));
  }
  return parts;
}

std::vector<Value> right_split_whitespace(Runtime& runtime, const Text& text, Integer limit) {
  std::vector<Value> words = split_whitespace(runtime, text, -1);
  if (limit < 0 || static_cast<Integer>(words.size()) <= limit) return words;
  const std::string& bytes = text.bytes();
  std::size_t end = stripped_range(bytes, nullptr, false, true).end;
  std::vector<Value> parts;
  for (Integer i = 0; i < limit; ++i) {
    const Value& word = words[words.size() - 1 - static_cast<std::size_t>(i)];
    parts.push_back(word);
    end -= word.text->size();
    end = stripped_range(std::string_view(bytes).substr(0, end), nullptr, false, true).end;
  }
  parts.push_back(runtime.part(text, stripped_range(bytes, nullptr, true, false).begin, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<Value> split_separator(Runtime& runtime, const Text& text, const std::string& separator, Integer limit) {
  std::vector<Value> parts;
  std::size_t begin = 0;
  while (limit < 0 || static_cast<Integer>(parts.size()) < limit) {
    const std::size_t found = text.bytes().find(separator, begin);
    if (found == std::string::npos) break;
    parts.push_back(runtime.part(text, begin, found));
    begin = found + separator.size();
  }
  parts.push_back(runtime.part(text, begin, text.size()));
  return parts;
}

std::vector<Value> right_split_separator(Runtime& runtime, const Text& text, const std::string& separator,
                                         Integer limit) {
  std::vector<Value> parts;
  std::size_t end = text.size();
  while ((limit < 0 || static_cast<Integer>(parts.size()) < limit) && end >= separator.size()) {
    const std::size_t found = text.bytes().rfind(separator, end - separator.size());
    if (found == std::string::npos) break;
    parts.push_back(runtime.part(text, found + separator.size(), end));
    end = found;
  }
  parts.push_back(runtime.part(text, 0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Value split(Runtime& runtime, const Text& text, const CallArguments& arguments, bool from_right) {
  const BoundArguments bound(runtime, "split()", arguments, {"sep", "maxsplit"});
  const Integer limit = bound.integer(1, -1);
  runtime.charge_bytes(text.size());
  if (bound.given(0) == nullptr) {
    return runtime.list(from_right ? right_split_whitespace(runtime, text, limit)
                                   : split_whitespace(runtime, text, limit));
  }
  const std::string& separator = bound.text(0).bytes();
  if (separator.empty()) runtime.error("empty separator");
  return runtime.list(from_right ? right_split_separator(runtime, text, separator, limit)
                                 : split_separator(runtime, text, separator, limit));
}

Value strip(Runtime& runtime, const Text& text, const CallArguments& arguments, bool left, bool right) {
  const BoundArguments bound(runtime, "strip()", arguments, {"chars"});
  return strip_text(runtime, text, bound.given(0) != nullptr ? &bound.text(0) : nullptr, left, right);
}

/// Byte range of the optional start and end arguments, which count code points.
ByteRange argument_range(const Text& text, const BoundArguments& bound, std::size_t first, bool& empty_range) {
  const Integer size = static_cast<Integer>(count_code_points(text.bytes()));
  const auto position = [&](std::size_t index, Integer fallback) {
    const Integer raw = bound.given(index) != nullptr ? bound.integer(index, 0) : fallback;
    return std::max<Integer>(raw < 0 ? raw + size : raw, 0);
  };
  const Integer begin = position(first, 0);
  const Integer end = std::min(position(first + 1, size), size);
  empty_range = begin > end;
  if (empty_range) return {text.size(), text.size()};
  return {offset_of_code_point(text.bytes(), static_cast<std::size_t>(begin)),
          offset_of_code_point(text.bytes(), static_cast<std::size_t>(end))};
}

Value starts_or_ends(Runtime& runtime, const Text& text, const CallArguments& arguments, bool at_start) {
  const BoundArguments bound(runtime, at_start ? "startswith()" : "endswith()", arguments, {"prefix", "start", "end"},
                             1);
  bool empty_range = false;
  const ByteRange range = argument_range(text, bound, 1, empty_range);
  const std::string_view part = std::string_view(text.bytes()).substr(range.begin, range.end - range.begin);
  const auto matches = [&](const Value& affix) {
    if (!affix.is_text()) runtime.error("startswith() and endswith() need strings, not {}", type_name(affix));
    runtime.charge_bytes(affix.text->size());
    if (empty_range) return false;
    return at_start ? part.starts_with(affix.bytes()) : part.ends_with(affix.bytes());
  };
  const Value& affix = bound.value(0);
  if (affix.kind != Kind::kTuple) return boolean_value(matches(affix));
  return boolean_value(std::any_of(affix.list->items.begin(), affix.list->items.end(), matches));
}

/// Code point index of the first (last) match, or -1.
Integer find_in(Runtime& runtime, const Text& text, const CallArguments& arguments, bool last) {
  const BoundArguments bound(runtime, "find()", arguments, {"sub", "start", "end"}, 1);
  runtime.charge_bytes(text.size());
  bool empty_range = false;
  const ByteRange range = argument_range(text, bound, 1, empty_range);
  if (empty_range) return -1;
  const std::string_view part = std::string_view(text.bytes()).substr(0, range.end);
  const std::string& needle = bound.text(0).bytes();
  const std::size_t found = last ? part.rfind(needle) : part.find(needle, range.begin);
  if (found == std::string_view::npos || found < range.begin) return -1;
  return static_cast<Integer>(count_code_points(part.substr(0, found)));
}

Value index_in(Runtime& runtime, const Text& text, const CallArguments& arguments, bool last) {
  const Integer found = find_in(runtime, text, arguments, last);
  if (found < 0) runtime.error("substring not found");
  return integer_value(found);
}

Value count_in(Runtime& runtime, const Text& text, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "count()", arguments, {"sub", "start", "end"}, 1);
  runtime.charge_bytes(text.size());
  bool empty_range = false;
  const ByteRange range = argument_range(text, bound, 1, empty_range);
  const std::string_view part = std::string_view(text.bytes()).substr(range.begin, range.end - range.begin);
  const std::string& needle = bound.text(0).bytes();
  if (empty_range) return integer_value(0);
  if (needle.empty()) return integer_value(static_cast<Integer>(count_code_points(part)) + 1);
  Integer count = 0;
  for (std::size_t at = part.find(needle); at != std::string_view::npos; at = part.find(needle, at + needle.size())) {
    ++count;
  }
  return integer_value(count);
}

/// str.isX(): every code point has the property and there is one at least.
template <typename Predicate>
Value all_code_points(Runtime& runtime, const Text& text, const CallArguments& arguments, Predicate predicate) {
  const BoundArguments bound(runtime, "is...()", arguments, {});
  runtime.charge_bytes(text.size());
  for (std::size_t offset = 0; offset < text.size(); offset += code_point_length(text.bytes(), offset)) {
    if (!predicate(code_point_at(text.bytes(), offset))) return boolean_value(false);
  }
  return boolean_value(text.size() > 0);
}

bool is_decimal(std::uint32_t code) {
  return is_decimal_ascii(code) || (code >= 0x80 && is_alphanumeric(code) && !is_alphabetic(code));
}

Value has_case(Runtime& runtime, const Text& text, const CallArguments& arguments, bool upper) {
  const BoundArguments bound(runtime, upper ? "isupper()" : "islower()", arguments, {});
  const Value mapped = upper ? upper_text(runtime, text) : lower_text(runtime, text);
  const Value other = upper ? lower_text(runtime, text) : upper_text(runtime, text);
  return boolean_value(mapped.bytes() == text.bytes() && other.bytes() != text.bytes());
}

Value pad(Runtime& runtime, const Text& text, const CallArguments& arguments, int before_parts, const char* callee) {
  const BoundArguments bound(runtime, callee, arguments, {"width", "fillchar"}, 1);
  const Text fill = bound.has(1) ? bound.text(1) : Text(" ", false);
  if (count_code_points(fill.bytes()) != 1) runtime.error("{}: the fill must be one character", callee);
  const Integer size = static_cast<Integer>(count_code_points(text.bytes()));
  const Integer width = bound.integer(0, 0);
  const Integer missing = std::max<Integer>(width - size, 0);
  if (missing > static_cast<Integer>(runtime.limits().output_bytes)) {
    runtime.charge_bytes(runtime.limits().output_bytes + 1);
  }
  runtime.charge_bytes(text.size() + static_cast<std::size_t>(missing) * fill.size());
  // str.center() gives the odd column to the left only when the width is odd, too.
  const Integer before = before_parts == 0 ? 0 : before_parts == 2 ? missing : missing / 2 + (missing & width & 1);
  Text* out = runtime.make_text();
  for (Integer i = 0; i < before; ++i) out->append(fill);
  out->append(text);
  for (Integer i = before; i < missing; ++i) out->append(fill);
  return text_value(out);
}

Value zero_fill(Runtime& runtime, const Text& text, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "zfill()", arguments, {"width"}, 1);
  const bool sign = text.size() > 0 && (text.bytes()[0] == '-' || text.bytes()[0] == '+');
  const Integer missing = bound.integer(0, 0) - static_cast<Integer>(count_code_points(text.bytes()));
  if (missing > static_cast<Integer>(runtime.limits().output_bytes)) {
    runtime.charge_bytes(runtime.limits().output_bytes + 1);
  }
  Text* out = runtime.make_text();
  if (sign) out->append(text, 0, 1);
  if (missing > 0) {
    runtime.charge_bytes(static_cast<std::size_t>(missing));
    out->append(std::string(static_cast<std::size_t>(missing), '0'), false);
  }
  runtime.charge_bytes(text.size());
  out->append(text, sign ? 1 : 0, text.size());
  return text_value(out);
}

Value partition(Runtime& runtime, const Text& text, const CallArguments& arguments, bool last) {
  const BoundArguments bound(runtime, "partition()", arguments, {"sep"}, 1);
  const std::string& separator = bound.text(0).bytes();
  if (separator.empty()) runtime.error("empty separator");
  runtime.charge_bytes(text.size());
  const std::size_t found = last ? text.bytes().rfind(separator) : text.bytes().find(separator);
  if (found == std::string::npos) {
    const Value whole = runtime.part(text, 0, text.size());
    const Value none = runtime.text("", false);
    return runtime.list(last ? std::vector<Value>{none, none, whole} : std::vector<Value>{whole, none, none},
                        Kind::kTuple);
  }
  const std::size_t after = found + separator.size();
  return runtime.list(
      {runtime.part(text, 0, found), runtime.part(text, found, after), runtime.part(text, after, text.size())},
      Kind::kTuple);
}

Value remove_affix(Runtime& runtime, const Text& text, const CallArguments& arguments, bool prefix) {
  const BoundArguments bound(runtime, prefix ? "removeprefix()" : "removesuffix()", arguments, {"affix"}, 1);
  const std::string& affix = bound.text(0).bytes();
  const std::string_view bytes = text.bytes();
  const bool matches = prefix ? bytes.starts_with(affix) : bytes.ends_with(affix);
  const std::size_t cut = matches ? affix.size() : 0;
  return prefix ? runtime.part(text, cut, text.size()) : runtime.part(text, 0, text.size() - cut);
}

Value join(Runtime& runtime, const Text& text, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "join()", arguments, {"iterable"}, 1);
  std::vector<Value> items = iterate(runtime, bound.value(0));
  for (Value& item : items) {
    if (!item.is_text()) runtime.error("join() needs strings, not {}", type_name(item));
    if (text.markup) item = text_value(escape_markup(runtime, item));
  }
  Value joined = join_texts(runtime, text, items);
  const_cast<Text*>(joined.text)->markup = text.markup;  // made just now, by us
  return joined;
}

Value replace(Runtime& runtime, const Text& text, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "replace()", arguments, {"old", "new", "count"}, 2);
  return replace_text(runtime, text, bound.text(0), bound.text(1), bound.integer(2, -1));
}

Value expand_tabs(Runtime& runtime, const Text& text, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "expandtabs()", arguments, {"tabsize"});
  const Integer size = std::clamp<Integer>(bound.integer(0, 8), 0, 1000);
  Text* out = runtime.make_text();
  Integer column = 0;
  for (std::size_t offset = 0; offset < text.size();) {
    const std::size_t length = code_point_length(text.bytes(), offset);
    const char byte = text.bytes()[offset];
    if (byte == '\t') {
      const Integer count = size == 0 ? 0 : size - column % size;
      runtime.charge_bytes(out->size() + static_cast<std::size_t>(count) > runtime.limits().output_bytes
                               ? out->size() + 1000
                               : static_cast<std::size_t>(count));
      out->append(std::string(static_cast<std::size_t>(count), ' '), text.data_at(offset));
      column += count;
    } else {
      out->append(text, offset, offset + length);
      column = byte == '\n' || byte == '\r' ? 0 : column + 1;
    }
    offset += length;
  }
  runtime.charge_bytes(out->size());
  return text_value(out);
}

Value no_arguments(Runtime& runtime, const Text& text, const CallArguments& arguments,
                   Value (*operation)(Runtime&, const Text&)) {
  const BoundArguments bound(runtime, "the method", arguments, {});
  return operation(runtime, text);
}

Value swap_case(Runtime& runtime, const Text& text) {
  return map_code_points(runtime, text, [](std::size_t, std::uint32_t) -> Append { return append_swapped; });
}

}  // namespace

Value strip_text(Runtime& runtime, const Text& text, const Text* characters, bool left, bool right) {
  runtime.charge_bytes(text.size());
  const std::string_view set = characters != nullptr ? std::string_view(characters->bytes()) : std::string_view();
  if (set.size() > 16) runtime.charge(text.size() / 16 * (set.size() / 16));
  const ByteRange range = stripped_range(text.bytes(), characters != nullptr ? &set : nullptr, left, right);
  return runtime.part(text, range.begin, range.end);
}

Value upper_text(Runtime& runtime, const Text& text) {
  return map_code_points(runtime, text, [](std::size_t, std::uint32_t) -> Append { return append_upper; });
}

Value lower_text(Runtime& runtime, const Text& text) {
  return map_code_points(runtime, text, [&](std::size_t offset, std::uint32_t code) -> Append {
    return lower_rule(text.bytes(), offset, code);
  });
}

Value capitalize_text(Runtime& runtime, const Text& text) {
  return map_code_points(runtime, text, [&](std::size_t offset, std::uint32_t code) -> Append {
    return offset == 0 ? append_title : lower_rule(text.bytes(), offset, code);
  });
}

Value replace_text(Runtime& runtime, const Text& text, const Text& before, const Text& after, Integer count) {
  Text* out = runtime.make_text();
  out->markup = text.markup;
  runtime.charge_bytes(text.size());
  std::size_t plain = 0;
  const auto insert = [&](std::size_t until) {
    runtime.charge(1);
    runtime.charge_bytes(out->size() + after.size() > runtime.limits().output_bytes ? out->size() + after.size()
                                                                                    : after.size());
    out->append(text, plain, until);
    out->append(after);
    --count;
  };
  if (before.size() == 0) {
    std::size_t offset = 0;
    while (count != 0) {
      insert(offset);
      plain = offset;
      if (offset >= text.size()) break;
      offset += code_point_length(text.bytes(), offset);
    }
  } else {
    while (count != 0) {
      const std::size_t found = text.bytes().find(before.bytes(), plain);
      if (found == std::string::npos) break;
      insert(found);
      plain = found + before.size();
    }
  }
  out->append(text, plain, text.size());
  runtime.charge_bytes(out->size());
  return text_value(out);
}

std::vector<Value> split_lines(Runtime& runtime, const Text& text, bool keep_ends) {
  std::vector<Value> lines;
  const std::string& bytes = text.bytes();
  std::size_t begin = 0;
  for (std::size_t offset = 0; offset < bytes.size();) {
    const std::uint32_t code = code_point_at(bytes, offset);
    std::size_t next = offset + code_point_length(bytes, offset);
    const bool ends =
        (code >= 10 && code <= 13) || (code >= 28 && code <= 30) || code == 0x85 || code == 0x2028 || code == 0x2029;
    if (ends) {
      if (code == 13 && next < bytes.size() && bytes[next] == '\n') ++next;
      lines.push_back(runtime.part(text, begin, keep_ends ? next : offset));
      begin = next;
    }
    offset = next;
  }
  if (begin < bytes.size()) lines.push_back(runtime.part(text, begin, bytes.size()));
  return lines;
}

TextMethod find_text_method(const std::string& name) {
  using Arguments = const CallArguments&;
  static const std::unordered_map<std::string, TextMethod> kMethods = {
      {"strip", [](Runtime& r, const Text& t, Arguments a) { return strip(r, t, a, true, true); }},
      {"lstrip", [](Runtime& r, const Text& t, Arguments a) { return strip(r, t, a, true, false); }},
      {"rstrip", [](Runtime& r, const Text& t, Arguments a) { return strip(r, t, a, false, true); }},
      {"split", [](Runtime& r, const Text& t, Arguments a) { return split(r, t, a, false); }},
      {"rsplit", [](Runtime& r, const Text& t, Arguments a) { return split(r, t, a, true); }},
      {"splitlines",
       [](Runtime& r, const Text& t, Arguments a) {
         const BoundArguments bound(r, "splitlines()", a, {"keepends"});
         r.charge_bytes(t.size());
         return r.list(split_lines(r, t, bound.truth(0, false)));
       }},
      {"startswith", [](Runtime& r, const Text& t, Arguments a) { return starts_or_ends(r, t, a, true); }},
      {"endswith", [](Runtime& r, const Text& t, Arguments a) { return starts_or_ends(r, t, a, false); }},
      {"find", [](Runtime& r, const Text& t, Arguments a) { return integer_value(find_in(r, t, a, false)); }},
      {"rfind", [](Runtime& r, const Text& t, Arguments a) { return integer_value(find_in(r, t, a, true)); }},
      {"index", [](Runtime& r, const Text& t, Arguments a) { return index_in(r, t, a, false); }},
      {"rindex", [](Runtime& r, const Text& t, Arguments a) { return index_in(r, t, a, true); }},
      {"count", count_in},
      {"replace", replace},
      {"join", join},
      {"format", [](Runtime& r, const Text& t, Arguments a) { return format_braces(r, t, a); }},
      {"upper", [](Runtime& r, const Text& t, Arguments a) { return no_arguments(r, t, a, upper_text); }},
      {"lower", [](Runtime& r, const Text& t, Arguments a) { return no_arguments(r, t, a, lower_text); }},
      {"casefold", [](Runtime& r, const Text& t, Arguments a) { return no_arguments(r, t, a, lower_text); }},
      {"title", [](Runtime& r, const Text& t, Arguments a) { return no_arguments(r, t, a, title_text); }},
      {"capitalize", [](Runtime& r, const Text& t, Arguments a) { return no_arguments(r, t, a, capitalize_text); }},
      {"swapcase", [](Runtime& r, const Text& t, Arguments a) { return no_arguments(r, t, a, swap_case); }},
      {"removeprefix", [](Runtime& r, const Text& t, Arguments a) { return remove_affix(r, t, a, true); }},
      {"removesuffix", [](Runtime& r, const Text& t, Arguments a) { return remove_affix(r, t, a, false); }},
      {"partition", [](Runtime& r, const Text& t, Arguments a) { return partition(r, t, a, false); }},
      {"rpartition", [](Runtime& r, const Text& t, Arguments a) { return partition(r, t, a, true); }},
      {"ljust", [](Runtime& r, const Text& t, Arguments a) { return pad(r, t, a, 0, "ljust()"); }},
      {"rjust", [](Runtime& r, const Text& t, Arguments a) { return pad(r, t, a, 2, "rjust()"); }},
      {"center", [](Runtime& r, const Text& t, Arguments a) { return pad(r, t, a, 1, "center()"); }},
      {"zfill", zero_fill},
      {"expandtabs", expand_tabs},
      {"isdigit", [](Runtime& r, const Text& t, Arguments a) { return all_code_points(r, t, a, is_decimal); }},
      {"isdecimal", [](Runtime& r, const Text& t, Arguments a) { return all_code_points(r, t, a, is_decimal); }},
      {"isnumeric", [](Runtime& r, const Text& t, Arguments a) { return all_code_points(r, t, a, is_decimal); }},
      {"isalpha", [](Runtime& r, const Text& t, Arguments a) { return all_code_points(r, t, a, is_alphabetic); }},
      {"isalnum", [](Runtime& r, const Text& t, Arguments a) { return all_code_points(r, t, a, is_alphanumeric); }},
      {"isspace", [](Runtime& r, const Text& t, Arguments a) { return all_code_points(r, t, a, is_space); }},
      {"isascii",
       [](Runtime& r, const Text& t, Arguments a) {
         return boolean_value(t.size() == 0 ||
                              all_code_points(r, t, a, [](std::uint32_t code) { return code < 0x80; }).boolean);
       }},
      {"isupper", [](Runtime& r, const Text& t, Arguments a) { return has_case(r, t, a, true); }},
      {"islower", [](Runtime& r, const Text& t, Arguments a) { return has_case(r, t, a, false); }},
  };
  const auto found = kMethods.find(name);
  return found == kMethods.end() ? nullptr : found->second;
}

}  // namespace tensorfold::jinja
