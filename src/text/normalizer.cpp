// The steps of normalization and their reading from tokenizer.json.
#include "text/normalizer.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/limits.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_regex.h"

namespace tensorfold {
namespace {

using nlohmann::json;

class NormalFormStep final : public NormalizerStep {
 public:
  explicit NormalFormStep(unicode::NormalForm form) : form_(form) {}
  std::string apply(std::string_view text, bool, bool) const override { return unicode::normalize(text, form_); }

 private:
  unicode::NormalForm form_;
};

class ReplaceStep final : public NormalizerStep {
 public:
  ReplaceStep(std::unique_ptr<TextPattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  std::string apply(std::string_view text, bool, bool) const override {
    std::vector<TextRange> matches;
    pattern_->find_all(text, matches);
    std::string out;
    out.reserve(text.size() + matches.size() * content_.size());
    std::size_t position = 0;
    for (const TextRange& match : matches) {
      out += text.substr(position, match.begin - position);
      out += content_;
      position = match.end;
      if (out.size() > limits::kNormalizedBytesMax) {
        fail(ErrorCode::kResourceExhausted, "the normalized text is larger than {} bytes", limits::kNormalizedBytesMax);
      }
    }
    out += text.substr(position);
    return out;
  }

 private:
  std::unique_ptr<TextPattern> pattern_;
  std::string content_;
};

class PrependStep final : public NormalizerStep {
 public:
  explicit PrependStep(std::string text) : text_(std::move(text)) {}
  std::string apply(std::string_view text, bool at_start, bool) const override {
    return at_start && !text.empty() ? text_ + std::string(text) : std::string(text);
  }

 private:
  std::string text_;
};

class StripStep final : public NormalizerStep {
 public:
  StripStep(bool left, bool right) : left_(left), right_(right) {}

  std::string apply(std::string_view text, bool at_start, bool at_end) const override {
    while (left_ && at_start && !text.empty()) {
      const auto [value, length] = unicode::decode_valid(text.data());
      if (!unicode::is_space(value)) break;
      text.remove_prefix(length);
    }
    while (right_ && at_end && !text.empty()) {
      std::size_t last = text.size() - 1;
      while ((static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
      if (!unicode::is_space(unicode::decode_valid(text.data() + last).value)) break;
      text.remove_suffix(text.size() - last);
    }
    return std::string(text);
  }

 private:
  bool left_, right_;
};

/// Appends what `Function` makes of each character.
template <typename Function>
class CharacterStep final : public NormalizerStep {
 public:
  explicit CharacterStep(Function function) : function_(function) {}
  std::string apply(std::string_view text, bool, bool) const override {
    std::string out;
    out.reserve(text.size());
    for (std::size_t i = 0; i < text.size();) {
      const auto [value, length] = unicode::decode_valid(text.data() + i);
      function_(out, value);
      i += length;
    }
    return out;
  }

 private:
  Function function_;
};

template <typename Function>
std::unique_ptr<NormalizerStep> character_step(Function function) {
  return std::make_unique<CharacterStep<Function>>(function);
}

std::unique_ptr<NormalizerStep> byte_level_step() {
  return character_step([](std::string& out, char32_t c) {
    std::string bytes;
    unicode::append_utf8(bytes, c);
    for (const char b : bytes) out += byte_level_character(static_cast<unsigned char>(b));
  });
}

std::unique_ptr<NormalizerStep> read_step(const std::string& type, const json& description) {
  if (type == "NFC") return std::make_unique<NormalFormStep>(unicode::NormalForm::kNfc);
  if (type == "NFD") return std::make_unique<NormalFormStep>(unicode::NormalForm::kNfd);
  if (type == "NFKC") return std::make_unique<NormalFormStep>(unicode::NormalForm::kNfkc);
  if (type == "NFKD") return std::make_unique<NormalFormStep>(unicode::NormalForm::kNfkd);
  if (type == "Replace") {
    return std::make_unique<ReplaceStep>(
        TextPattern::from_json(json_member(description, "pattern", "normalizer Replace")),
        json_string(description, "content", "normalizer Replace"));
  }
  if (type == "Prepend") {
    return std::make_unique<PrependStep>(json_string(description, "prepend", "normalizer Prepend"));
  }
  if (type == "Strip") {
    return std::make_unique<StripStep>(json_bool(description, "strip_left", true),
                                       json_bool(description, "strip_right", true));
  }
  if (type == "Lowercase") return character_step(unicode::append_lowercase);
  if (type == "StripAccents") {
    return character_step([](std::string& out, char32_t c) {
      if (!unicode::is_mark(c)) unicode::append_utf8(out, c);
    });
  }
  if (type == "ByteLevel") return byte_level_step();
  fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: the normalizer type '{}' isn't supported", type);
}

void read_steps(const json& description, std::vector<std::unique_ptr<NormalizerStep>>& steps, int& steps_left) {
  if (description.is_null()) return;
  if (--steps_left < 0) {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: more than {} normalizers", limits::kTokenizerStepsMax);
  }
  const std::string type = json_string(description, "type", "normalizer");
  if (type != "Sequence") {
    steps.push_back(read_step(type, description));
    return;
  }
  for (const json& step : json_array(description, "normalizers", "normalizer Sequence")) {
    read_steps(step, steps, steps_left);
  }
}

}  // namespace

std::string Normalizer::normalize(std::string_view text, bool at_start, bool at_end) const {
  std::string current(text);
  for (const auto& step : steps_) current = step->apply(current, at_start, at_end);
  return current;
}

Normalizer Normalizer::from_json(const json& description) {
  Normalizer normalizer;
  int steps_left = limits::kTokenizerStepsMax;
  read_steps(description, normalizer.steps_, steps_left);
  return normalizer;
}

Normalizer Normalizer::normal_form(unicode::NormalForm form) {
  Normalizer normalizer;
  normalizer.steps_.push_back(std::make_unique<NormalFormStep>(form));
  return normalizer;
}

Normalizer Normalizer::escaped_spaces(bool add_space_prefix) {
  Normalizer normalizer;
  if (add_space_prefix) normalizer.steps_.push_back(std::make_unique<PrependStep>(" "));
  normalizer.steps_.push_back(std::make_unique<ReplaceStep>(TextPattern::literal(" "), "\u2581"));
  return normalizer;
}

}  // namespace tensorfold
