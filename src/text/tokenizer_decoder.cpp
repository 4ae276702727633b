// The decoder steps. A run of byte tokens decodes as one unit (each byte becomes U+FFFD when the run isn't valid
// UTF-8), so the streaming form holds a run back until another token ends it.
#include "text/tokenizer_decoder.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/limits.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_json.h"
#include "text/unicode.h"

namespace tensorfold {
namespace {

using nlohmann::json;

std::string byte_level_bytes(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (std::size_t i = 0; i < token.size();) {
    const auto [value, length] = unicode::decode_valid(token.data() + i);
    const int byte = byte_level_byte(value);
    if (byte < 0) return std::string(token);  // an added token in plain letters
    bytes.push_back(static_cast<char>(byte));
    i += length;
  }
  return bytes;
}

// <0x41>, as Rust's from_str_radix reads the two characters (a leading + counts as a sign).
std::optional<char> byte_token_value(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  int value = 0;
  for (std::size_t i = 3; i < 5; ++i) {
    const char c = token[i];
    if (i == 3 && c == '+') continue;
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<char>(value);
}

std::vector<std::string> run_texts(const std::string& bytes) {
  if (unicode::is_valid_utf8(bytes)) return {bytes};
  return std::vector<std::string>(bytes.size(), "\uFFFD");
}

std::vector<std::string> join_byte_tokens(std::vector<std::string> tokens) {
  std::vector<std::string> out;
  std::string run;
  const auto flush = [&] {
    if (run.empty()) return;
    for (std::string& text : run_texts(run)) out.push_back(std::move(text));
    run.clear();
  };
  for (std::string& token : tokens) {
    if (const auto byte = byte_token_value(token)) {
      run.push_back(*byte);
    } else {
      flush();
      out.push_back(std::move(token));
    }
  }
  flush();
  return out;
}

std::string strip(std::string_view token, std::string_view character, std::size_t start, std::size_t stop) {
  for (std::size_t i = 0; i < start && token.starts_with(character); ++i) token.remove_prefix(character.size());
  for (std::size_t i = 0; i < stop && token.ends_with(character); ++i) token.remove_suffix(character.size());
  return std::string(token);
}

std::string joined(const std::vector<std::string>& tokens, std::string_view separator) {
  std::string out;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) out += separator;
    out += tokens[i];
  }
  return out;
}

// Tokens held back whole, each as length (4 bytes) and bytes.
void append_held(std::string& pending, std::string_view token) {
  const auto length = static_cast<std::uint32_t>(token.size());
  for (int i = 0; i < 4; ++i) pending.push_back(static_cast<char>(length >> (8 * i) & 0xFF));
  pending += token;
}

std::vector<std::string> held_tokens(std::string_view pending) {
  std::vector<std::string> tokens;
  while (!pending.empty()) {
    std::uint32_t length = 0;
    for (int i = 0; i < 4; ++i) length |= static_cast<std::uint32_t>(static_cast<unsigned char>(pending[i])) << (8 * i);
    tokens.emplace_back(pending.substr(4, length));
    pending.remove_prefix(4 + length);
  }
  return tokens;
}

std::string require_one_character(std::string text, const char* owner) {
  if (text.empty() || unicode::valid_length(text[0]) != text.size()) {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: {} needs one character, not '{}'", owner, text);
  }
  return text;
}

std::size_t read_count(const json& description, const char* key) {
  const std::int64_t count = json_integer(description, key, "decoder Strip");
  if (count < 0 || count > 1 << 20)
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: decoder Strip: {} is {}", key, count);
  return static_cast<std::size_t>(count);
}

}  // namespace

std::string Decoder::apply_to_token(const Step& step, std::string token, bool is_first) {
  switch (step.kind) {
    case Kind::kReplace: {
      std::vector<TextRange> matches;
      step.pattern->find_all(token, matches);
      std::string out;
      std::size_t position = 0;
      for (const TextRange& match : matches) {
        out.append(token, position, match.begin - position);
        out += step.content;
        position = match.end;
      }
      out.append(token, position);
      return out;
    }
    case Kind::kStrip:
      return strip(token, step.content, step.strip_start, step.strip_stop);
    case Kind::kMetaspace: {
      std::string out;
      for (std::size_t i = 0; i < token.size();) {
        const std::size_t length = unicode::valid_length(token[i]);
        if (token.compare(i, length, step.content) != 0) {
          out.append(token, i, length);
        } else if (!is_first || !step.drops_first) {
          out.push_back(' ');
        }
        i += length;
      }
      return out;
    }
    case Kind::kByteLevel:
    case Kind::kByteFallback:
    case Kind::kFuse:
      break;
  }
  return token;
}

std::string Decoder::decode(std::vector<std::string> tokens) const {
  if (join_with_spaces_) return joined(tokens, " ");
  for (const Step& step : steps_) {
    if (step.kind == Kind::kByteFallback) {
      tokens = join_byte_tokens(std::move(tokens));
    } else if (step.kind == Kind::kFuse) {
      tokens = {joined(tokens, "")};
    } else if (step.kind == Kind::kByteLevel) {
      std::string bytes;
      for (const std::string& token : tokens) bytes += byte_level_bytes(token);
      tokens = {unicode::to_valid_utf8(bytes)};
    } else {
      for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = apply_to_token(step, std::move(tokens[i]), i == 0);
    }
  }
  return joined(tokens, "");
}

std::string Decoder::apply_range(std::string token, std::size_t begin, std::size_t end, bool is_first) const {
  for (std::size_t i = begin; i < end; ++i) token = apply_to_token(steps_[i], std::move(token), is_first);
  return token;
}

std::string Decoder::token_bytes(std::string_view token) const {
  if (streaming_ == Streaming::kBytes) return byte_level_bytes(token);
  std::string text = apply_range(std::string(token), 0, std::min(byte_fallback_at_, fuse_at_), false);
  if (byte_fallback_at_ < steps_.size()) {
    if (const auto byte = byte_token_value(text)) return std::string(1, *byte);
    text = apply_range(std::move(text), byte_fallback_at_ + 1, fuse_at_, false);
  }
  return text;
}

std::string Decoder::flush_run(std::string& pending) const {
  std::string out;
  if (pending.empty()) return out;
  for (std::string& text : run_texts(pending))
    out += apply_range(std::move(text), byte_fallback_at_ + 1, fuse_at_, false);
  pending.clear();
  return out;
}

// The strip after fusing takes at most one character from the start of the whole text.
std::string Decoder::leave_start(std::string text, bool& at_start) const {
  if (!at_start || fuse_at_ + 1 >= steps_.size()) {
    at_start = false;
    return text;
  }
  if (text.empty()) return text;
  at_start = false;
  return apply_range(std::move(text), fuse_at_ + 1, steps_.size(), false);
}

std::string Decoder::push(std::string_view token, std::string& pending, bool& at_start) const {
  if (streaming_ == Streaming::kWhole) {
    append_held(pending, token);
    return "";
  }
  if (streaming_ == Streaming::kBytes) {
    pending += byte_level_bytes(token);
    const std::size_t certain = pending.size() - unicode::incomplete_suffix_length(pending);
    std::string out = unicode::to_valid_utf8(std::string_view(pending).substr(0, certain));
    pending.erase(0, certain);
    return out;
  }
  if (join_with_spaces_) {
    std::string out = at_start ? "" : " ";
    at_start = false;
    return out.append(token);
  }
  std::string text = apply_range(std::string(token), 0, std::min(byte_fallback_at_, fuse_at_), at_start);
  if (byte_fallback_at_ < steps_.size()) {
    if (const auto byte = byte_token_value(text)) {
      pending.push_back(*byte);
      // A strip after fusing still waits for the first character; a Metaspace step has seen its first token.
      if (fuse_at_ + 1 >= steps_.size()) at_start = false;
      return "";
    }
    text = flush_run(pending) + apply_range(std::move(text), byte_fallback_at_ + 1, fuse_at_, false);
  }
  return leave_start(std::move(text), at_start);
}

std::string Decoder::finish(std::string& pending, bool& at_start) const {
  std::string out;
  if (streaming_ == Streaming::kWhole) {
    out = decode(held_tokens(pending));
  } else if (streaming_ == Streaming::kBytes) {
    out = unicode::to_valid_utf8(pending);
  } else if (byte_fallback_at_ < steps_.size()) {
    out = leave_start(flush_run(pending), at_start);
  }
  pending.clear();
  return out;
}

void Decoder::classify() {
  const auto index_of = [&](Kind kind) {
    const auto found = std::find_if(steps_.begin(), steps_.end(), [&](const Step& s) { return s.kind == kind; });
    return static_cast<std::size_t>(found - steps_.begin());
  };
  const auto count_of = [&](Kind kind) {
    return std::count_if(steps_.begin(), steps_.end(), [&](const Step& s) { return s.kind == kind; });
  };
  fuse_at_ = index_of(Kind::kFuse);
  byte_fallback_at_ = std::min(index_of(Kind::kByteFallback), fuse_at_);
  if (byte_fallback_at_ == fuse_at_) byte_fallback_at_ = steps_.size();
  if (join_with_spaces_) {
    streaming_ = Streaming::kTokens;
    return;
  }
  if (count_of(Kind::kByteLevel) > 0) {
    streaming_ = steps_.size() == 1 ? Streaming::kBytes : Streaming::kWhole;
    return;
  }
  const std::size_t metaspace_at = index_of(Kind::kMetaspace);
  const bool metaspace_is_early = metaspace_at == steps_.size() || metaspace_at < std::min(byte_fallback_at_, fuse_at_);
  bool tail_is_simple = fuse_at_ + 1 >= steps_.size();
  if (fuse_at_ + 2 == steps_.size()) {
    const Step& last = steps_.back();
    tail_is_simple =
        last.kind == Kind::kStrip && last.strip_start <= 1 && last.strip_stop == 0 && metaspace_at == steps_.size();
  }
  const bool single =
      count_of(Kind::kFuse) <= 1 && count_of(Kind::kByteFallback) <= 1 && count_of(Kind::kMetaspace) <= 1;
  streaming_ = single && metaspace_is_early && tail_is_simple ? Streaming::kTokens : Streaming::kWhole;
}

Decoder::Step Decoder::read_step(const std::string& type, const json& description) {
  Step step{};
  if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
  } else if (type == "ByteFallback") {
    step.kind = Kind::kByteFallback;
  } else if (type == "Fuse") {
    step.kind = Kind::kFuse;
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    step.pattern = TextPattern::from_json(json_member(description, "pattern", "decoder Replace"));
    step.content = json_string(description, "content", "decoder Replace");
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    step.content = require_one_character(json_string(description, "content", "decoder Strip"), "decoder Strip");
    step.strip_start = read_count(description, "start");
    step.strip_stop = read_count(description, "stop");
  } else if (type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    step.content =
        require_one_character(json_string(description, "replacement", "decoder Metaspace"), "decoder Metaspace");
    const std::string scheme = json_string_or_empty(description, "prepend_scheme");
    step.drops_first = scheme.empty() ? json_bool(description, "add_prefix_space", true) : scheme != "never";
  } else {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: the decoder type '{}' isn't supported", type);
  }
  return step;
}

void Decoder::read_steps(const json& description, std::vector<Step>& steps, int& steps_left) {
  if (--steps_left < 0) {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: more than {} decoders", limits::kTokenizerStepsMax);
  }
  const std::string type = json_string(description, "type", "decoder");
  if (type != "Sequence") {
    steps.push_back(read_step(type, description));
    return;
  }
  for (const json& step : json_array(description, "decoders", "decoder Sequence")) read_steps(step, steps, steps_left);
}

Decoder Decoder::from_json(const json& description) {
  Decoder decoder;
  int steps_left = limits::kTokenizerStepsMax;
  if (description.is_null()) {
    decoder.join_with_spaces_ = true;
  } else {
    read_steps(description, decoder.steps_, steps_left);
  }
  decoder.classify();
  return decoder;
}

Decoder Decoder::byte_level() {
  Decoder decoder;
  decoder.steps_.push_back({Kind::kByteLevel, nullptr, "", 0, 0, false});
  decoder.classify();
  return decoder;
}

Decoder Decoder::sentencepiece(bool strip_first_space) {
  Decoder decoder;
  decoder.steps_.push_back({Kind::kReplace, TextPattern::literal("\u2581"), " ", 0, 0, false});
  decoder.steps_.push_back({Kind::kByteFallback, nullptr, "", 0, 0, false});
  decoder.steps_.push_back({Kind::kFuse, nullptr, "", 0, 0, false});
  if (strip_first_space) decoder.steps_.push_back({Kind::kStrip, nullptr, " ", 1, 0, false});
  decoder.classify();
  return decoder;
}

}  // namespace tensorfold
