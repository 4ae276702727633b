// Implementation with PCRE2 (8 bit, UTF and UCP). Compiled patterns are immutable; every call has its own match data.
#include "text/tokenizer_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/limits.h"
#include "text/unicode.h"

namespace tensorfold {
namespace {

class LiteralPattern final : public TextPattern {
 public:
  explicit LiteralPattern(std::string text) : text_(std::move(text)) {}

  void find_all(std::string_view text, std::vector<TextRange>& matches) const override {
    if (text_.empty()) return;
    for (std::size_t at = text.find(text_); at != text.npos; at = text.find(text_, at + text_.size())) {
      matches.push_back({at, at + text_.size()});
    }
  }

 private:
  std::string text_;
};

// Oniguruma's \s has no U+180E, its \w is all that's alphabetic, its \h is a hexadecimal digit.
std::string translate_from_oniguruma(const std::string& source) {
  static constexpr const char* kSpaces = R"(\p{Z}\x09-\x0d\x{85})";
  static constexpr const char* kWords = R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200c}\x{200d}\x{24b6}-\x{24e9})";
  std::string out;
  int class_depth = 0;
  for (std::size_t i = 0; i < source.size(); ++i) {
    const char c = source[i];
    if (c != '\\' || i + 1 == source.size()) {
      if (c == '[') ++class_depth;
      if (c == ']' && class_depth > 0) --class_depth;
      out.push_back(c);
      continue;
    }
    const char escaped = source[++i];
    const bool inside = class_depth > 0;
    const char* set = escaped == 's' || escaped == 'S'   ? kSpaces
                      : escaped == 'w' || escaped == 'W' ? kWords
                      : escaped == 'h' || escaped == 'H' ? "0-9a-fA-F"
                                                         : nullptr;
    const bool negated = escaped == 'S' || escaped == 'W' || escaped == 'H';
    if (set == nullptr || (negated && inside)) {
      out.push_back('\\');
      out.push_back(escaped);
    } else if (inside) {
      out += set;
    } else {
      out += negated ? "[^" : "[";
      out += set;
      out += "]";
    }
  }
  return out;
}

class RegexPattern final : public TextPattern {
 public:
  explicit RegexPattern(const std::string& source) : source_(source) {
    const std::string translated = translate_from_oniguruma(source);
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
    if (code_ == nullptr) {
      PCRE2_UCHAR message[200] = {};
      pcre2_get_error_message(error, message, sizeof message);
      fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: the regular expression '{}' can't be compiled: {}", source,
           reinterpret_cast<const char*>(message));
    }
    pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);
    context_ = pcre2_match_context_create(nullptr);
    TF_ASSERT(context_ != nullptr);
    pcre2_set_match_limit(context_, limits::kRegexMatchStepsMax);
    pcre2_set_depth_limit(context_, limits::kRegexMatchStepsMax);
    pcre2_set_heap_limit(context_, limits::kRegexHeapKibibytesMax);
  }
  ~RegexPattern() override {
    pcre2_match_context_free(context_);
    pcre2_code_free(code_);
  }
  RegexPattern(const RegexPattern&) = delete;
  RegexPattern& operator=(const RegexPattern&) = delete;

  void find_all(std::string_view text, std::vector<TextRange>& matches) const override {
    const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
        pcre2_match_data_create_from_pattern(code_, nullptr), pcre2_match_data_free);
    std::size_t position = 0;
    std::size_t last_end = text.size() + 1;  // no match yet
    while (position <= text.size()) {
      const int result = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), position,
                                     PCRE2_NO_UTF_CHECK, data.get(), context_);
      if (result == PCRE2_ERROR_NOMATCH) return;
      if (result < 0) report(result);
      const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data.get());
      const TextRange range{offsets[0], offsets[1]};
      if (range.end < range.begin) report(PCRE2_ERROR_BADOFFSET);  // \K in a lookaround
      if (range.begin == range.end) {
        position = range.end < text.size() ? range.end + unicode::valid_length(text[range.end]) : text.size() + 1;
        if (range.end == last_end) continue;  // an empty match right after a match isn't one
      } else {
        position = range.end;
      }
      last_end = range.end;
      matches.push_back(range);
    }
  }

 private:
  [[noreturn]] void report(int result) const {
    PCRE2_UCHAR message[200] = {};
    pcre2_get_error_message(result, message, sizeof message);
    fail(ErrorCode::kResourceExhausted, "the tokenizer's regular expression '{}' gave up on this text: {}", source_,
         reinterpret_cast<const char*>(message));
  }

  std::string source_;
  pcre2_code* code_ = nullptr;
  pcre2_match_context* context_ = nullptr;
};

}  // namespace

std::unique_ptr<TextPattern> TextPattern::literal(std::string text) {
  return std::make_unique<LiteralPattern>(std::move(text));
}

std::unique_ptr<TextPattern> TextPattern::regex(const std::string& source) {
  return std::make_unique<RegexPattern>(source);
}

std::unique_ptr<TextPattern> TextPattern::from_json(const nlohmann::json& pattern) {
  if (pattern.is_object() && pattern.size() == 1) {
    if (pattern.contains("String") && pattern["String"].is_string())
      return literal(pattern["String"].get<std::string>());
    if (pattern.contains("Regex") && pattern["Regex"].is_string()) return regex(pattern["Regex"].get<std::string>());
  }
  fail(ErrorCode::kInvalidCheckpoint,
       "tokenizer.json: a pattern must be {{\"String\": ...}} or {{\"Regex\": ...}}, not {}", pattern.dump());
}

}  // namespace tensorfold
