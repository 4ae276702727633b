// The steps of pre-tokenization and their reading from tokenizer.json.
#include "text/pretokenizer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"
#include "base/limits.h"
#include "text/pretokenizer_scanner.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_regex.h"
#include "text/unicode.h"

namespace tensorfold {
namespace {

using nlohmann::json;

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

SplitBehavior parse_behavior(const std::string& name) {
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: unknown split behavior '{}'", name);
}

struct Stretch {
  TextRange range;
  bool is_match;
};

// Matches and what lies between them, in order.
std::vector<Stretch> cover(std::string_view text, const std::vector<TextRange>& matches, bool invert) {
  std::vector<Stretch> stretches;
  stretches.reserve(matches.size() * 2 + 1);
  std::size_t position = 0;
  for (const TextRange& match : matches) {
    if (match.begin != position) stretches.push_back({{position, match.begin}, invert});
    stretches.push_back({match, !invert});
    position = match.end;
  }
  if (position != text.size()) stretches.push_back({{position, text.size()}, invert});
  return stretches;
}

std::vector<TextRange> merge_with_next(const std::vector<Stretch>& stretches) {
  std::vector<TextRange> ranges;
  bool previous = false;
  for (auto it = stretches.rbegin(); it != stretches.rend(); ++it) {
    if (it->is_match && !previous && !ranges.empty()) {
      ranges.back().begin = it->range.begin;
    } else {
      ranges.push_back(it->range);
    }
    previous = it->is_match;
  }
  std::reverse(ranges.begin(), ranges.end());
  return ranges;
}

std::vector<TextRange> apply_behavior(const std::vector<Stretch>& stretches, SplitBehavior behavior) {
  if (behavior == SplitBehavior::kMergedWithNext) return merge_with_next(stretches);
  std::vector<TextRange> ranges;
  bool previous = false;
  for (const Stretch& stretch : stretches) {
    bool extend = false;
    if (behavior == SplitBehavior::kRemoved && stretch.is_match) continue;
    if (behavior == SplitBehavior::kMergedWithPrevious) extend = stretch.is_match && !previous;
    if (behavior == SplitBehavior::kContiguous) extend = stretch.is_match == previous;
    if (extend && !ranges.empty()) {
      ranges.back().end = stretch.range.end;
    } else {
      ranges.push_back(stretch.range);
    }
    previous = stretch.is_match;
  }
  return ranges;
}

void emit(Piece whole, const std::vector<TextRange>& ranges, PieceSink& sink) {
  for (const TextRange& range : ranges) {
    if (range.begin == range.end) continue;
    sink.accept({whole.text.substr(range.begin, range.end - range.begin), whole.at_start && range.begin == 0});
  }
}

class PatternSplit final : public PreTokenizer {
 public:
  PatternSplit(std::unique_ptr<TextPattern> pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void split(Piece piece, PieceSink& sink) const override {
    std::vector<TextRange> matches;
    pattern_->find_all(piece.text, matches);
    emit(piece, apply_behavior(cover(piece.text, matches, invert_), behavior_), sink);
  }

 private:
  std::unique_ptr<TextPattern> pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

/// Isolated matches of a hand-written scanner; what no match covers comes out as pieces of its own.
class ScannerSplit final : public PreTokenizer {
 public:
  explicit ScannerSplit(std::unique_ptr<Scanner> scanner) : scanner_(std::move(scanner)) {}

  void split(Piece piece, PieceSink& sink) const override {
    const char* const begin = piece.text.data();
    const char* const end = begin + piece.text.size();
    const char* gap = begin;
    const auto give = [&](const char* from, const char* to) {
      sink.accept({{from, static_cast<std::size_t>(to - from)}, piece.at_start && from == begin});
    };
    for (const char* p = begin; p < end;) {
      const char* const match_end = scanner_->match(p, end);
      if (match_end == p) {
        p += unicode::valid_length(*p);
        continue;
      }
      if (gap < p) give(gap, p);
      give(p, match_end);
      p = gap = match_end;
    }
    if (gap < end) give(gap, end);
  }

 private:
  std::unique_ptr<Scanner> scanner_;
};

/// Splits at single characters of a class.
class CharacterSplit final : public PreTokenizer {
 public:
  using Predicate = bool (*)(char32_t);
  CharacterSplit(Predicate accepts, SplitBehavior behavior) : accepts_(accepts), behavior_(behavior) {}

  void split(Piece piece, PieceSink& sink) const override {
    std::vector<TextRange> matches;
    for (std::size_t i = 0; i < piece.text.size();) {
      const auto [value, length] = unicode::decode_valid(piece.text.data() + i);
      if (accepts_(value)) matches.push_back({i, i + length});
      i += length;
    }
    emit(piece, apply_behavior(cover(piece.text, matches, false), behavior_), sink);
  }

 private:
  Predicate accepts_;
  SplitBehavior behavior_;
};

/// \w+|[^\w\s]+ : runs of word characters, runs of the rest, white space dropped.
class WhitespaceSplitter final : public PreTokenizer {
 public:
  void split(Piece piece, PieceSink& sink) const override {
    const auto kind = [](char32_t c) { return unicode::is_word(c) ? 1 : unicode::is_space(c) ? 0 : 2; };
    for (std::size_t i = 0; i < piece.text.size();) {
      const std::size_t begin = i;
      const int first_kind = kind(unicode::decode_valid(piece.text.data() + i).value);
      while (i < piece.text.size()) {
        const auto [value, length] = unicode::decode_valid(piece.text.data() + i);
        if (kind(value) != first_kind) break;
        i += length;
      }
      if (first_kind != 0) sink.accept({piece.text.substr(begin, i - begin), piece.at_start && begin == 0});
    }
  }
};

class Metaspace final : public PreTokenizer {
 public:
  enum class Prepend { kAlways, kFirst, kNever };
  Metaspace(std::string replacement, Prepend prepend, bool split)
      : replacement_(std::move(replacement)),
        prepend_(prepend),
        split_(split),
        pattern_(TextPattern::literal(replacement_)) {}

  void split(Piece piece, PieceSink& sink) const override {
    std::string text;
    text.reserve(piece.text.size() + piece.text.size() / 2);
    for (const char c : piece.text) {
      if (c == ' ') {
        text += replacement_;
      } else {
        text.push_back(c);
      }
    }
    const bool wanted = prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && piece.at_start);
    if (wanted && !text.starts_with(replacement_)) text.insert(0, replacement_);
    const Piece whole{text, piece.at_start};
    if (!split_) return sink.accept(whole);
    std::vector<TextRange> matches;
    pattern_->find_all(text, matches);
    emit(whole, apply_behavior(cover(text, matches, false), SplitBehavior::kMergedWithNext), sink);
  }

 private:
  std::string replacement_;
  Prepend prepend_;
  bool split_;
  std::unique_ptr<TextPattern> pattern_;
};

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex)
      : add_prefix_space_(add_prefix_space),
        splitter_(use_regex ? std::make_unique<ScannerSplit>(make_scanner(patterns::kGpt2)) : nullptr) {}

  void split(Piece piece, PieceSink& sink) const override {
    std::string prefixed;
    if (add_prefix_space_ && !piece.text.starts_with(' ')) {
      prefixed.reserve(piece.text.size() + 1);
      prefixed.push_back(' ');
      prefixed += piece.text;
      piece.text = prefixed;
    }
    Mapper mapper(sink, keep_bytes_);
    if (splitter_ != nullptr) {
      splitter_->split(piece, mapper);
    } else {
      mapper.accept(piece);
    }
  }

  /// The chain's last step leaves the mapping to the model.
  void keep_bytes() { keep_bytes_ = true; }

 private:
  class Mapper final : public PieceSink {
   public:
    Mapper(PieceSink& sink, bool keep_bytes) : sink_(sink), keep_bytes_(keep_bytes) {}
    void accept(Piece piece) override {
      if (keep_bytes_) return sink_.accept(piece);
      mapped_.clear();
      for (const char c : piece.text) mapped_ += byte_level_character(static_cast<unsigned char>(c));
      sink_.accept({mapped_, piece.at_start});
    }

   private:
    PieceSink& sink_;
    bool keep_bytes_;
    std::string mapped_;
  };

  bool add_prefix_space_;
  std::unique_ptr<ScannerSplit> splitter_;
  bool keep_bytes_ = false;
};

std::unique_ptr<PreTokenizer> read_split(const json& description) {
  const json& pattern = json_member(description, "pattern", "pre_tokenizer Split");
  const SplitBehavior behavior = parse_behavior(json_string(description, "behavior", "pre_tokenizer Split"));
  const bool invert = json_bool(description, "invert", false);
  if (behavior == SplitBehavior::kIsolated && pattern.is_object() && pattern.contains("Regex") &&
      pattern["Regex"].is_string()) {
    auto scanner = make_scanner(pattern["Regex"].get_ref<const std::string&>());
    if (scanner != nullptr) return std::make_unique<ScannerSplit>(std::move(scanner));
  }
  return std::make_unique<PatternSplit>(TextPattern::from_json(pattern), behavior, invert);
}

std::unique_ptr<PreTokenizer> read_metaspace(const json& description) {
  const std::string replacement = json_string(description, "replacement", "pre_tokenizer Metaspace");
  auto prepend =
      json_bool(description, "add_prefix_space", true) ? Metaspace::Prepend::kAlways : Metaspace::Prepend::kNever;
  if (description.contains("prepend_scheme") && !description["prepend_scheme"].is_null()) {
    const std::string scheme = json_string(description, "prepend_scheme", "pre_tokenizer Metaspace");
    if (scheme == "always") {
      prepend = Metaspace::Prepend::kAlways;
    } else if (scheme == "first") {
      prepend = Metaspace::Prepend::kFirst;
    } else if (scheme == "never") {
      prepend = Metaspace::Prepend::kNever;
    } else {
      fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: unknown Metaspace prepend_scheme '{}'", scheme);
    }
  }
  return std::make_unique<Metaspace>(replacement, prepend, json_bool(description, "split", true));
}

void read_steps(const json& description, PreTokenizerChain& chain, int& steps_left) {
  if (description.is_null()) return;
  if (--steps_left < 0) {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: more than {} pre-tokenizers", limits::kTokenizerStepsMax);
  }
  const std::string type = json_string(description, "type", "pre_tokenizer");
  if (type == "Sequence") {
    for (const json& step : json_array(description, "pretokenizers", "pre_tokenizer Sequence")) {
      read_steps(step, chain, steps_left);
    }
  } else if (type == "ByteLevel") {
    chain.add(std::make_unique<ByteLevel>(json_bool(description, "add_prefix_space", true),
                                          json_bool(description, "use_regex", true)));
  } else if (type == "Split") {
    chain.add(read_split(description));
  } else if (type == "Metaspace") {
    chain.add(read_metaspace(description));
  } else if (type == "Digits") {
    chain.add(std::make_unique<CharacterSplit>(unicode::is_numeric, json_bool(description, "individual_digits", false)
                                                                        ? SplitBehavior::kIsolated
                                                                        : SplitBehavior::kContiguous));
  } else if (type == "Punctuation") {
    const auto behavior = description.contains("behavior")
                              ? parse_behavior(json_string(description, "behavior", "pre_tokenizer Punctuation"))
                              : SplitBehavior::kIsolated;
    chain.add(std::make_unique<CharacterSplit>(unicode::is_punctuation, behavior));
  } else if (type == "WhitespaceSplit") {
    chain.add(std::make_unique<CharacterSplit>(unicode::is_space, SplitBehavior::kRemoved));
  } else if (type == "Whitespace") {
    chain.add(std::make_unique<WhitespaceSplitter>());
  } else if (type == "BertPreTokenizer") {
    chain.add(std::make_unique<CharacterSplit>(unicode::is_space, SplitBehavior::kRemoved));
    chain.add(std::make_unique<CharacterSplit>(unicode::is_punctuation, SplitBehavior::kIsolated));
  } else if (type == "CharDelimiterSplit") {
    chain.add(std::make_unique<PatternSplit>(
        TextPattern::literal(json_string(description, "delimiter", "pre_tokenizer CharDelimiterSplit")),
        SplitBehavior::kRemoved, false));
  } else {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: the pre_tokenizer type '{}' isn't supported", type);
  }
}

/// Feeds the pieces of one step to the rest of the chain.
class NextStep final : public PieceSink {
 public:
  NextStep(std::span<const std::unique_ptr<PreTokenizer>> rest, PieceSink& sink) : rest_(rest), sink_(sink) {}
  void accept(Piece piece) override {
    if (rest_.size() == 1) return rest_[0]->split(piece, sink_);
    NextStep next(rest_.subspan(1), sink_);
    rest_[0]->split(piece, next);
  }

 private:
  std::span<const std::unique_ptr<PreTokenizer>> rest_;
  PieceSink& sink_;
};

struct ByteCharacters {
  std::array<std::string, 256> text;
  std::array<int, 512> byte_of;
};

const ByteCharacters& byte_characters() {
  static const ByteCharacters table = [] {
    ByteCharacters built;
    built.byte_of.fill(-1);
    char32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool visible = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const char32_t c = visible ? static_cast<char32_t>(b) : next++;
      unicode::append_utf8(built.text[static_cast<std::size_t>(b)], c);
      built.byte_of[c] = b;
    }
    return built;
  }();
  return table;
}

}  // namespace

const std::string& byte_level_character(unsigned char byte) {
  return byte_characters().text[byte];
}

int byte_level_byte(char32_t c) {
  return c < 512 ? byte_characters().byte_of[c] : -1;
}

void PreTokenizerChain::split(Piece piece, PieceSink& sink) const {
  if (piece.text.empty()) return;
  if (steps_.empty()) return sink.accept(piece);
  NextStep first(steps_, sink);
  first.accept(piece);
}

void PreTokenizerChain::add(std::unique_ptr<PreTokenizer> step) {
  steps_.push_back(std::move(step));
}

PreTokenizerChain PreTokenizerChain::from_json(const json& description) {
  PreTokenizerChain chain;
  int steps_left = limits::kTokenizerStepsMax;
  read_steps(description, chain, steps_left);
  if (!chain.steps_.empty()) {
    if (auto* last = dynamic_cast<ByteLevel*>(chain.steps_.back().get())) {
      last->keep_bytes();
      chain.ends_in_bytes_ = true;
    }
  }
  return chain;
}

PreTokenizerChain PreTokenizerChain::byte_level(const std::vector<std::string_view>& split_patterns) {
  PreTokenizerChain chain;
  for (const std::string_view pattern : split_patterns) {
    if (auto scanner = make_scanner(pattern)) {
      chain.add(std::make_unique<ScannerSplit>(std::move(scanner)));
    } else {
      chain.add(
          std::make_unique<PatternSplit>(TextPattern::regex(std::string(pattern)), SplitBehavior::kIsolated, false));
    }
  }
  auto bytes = std::make_unique<ByteLevel>(false, false);
  bytes->keep_bytes();
  chain.add(std::move(bytes));
  chain.ends_in_bytes_ = true;
  return chain;
}

}  // namespace tensorfold
