// Table lookups and the few UTF-8 walks behind jinja_unicode.h. The tables are generated from Python's.
#include "text/jinja_unicode.h"

#include <algorithm>
#include <iterator>

#include "text/jinja_unicode_tables.h"

namespace tensorfold::jinja {
namespace {

bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0u) == 0x80u;
}

template <std::size_t count>
bool in_ranges(const CodeRange (&ranges)[count], std::uint32_t code) {
  const CodeRange* after =
      std::upper_bound(std::begin(ranges), std::end(ranges), code,
                       [](std::uint32_t value, const CodeRange& range) { return value < range.first; });
  return after != std::begin(ranges) && code <= std::prev(after)->last;
}

template <std::size_t range_count, std::size_t expansion_count>
void append_mapped(std::string& text, std::uint32_t code, const CaseRange (&ranges)[range_count],
                   const CaseExpansion (&expansions)[expansion_count]) {
  for (const CaseExpansion *entry =
           std::lower_bound(std::begin(expansions), std::end(expansions), code,
                            [](const CaseExpansion&item, std::uint32_t value) { return item.code < value; });
       entry != std::end(expansions) && entry->code == code;) {
    for (std::uint32_t target : entry->targets) {
      if (target != 0) append_code_point(text, target);
    }
    return;
  }
  const CaseRange* after =
      std::upper_bound(std::begin(ranges), std::end(ranges), code,
                       [](std::uint32_t value, const CaseRange& range) { return value < range.first; });
  if (after != std::begin(ranges)) {
    const CaseRange& range = *std::prev(after);
    if (code <= range.last && (code - range.first) % range.stride == 0) {
      append_code_point(text, static_cast<std::uint32_t>(static_cast<std::int32_t>(code) + range.delta));
      return;
    }
  }
  append_code_point(text, code);
}

bool contains_code_point(std::string_view characters, std::uint32_t code) {
  for (std::size_t offset = 0; offset < characters.size(); offset += code_point_length(characters, offset)) {
    if (code_point_at(characters, offset) == code) return true;
  }
  return false;
}

}  // namespace

std::size_t code_point_length(std::string_view text, std::size_t offset) {
  const unsigned char lead = static_cast<unsigned char>(text[offset]);
  std::size_t length = 1;
  if (lead >= 0xf0 && lead < 0xf8) {
    length = 4;
  } else if (lead >= 0xe0) {
    length = 3;
  } else if (lead >= 0xc2) {
    length = 2;
  }
  if (lead >= 0xf8 || offset + length > text.size()) return 1;
  for (std::size_t i = 1; i < length; ++i) {
    if (!is_continuation(text[offset + i])) return 1;
  }
  return length;
}

std::uint32_t code_point_at(std::string_view text, std::size_t offset) {
  const std::size_t length = code_point_length(text, offset);
  const unsigned char lead = static_cast<unsigned char>(text[offset]);
  if (length == 1) return lead < 0x80 ? lead : 0xdc00u + lead;  // an invalid byte, as Python's surrogateescape
  std::uint32_t code = lead & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) code = (code << 6) | (static_cast<unsigned char>(text[offset + i]) & 0x3fu);
  return code;
}

void append_code_point(std::string& text, std::uint32_t code) {
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xc0 | (code >> 6));
    text += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code >= 0xdc80 && code < 0xdd00) {
    text += static_cast<char>(code - 0xdc00);  // an invalid byte goes back as it came
  } else if (code < 0x10000) {
    text += static_cast<char>(0xe0 | (code >> 12));
    text += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    text += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    text += static_cast<char>(0xf0 | (code >> 18));
    text += static_cast<char>(0x80 | ((code >> 12) & 0x3f));
    text += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    text += static_cast<char>(0x80 | (code & 0x3f));
  }
}

std::size_t count_code_points(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t offset = 0; offset < text.size(); offset += code_point_length(text, offset)) ++count;
  return count;
}

std::size_t offset_of_code_point(std::string_view text, std::size_t index) {
  std::size_t offset = 0;
  for (; index > 0 && offset < text.size(); --index) offset += code_point_length(text, offset);
  return offset;
}

bool is_valid_utf8(std::string_view text) {
  for (std::size_t offset = 0; offset < text.size();) {
    const std::size_t length = code_point_length(text, offset);
    const std::uint32_t code = code_point_at(text, offset);
    const bool too_long = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
    if (too_long || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
    offset += length;
  }
  return true;
}

bool is_space(std::uint32_t code) {
  if (code < 0x80) return code == ' ' || (code >= 9 && code <= 13) || (code >= 28 && code <= 31);
  return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}
bool is_printable(std::uint32_t code) {
  return !in_ranges(kUnprintableRanges, code);
}
bool is_cased(std::uint32_t code) {
  return in_ranges(kCasedRanges, code);
}
bool is_alphanumeric(std::uint32_t code) {
  return in_ranges(kAlphanumericRanges, code);
}
bool is_alphabetic(std::uint32_t code) {
  return in_ranges(kAlphabeticRanges, code);
}
bool is_decimal_ascii(std::uint32_t code) {
  return code >= '0' && code <= '9';
}

void append_upper(std::string& text, std::uint32_t code) {
  append_mapped(text, code, kUpperRanges, kUpperExpansions);
}
void append_lower(std::string& text, std::uint32_t code) {
  append_mapped(text, code, kLowerRanges, kLowerExpansions);
}
void append_title(std::string& text, std::uint32_t code) {
  append_mapped(text, code, kTitleRanges, kTitleExpansions);
}

ByteRange stripped_range(std::string_view text, const std::string_view* characters, bool left, bool right) {
  const auto removable = [&](std::uint32_t code) {
    return characters == nullptr ? is_space(code) : contains_code_point(*characters, code);
  };
  std::size_t begin = 0;
  while (left && begin < text.size() && removable(code_point_at(text, begin))) begin += code_point_length(text, begin);
  std::size_t end = text.size();
  while (right && end > begin) {
    std::size_t start = end - 1;
    while (start > begin && end - start < 4 && is_continuation(text[start])) --start;
    if (start + code_point_length(text, start) != end) start = end - 1;
    if (!removable(code_point_at(text, start))) break;
    end = start;
  }
  return {begin, end};
}

}  // namespace tensorfold::jinja
