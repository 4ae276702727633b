// Unicode facts the tokenizer needs: UTF-8 in and out, code point classes, case and normal forms. The one place that
// knows utf8proc; everything above it works on valid UTF-8, which to_valid_utf8 guarantees at the boundary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tensorfold::unicode {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

// Bits of a code point's class. Lm and Lo are letters with neither kUpper nor kLower.
enum ClassBit : std::uint8_t {
  kLetter = 1,
  kNumber = 2,
  kSpace = 4,  // the White_Space property
  kPunctuation = 8,
  kSymbol = 16,
  kMark = 32,
  kUpper = 64,   // Lu, Lt
  kLower = 128,  // Ll
};

/// One byte of class bits for every code point; built at first use.
const std::uint8_t* class_table();

struct CodePoint {
  char32_t value;
  std::uint32_t length;  // bytes
};

/// The code point at `p` of valid UTF-8 (p is not the end).
inline CodePoint decode_valid(const char* p) {
  const auto* b = reinterpret_cast<const unsigned char*>(p);
  if (b[0] < 0x80) return {b[0], 1};
  if (b[0] < 0xE0) return {static_cast<char32_t>((b[0] & 0x1F) << 6 | (b[1] & 0x3F)), 2};
  if (b[0] < 0xF0) return {static_cast<char32_t>((b[0] & 0x0F) << 12 | (b[1] & 0x3F) << 6 | (b[2] & 0x3F)), 3};
  return {static_cast<char32_t>((b[0] & 0x07) << 18 | (b[1] & 0x3F) << 12 | (b[2] & 0x3F) << 6 | (b[3] & 0x3F)), 4};
}

inline std::size_t valid_length(char lead) {
  const auto b = static_cast<unsigned char>(lead);
  return b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
}

void append_utf8(std::string& out, char32_t code_point);

bool is_valid_utf8(std::string_view bytes);
/// Invalid bytes become U+FFFD, one for each maximal subpart (as Python's errors="replace" and Rust's lossy
/// conversion).
std::string to_valid_utf8(std::string_view bytes);
/// Bytes at the end that begin a UTF-8 sequence which more bytes could complete (0 to 3).
std::size_t incomplete_suffix_length(std::string_view bytes);

bool is_space(char32_t code_point);
/// A word character as regular expressions see it: Alphabetic, M, Nd, Pc, Join_Control.
bool is_word(char32_t code_point);
bool is_punctuation(char32_t code_point);  // ASCII punctuation and symbols, or P*
bool is_numeric(char32_t code_point);      // Nd, Nl, No
bool is_nonspacing_mark(char32_t code_point);
bool is_mark(char32_t code_point);
void append_lowercase(std::string& out, char32_t code_point);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
/// Normal form of valid UTF-8; O(n log n) also for endless runs of combining marks.
std::string normalize(std::string_view text, NormalForm form);

}  // namespace tensorfold::unicode
