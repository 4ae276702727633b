// The scanners. Each alternative of a pattern is a small function; a scanner tries them in the pattern's order.
#include "text/pretokenizer_scanner.h"

#include <cstdint>

#include "text/unicode.h"

namespace tensorfold {
namespace {

using unicode::kLetter;
using unicode::kLower;
using unicode::kMark;
using unicode::kNumber;
using unicode::kPunctuation;
using unicode::kSpace;
using unicode::kSymbol;
using unicode::kUpper;

struct Character {
  std::uint8_t bits;
  std::uint32_t length;
};

class ClassScanner : public Scanner {
 protected:
  Character at(const char* p) const {
    const auto byte = static_cast<unsigned char>(*p);
    if (byte < 0x80) return {table_[byte], 1};
    const auto [value, length] = unicode::decode_valid(p);
    return {table_[value], length};
  }

  template <typename Accept>
  const char* skip(const char* p, const char* end, Accept accept) const {
    while (p < end) {
      const Character c = at(p);
      if (!accept(c.bits)) break;
      p += c.length;
    }
    return p;
  }
  const char* skip_any(const char* p, const char* end, std::uint8_t bits) const {
    return skip(p, end, [bits](std::uint8_t b) { return (b & bits) != 0; });
  }

  /// \s*[\r\n]+|\s+(?!\S)|\s+  (the first only with `newlines`); `p` when no white space is there.
  const char* spaces(const char* p, const char* end, bool newlines) const {
    const char* last_newline_end = nullptr;
    const char* last_character = p;
    const char* q = p;
    while (q < end) {
      const Character c = at(q);
      if (!(c.bits & kSpace)) break;
      last_character = q;
      if (*q == '\r' || *q == '\n') last_newline_end = q + 1;
      q += c.length;
    }
    if (newlines && last_newline_end != nullptr) return last_newline_end;
    if (q == end || last_character == p) return q;
    return last_character;
  }

  /// 's|'t|'re|'ve|'m|'ll|'d, ignoring case when asked (U+017F is an s then).
  static const char* contraction(const char* p, const char* end, bool ignore_case) {
    if (end - p < 2 || *p != '\'') return p;
    const auto letter = [&](std::ptrdiff_t i) -> char {
      if (p + i >= end) return 0;
      const char c = p[i];
      return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
    };
    switch (letter(1)) {
      case 's':
      case 't':
      case 'm':
      case 'd':
        return p + 2;
      case 'r':
      case 'v':
        return letter(2) == 'e' ? p + 3 : p;
      case 'l':
        return letter(2) == 'l' ? p + 3 : p;
      case '\xC5':
        return ignore_case && letter(2) == '\xBF' ? p + 3 : p;
      default:
        return p;
    }
  }

  const char* numbers(const char* p, const char* end, int count_max) const {
    for (int i = 0; i < count_max && p < end; ++i) {
      const Character c = at(p);
      if (!(c.bits & kNumber)) break;
      p += c.length;
    }
    return p;
  }

  /// [^\r\n<excluded>]?[<letters>]+
  const char* prefixed_letters(const char* p, const char* end, std::uint8_t excluded, std::uint8_t letters) const {
    const Character first = at(p);
    if (!(first.bits & excluded) && *p != '\r' && *p != '\n') {
      const char* rest = p + first.length;
      const char* q = skip_any(rest, end, letters);
      if (q > rest) return q;
    }
    return skip_any(p, end, letters);
  }

  /// " ?[<accepted>]+" with the accepted class as a predicate; `p` when there's none.
  template <typename Accept>
  const char* spaced(const char* p, const char* end, Accept accept) const {
    const char* begin = *p == ' ' ? p + 1 : p;
    const char* q = skip(begin, end, accept);
    return q > begin ? q : p;
  }

  static const char* trailing(const char* p, const char* end, bool slashes) {
    while (p < end && (*p == '\r' || *p == '\n' || (slashes && *p == '/'))) ++p;
    return p;
  }

 private:
  const std::uint8_t* table_ = unicode::class_table();
};

class Gpt2Scanner final : public ClassScanner {
 public:
  const char* match(const char* p, const char* end) const override {
    const char* q = contraction(p, end, false);
    if (q > p) return q;
    const char* begin = *p == ' ' && p + 1 < end ? p + 1 : p;
    const Character first = at(begin);
    if (first.bits & kLetter) return skip_any(begin, end, kLetter);
    if (first.bits & kNumber) return skip_any(begin, end, kNumber);
    if (!(first.bits & kSpace)) {
      return skip(begin, end, [](std::uint8_t b) { return !(b & (kSpace | kLetter | kNumber)); });
    }
    return spaces(p, end, false);
  }
};

// Llama 3, Qwen 2, Qwen 3.5: contractions, words with one leading character, numbers, punctuation, white space.
class WordScanner final : public ClassScanner {
 public:
  WordScanner(int number_length_max, bool marks_are_letters)
      : number_length_max_(number_length_max), letters_(marks_are_letters ? kLetter | kMark : kLetter) {}

  const char* match(const char* p, const char* end) const override {
    const char* q = contraction(p, end, true);
    if (q > p) return q;
    if ((q = prefixed_letters(p, end, kLetter | kNumber, letters_)) > p) return q;
    if ((q = numbers(p, end, number_length_max_)) > p) return q;
    const auto excluded = static_cast<std::uint8_t>(kSpace | kNumber | letters_);
    q = spaced(p, end, [excluded](std::uint8_t b) { return !(b & excluded); });
    if (q > p) return trailing(q, end, false);
    return spaces(p, end, true);
  }

 private:
  int number_length_max_;
  std::uint8_t letters_;
};

// o200k (GPT-4o, gpt-oss) and Tekken: words split by case.
class CaseScanner final : public ClassScanner {
 public:
  CaseScanner(int number_length_max, bool contractions)
      : number_length_max_(number_length_max), contractions_(contractions) {}

  const char* match(const char* p, const char* end) const override {
    const char* q = word(p, end);
    if (q > p) return contractions_ ? contraction(q, end, true) : q;
    if ((q = numbers(p, end, number_length_max_)) > p) return q;
    q = spaced(p, end, [](std::uint8_t b) { return !(b & (kSpace | kLetter | kNumber)); });
    if (q > p) return trailing(q, end, true);
    return spaces(p, end, true);
  }

 private:
  static bool upper_class(std::uint8_t b) { return (b & (kLetter | kMark)) && !(b & kLower); }
  static bool lower_class(std::uint8_t b) { return (b & (kLetter | kMark)) && !(b & kUpper); }

  const char* word(const char* p, const char* end) const {
    const Character first = at(p);
    const bool prefix = !(first.bits & (kLetter | kNumber)) && *p != '\r' && *p != '\n';
    const char* rest = p + first.length;
    const char* q = nullptr;
    if (prefix && (q = mixed(rest, end)) != nullptr) return q;
    if ((q = mixed(p, end)) != nullptr) return q;
    if (prefix && (q = capitals(rest, end)) != nullptr) return q;
    q = capitals(p, end);
    return q != nullptr ? q : p;
  }

  // upper* lower+ : greedy; without a lower letter after the run it gives back to the last character in both classes.
  const char* mixed(const char* p, const char* end) const {
    const char* after_both = nullptr;
    const char* q = p;
    while (q < end) {
      const Character c = at(q);
      if (!upper_class(c.bits)) break;
      q += c.length;
      if (lower_class(c.bits)) after_both = q;
    }
    const char* r = skip(q, end, lower_class);
    return r > q ? r : after_both;
  }

  // upper+ lower*
  const char* capitals(const char* p, const char* end) const {
    const char* q = skip(p, end, upper_class);
    return q > p ? skip(q, end, lower_class) : nullptr;
  }

  int number_length_max_;
  bool contractions_;
};

class NumberScanner final : public ClassScanner {
 public:
  explicit NumberScanner(int length_max) : length_max_(length_max) {}
  const char* match(const char* p, const char* end) const override { return numbers(p, end, length_max_); }

 private:
  int length_max_;
};

class CjkScanner final : public Scanner {
 public:
  const char* match(const char* p, const char* end) const override {
    while (p < end) {
      if (static_cast<unsigned char>(*p) < 0xE3) break;
      const auto [value, length] = unicode::decode_valid(p);
      if (!((value >= 0x4E00 && value <= 0x9FA5) || (value >= 0x3040 && value <= 0x30FF))) break;
      p += length;
    }
    return p;
  }
};

class DeepseekWordScanner final : public ClassScanner {
 public:
  const char* match(const char* p, const char* end) const override {
    if (is_ascii_punctuation(*p)) {
      const char* q = p + 1;
      while (q < end && ((*q >= 'A' && *q <= 'Z') || (*q >= 'a' && *q <= 'z'))) ++q;
      if (q > p + 1) return q;
    }
    const char* q = prefixed_letters(p, end, kLetter | kPunctuation | kSymbol, kLetter | kMark);
    if (q > p) return q;
    q = spaced(p, end, [](std::uint8_t b) { return (b & (kPunctuation | kSymbol)) != 0; });
    if (q > p) return trailing(q, end, false);
    return spaces(p, end, true);
  }

 private:
  static bool is_ascii_punctuation(char c) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
  }
};

}  // namespace

std::unique_ptr<Scanner> make_scanner(std::string_view pattern) {
  if (pattern == patterns::kGpt2) return std::make_unique<Gpt2Scanner>();
  if (pattern == patterns::kLlama3) return std::make_unique<WordScanner>(3, false);
  if (pattern == patterns::kQwen2) return std::make_unique<WordScanner>(1, false);
  if (pattern == patterns::kQwen35) return std::make_unique<WordScanner>(1, true);
  if (pattern == patterns::kO200k) return std::make_unique<CaseScanner>(3, true);
  if (pattern == patterns::kTekken) return std::make_unique<CaseScanner>(1, false);
  if (pattern == patterns::kDeepseekNumbers) return std::make_unique<NumberScanner>(3);
  if (pattern == R"(\p{N})") return std::make_unique<NumberScanner>(1);
  if (pattern == patterns::kDeepseekCjk) return std::make_unique<CjkScanner>();
  if (pattern == patterns::kDeepseekWords) return std::make_unique<DeepseekWordScanner>();
  return nullptr;
}

}  // namespace tensorfold
