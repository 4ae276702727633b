// Implementation on utf8proc. Canonical reordering is done here with a stable sort, because the library's own exchange
// sort is quadratic in the length of a run of combining marks, and such runs come from anyone.
#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "text/unicode_normalization_gap.h"

namespace tensorfold::unicode {
namespace {

constexpr std::size_t kCodePointCount = 0x110000;

bool has_white_space_property(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::uint8_t category_bits(utf8proc_category_t category) {
  switch (category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return kLetter | kUpper;
    case UTF8PROC_CATEGORY_LL:
      return kLetter | kLower;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return kLetter;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return kMark;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return kNumber;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return kPunctuation;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
      return kSymbol;
    default:
      return 0;
  }
}

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

// Length of the valid sequence at `position`, or 0 with `bad` set to the bytes of the maximal subpart.
std::size_t sequence_length(std::string_view bytes, std::size_t position, std::size_t& bad) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = at(position);
  bad = 1;
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  unsigned char low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (std::size_t i = 1; i < length; ++i) {
    if (position + i >= bytes.size() || at(position + i) < low || at(position + i) > high) {
      bad = i;
      return 0;
    }
    low = 0x80;
    high = 0xBF;
  }
  return length;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

// Everything below U+0300 is its own NFC, and nothing there composes with a neighbour below U+0300.
bool is_trivially_nfc(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0xCC; });
}

void reorder_marks(std::vector<utf8proc_int32_t>& code_points) {
  const auto combining_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  auto run = code_points.begin();
  while (run != code_points.end()) {
    if (*run < 0x300 || combining_class(*run) == 0) {
      ++run;
      continue;
    }
    const auto run_end =
        std::find_if(run, code_points.end(), [&](utf8proc_int32_t c) { return combining_class(c) == 0; });
    std::stable_sort(run, run_end,
                     [&](utf8proc_int32_t a, utf8proc_int32_t b) { return combining_class(a) < combining_class(b); });
    run = run_end;
  }
}

// A code point that the package's older data doesn't know: a starter that neither composes nor decomposes, so that the
// text before and after it normalizes on its own.
bool is_left_alone(char32_t c) {
  if (c < kNormalizationGap[0].first) return false;
  const auto* after = std::upper_bound(std::begin(kNormalizationGap), std::end(kNormalizationGap), c,
                                       [](char32_t value, const CodePointRange& range) { return value < range.first; });
  return after != std::begin(kNormalizationGap) && c <= (after - 1)->last;
}

void append_decomposed(std::vector<utf8proc_int32_t>& code_points, char32_t value, utf8proc_option_t options) {
  utf8proc_int32_t buffer[32];
  int boundary = 0;
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(value), buffer, 32, options, &boundary);
  if (count > 0 && count <= 32) {
    code_points.insert(code_points.end(), buffer, buffer + count);
  } else {
    code_points.push_back(static_cast<utf8proc_int32_t>(value));
  }
}

}  // namespace

const std::uint8_t* class_table() {
  static const std::vector<std::uint8_t> table = [] {
    std::vector<std::uint8_t> bits(kCodePointCount);
    for (std::size_t c = 0; c < kCodePointCount; ++c) {
      const auto code_point = static_cast<char32_t>(c);
      bits[c] = category_bits(category(code_point)) | (has_white_space_property(code_point) ? kSpace : 0);
    }
    return bits;
  }();
  return table.data();
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xC0 | c >> 6));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | c >> 12));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out.push_back(static_cast<char>(0xF0 | c >> 18));
    out.push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

bool is_valid_utf8(std::string_view bytes) {
  std::size_t bad = 0;
  for (std::size_t i = 0; i < bytes.size();) {
    const std::size_t length = sequence_length(bytes, i, bad);
    if (length == 0) return false;
    i += length;
  }
  return true;
}

std::string to_valid_utf8(std::string_view bytes) {
  if (is_valid_utf8(bytes)) return std::string(bytes);
  std::string out;
  out.reserve(bytes.size());
  for (std::size_t i = 0; i < bytes.size();) {
    std::size_t bad = 0;
    const std::size_t length = sequence_length(bytes, i, bad);
    if (length > 0) {
      out.append(bytes.substr(i, length));
      i += length;
    } else {
      append_utf8(out, kReplacementCharacter);
      i += bad;
    }
  }
  return out;
}

std::size_t incomplete_suffix_length(std::string_view bytes) {
  // A sequence is unfinished when its valid beginning reaches the end of the bytes.
  for (std::size_t back = std::min<std::size_t>(3, bytes.size()); back > 0; --back) {
    const std::size_t position = bytes.size() - back;
    const auto lead = static_cast<unsigned char>(bytes[position]);
    if (lead < 0xC2 || lead > 0xF4) continue;
    std::size_t bad = 0;
    const std::size_t needed = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (sequence_length(bytes, position, bad) == 0 && bad == back && back < needed) return back;
  }
  return 0;
}

bool is_space(char32_t c) {
  return has_white_space_property(c);
}

bool is_word(char32_t c) {
  if (class_table()[c] & (kLetter | kMark)) return true;
  const utf8proc_category_t value = category(c);
  if (value == UTF8PROC_CATEGORY_ND || value == UTF8PROC_CATEGORY_NL || value == UTF8PROC_CATEGORY_PC) return true;
  if (c == 0x200C || c == 0x200D) return true;
  // The symbols with Other_Alphabetic: circled and squared Latin letters.
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return class_table()[c] & (kPunctuation | kSymbol);
  return class_table()[c] & kPunctuation;
}

bool is_numeric(char32_t c) {
  return class_table()[c] & kNumber;
}
bool is_mark(char32_t c) {
  return class_table()[c] & kMark;
}
bool is_nonspacing_mark(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_MN;
}

void append_lowercase(std::string& out, char32_t c) {
  if (c == 0x130) {  // the one code point whose full lower case is two
    append_utf8(out, U'i');
    append_utf8(out, 0x307);
    return;
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

std::string normalize(std::string_view text, NormalForm form) {
  if (is_ascii(text) || (form == NormalForm::kNfc && is_trivially_nfc(text))) return std::string(text);
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (compatible ? UTF8PROC_COMPAT : 0) |
                                                      (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE));
  std::string out;
  out.reserve(text.size());
  std::vector<utf8proc_int32_t> code_points;
  code_points.reserve(text.size());
  const auto flush = [&] {
    reorder_marks(code_points);
    auto size = static_cast<utf8proc_ssize_t>(code_points.size());
    if (compose) size = utf8proc_normalize_utf32(code_points.data(), size, options);
    for (utf8proc_ssize_t i = 0; i < size; ++i) append_utf8(out, static_cast<char32_t>(code_points[i]));
    code_points.clear();
  };
  for (std::size_t i = 0; i < text.size();) {
    const auto [value, length] = decode_valid(text.data() + i);
    i += length;
    if (is_left_alone(value)) {
      flush();
      append_utf8(out, value);
    } else {
      append_decomposed(code_points, value, options);
    }
  }
  flush();
  return out;
}

}  // namespace tensorfold::unicode
