// The lexer: one pass over the source, alternating between text and the inside of tags.
#include "text/jinja_lexer.h"

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "base/limits.h"
#include "text/jinja_unicode.h"

namespace tensorfold::jinja {
namespace {

/// jinja2 reads every line ending as \n and drops one at the end of the source.
std::string normalized(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
      continue;
    }
    text += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

bool is_digit(char byte) {
  return byte >= '0' && byte <= '9';
}
bool is_name_start(char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || byte == '_' ||
         static_cast<unsigned char>(byte) >= 0x80;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalized(source)) {}

  std::vector<Token> run() {
    while (position_ < source_.size()) {
      const std::size_t tag = find_tag();
      if (tag == std::string::npos) {
        add(TokenType::kData, source_.substr(position_));
        advance_to(source_.size());
        break;
      }
      lex_tag(tag);
    }
    add(TokenType::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail_here(const std::string& message) const {
    fail(ErrorCode::kInvalidCheckpoint, "chat template, line {}: {}", line_, message);
  }

  void add(TokenType type, std::string text) { tokens_.push_back({type, std::move(text), line_}); }

  void count_lines(std::string_view text) { line_ += static_cast<int>(std::count(text.begin(), text.end(), '\n')); }

  void advance_to(std::size_t position) {
    count_lines(std::string_view(source_).substr(position_, position - position_));
    if (position > position_) line_starting_ = source_[position - 1] == '\n';
    position_ = position;
  }

  bool at(std::size_t position, std::string_view text) const {
    return std::string_view(source_).substr(std::min(position, source_.size())).starts_with(text);
  }

  std::size_t find_tag() const {
    for (std::size_t i = source_.find('{', position_); i != std::string::npos; i = source_.find('{', i + 1)) {
      if (at(i, "{{") || at(i, "{%") || at(i, "{#")) return i;
    }
    return std::string::npos;
  }

  std::size_t skip_blanks(std::size_t position) const {
    while (position < source_.size() && is_space(code_point_at(source_, position))) {
      position += code_point_length(source_, position);
    }
    return position;
  }

  /// The text before a tag, as the tag's own mark and lstrip_blocks leave it.
  std::string text_before(std::size_t tag, bool variable) const {
    std::string text = source_.substr(position_, tag - position_);
    const char mark = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    if (mark == '-') {
      text.resize(stripped_range(text, nullptr, false, true).end);
    } else if (mark != '+' && !variable) {
      const std::size_t newline = text.rfind('\n');
      const std::size_t line_start = newline == std::string::npos ? 0 : newline + 1;
      const ByteRange rest = stripped_range(std::string_view(text).substr(line_start), nullptr, true, false);
      const bool only_blanks = rest.begin == rest.end;
      if ((line_start > 0 || line_starting_) && only_blanks) text.resize(line_start);
    }
    return text;
  }

  void lex_tag(std::size_t tag) {
    const bool variable = source_[tag + 1] == '{';
    const bool comment = source_[tag + 1] == '#';
    const std::string text = text_before(tag, variable);
    if (!text.empty()) add(TokenType::kData, text);
    advance_to(tag);
    std::size_t inside = tag + 2;
    // `{{-1}}` too: jinja2 takes the mark, not the sign.
    if (inside < source_.size() && (source_[inside] == '-' || source_[inside] == '+')) ++inside;
    if (comment) return lex_comment(inside);
    if (!variable && lex_raw(inside)) return;
    advance_to(inside);
    add(variable ? TokenType::kVariableBegin : TokenType::kBlockBegin, "");
    lex_expression(variable);
  }

  void lex_comment(std::size_t inside) {
    const std::size_t end = source_.find("#}", inside);
    if (end == std::string::npos) fail_here("missing end of comment tag '#}'");
    advance_to(end_of_tag(end, end > inside ? source_[end - 1] : '\0', true));
  }

  /// Where text goes on after a closing tag at `close`; `mark` is the character in front of it.
  std::size_t end_of_tag(std::size_t close, char mark, bool trims) const {
    const std::size_t after = close + 2;
    if (mark == '-') return skip_blanks(after);
    if (mark != '+' && trims && after < source_.size() && source_[after] == '\n') return after + 1;
    return after;
  }

  bool lex_raw(std::size_t inside) {
    std::size_t position = skip_blanks(inside);
    if (!at(position, "raw")) return false;
    position = skip_blanks(position + 3);
    const char mark = position < source_.size() ? source_[position] : '\0';
    if (mark == '-') ++position;
    if (!at(position, "%}")) return false;
    advance_to(end_of_tag(position, mark, false));
    for (std::size_t end = source_.find("{%", position_); end != std::string::npos; end = source_.find("{%", end + 2)) {
      std::size_t word = end + 2;
      if (word < source_.size() && (source_[word] == '-' || source_[word] == '+')) ++word;
      word = skip_blanks(word);
      if (!at(word, "endraw")) continue;
      std::size_t close = skip_blanks(word + 6);
      const char end_mark = close < source_.size() ? source_[close] : '\0';
      if (end_mark == '-' || end_mark == '+') ++close;
      if (!at(close, "%}")) continue;
      const std::string text = text_before(end, false);
      if (!text.empty()) add(TokenType::kData, text);
      advance_to(end_of_tag(close, end_mark, true));
      return true;
    }
    fail_here("missing end of raw block");
  }

  void lex_expression(bool variable) {
    const std::string_view close = variable ? "}}" : "%}";
    std::string open_brackets;
    while (true) {
      advance_to(skip_blanks(position_));
      if (position_ >= source_.size()) fail_here("the template ends inside a tag");
      if (open_brackets.empty()) {
        const char byte = source_[position_];
        const bool marked = (byte == '-' || (byte == '+' && !variable)) && at(position_ + 1, close);
        if (marked || at(position_, close)) {
          const std::size_t at_close = position_ + (marked ? 1 : 0);
          add(variable ? TokenType::kVariableEnd : TokenType::kBlockEnd, "");
          advance_to(end_of_tag(at_close, marked ? byte : '\0', !variable));
          return;
        }
      }
      lex_token(open_brackets);
    }
  }

  void lex_token(std::string& open_brackets) {
    const char byte = source_[position_];
    if (is_name_start(byte)) return lex_name();
    if (is_digit(byte)) return lex_number();
    if (byte == '"' || byte == '\'') return lex_string(byte);
    for (const char* pair : {"//", "**", "==", "!=", ">=", "<="}) {
      if (!at(position_, pair)) continue;
      add(TokenType::kOperator, pair);
      return advance_to(position_ + 2);
    }
    if (std::string_view("+-*/%~[](){}<>=.:|,;").find(byte) == std::string_view::npos) {
      fail_here(fmt::format("unexpected character '{}'", byte));
    }
    if (byte == '(' || byte == '[' || byte == '{') open_brackets += byte;
    if (byte == ')' || byte == ']' || byte == '}') {
      const char opener = byte == ')' ? '(' : byte == ']' ? '[' : '{';
      if (open_brackets.empty() || open_brackets.back() != opener) fail_here(fmt::format("unexpected '{}'", byte));
      open_brackets.pop_back();
    }
    add(TokenType::kOperator, std::string(1, byte));
    advance_to(position_ + 1);
  }

  void lex_name() {
    std::size_t end = position_;
    while (end < source_.size() && (is_name_start(source_[end]) || is_digit(source_[end]))) ++end;
    add(TokenType::kName, source_.substr(position_, end - position_));
    advance_to(end);
  }

  /// Digits with single underscores between them.
  std::size_t skip_digits(std::size_t position, std::string_view digits) const {
    const auto is_one = [&](std::size_t at_position) {
      return at_position < source_.size() && digits.find(source_[at_position]) != std::string_view::npos;
    };
    while (is_one(position) || (position < source_.size() && source_[position] == '_' && is_one(position + 1)))
      ++position;
    return position;
  }

  void lex_number() {
    constexpr std::string_view kDecimal = "0123456789";
    const char mark = position_ + 1 < source_.size() ? static_cast<char>(source_[position_ + 1] | 0x20) : '\0';
    if (source_[position_] == '0' && (mark == 'x' || mark == 'o' || mark == 'b')) {
      const std::string_view digits = mark == 'x'   ? "0123456789abcdefABCDEF"
                                      : mark == 'o' ? std::string_view("01234567")
                                                    : std::string_view("01");
      const std::size_t end = skip_digits(position_ + 2, digits);
      if (end > position_ + 2) return add_number(TokenType::kInteger, end);
    }
    std::size_t end = skip_digits(position_, kDecimal);
    TokenType type = TokenType::kInteger;
    // `a.0.1` is two subscripts, so a number after a dot has no fraction of its own.
    const bool after_dot = position_ > 0 && source_[position_ - 1] == '.';
    if (!after_dot) {
      if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
        end = skip_digits(end + 1, kDecimal);
        type = TokenType::kFloat;
      }
      std::size_t exponent = end;
      if (exponent < source_.size() && (source_[exponent] | 0x20) == 'e') {
        ++exponent;
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
        if (exponent < source_.size() && is_digit(source_[exponent])) {
          end = skip_digits(exponent, kDecimal);
          type = TokenType::kFloat;
        }
      }
    }
    if (type == TokenType::kInteger && source_[position_] == '0') {
      // 07 is two tokens in jinja2, and so an error in every template.
      if (source_.find_first_not_of("0_", position_) < end) fail_here("a number must not begin with zero");
    }
    add_number(type, end);
  }

  void add_number(TokenType type, std::size_t end) {
    std::string text = source_.substr(position_, end - position_);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    add(type, std::move(text));
    advance_to(end);
  }

  void lex_string(char quote) {
    std::string text;
    std::size_t position = position_ + 1;
    while (position < source_.size() && source_[position] != quote) {
      if (source_[position] == '\\' && position + 1 < source_.size()) {
        position = decode_escape(position + 1, text);
      } else {
        text += source_[position++];
      }
    }
    if (position >= source_.size()) fail_here("a string isn't closed");
    add(TokenType::kString, std::move(text));
    advance_to(position + 1);
  }

  /// Python's escapes. Returns the position after the one at `position` (the character behind the backslash).
  std::size_t decode_escape(std::size_t position, std::string& text) {
    const char kind = source_[position];
    constexpr std::string_view kSimple = "abfnrtv\\'\"";
    constexpr std::string_view kMeaning = "\a\b\f\n\r\t\v\\'\"";
    const std::size_t simple = kSimple.find(kind);
    if (simple != std::string_view::npos) {
      text += kMeaning[simple];
      return position + 1;
    }
    if (kind == '\n') return position + 1;
    if (kind >= '0' && kind <= '7') {
      std::uint32_t code = 0;
      std::size_t end = position;
      while (end < source_.size() && end < position + 3 && source_[end] >= '0' && source_[end] <= '7') {
        code = code * 8 + static_cast<std::uint32_t>(source_[end++] - '0');
      }
      append_code_point(text, code);
      return end;
    }
    const std::size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    if (kind == 'N') fail_here("\\N{...} escapes aren't supported");
    if (digits == 0) {
      text += '\\';
      return position;
    }
    return decode_hexadecimal(position + 1, digits, text);
  }

  std::size_t decode_hexadecimal(std::size_t position, std::size_t digits, std::string& text) {
    std::uint32_t code = 0;
    for (std::size_t i = 0; i < digits; ++i, ++position) {
      const char byte = position < source_.size() ? source_[position] : '\0';
      const std::size_t value = std::string_view("0123456789abcdef").find(static_cast<char>(byte | 0x20));
      const bool valid = is_digit(byte) || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'f');
      if (!valid) fail_here("a string has a truncated \\x or \\u escape");
      code = code * 16 + static_cast<std::uint32_t>(is_digit(byte) ? byte - '0' : static_cast<int>(value));
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) fail_here("a string escape isn't a Unicode character");
    append_code_point(text, code);
    return position;
  }

  std::string source_;
  std::size_t position_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize_template(std::string_view source) {
  if (source.size() > limits::kTemplateSourceBytesMax) {
    fail(ErrorCode::kInvalidCheckpoint, "the chat template is longer than {} bytes", limits::kTemplateSourceBytesMax);
  }
  if (!is_valid_utf8(source)) fail(ErrorCode::kInvalidCheckpoint, "the chat template isn't valid UTF-8");
  return Lexer(source).run();
}

}  // namespace tensorfold::jinja
