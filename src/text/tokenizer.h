// Tokenizer: text to vocabulary ids and back, from a Hugging Face tokenizer.json or a GGUF file's metadata, equal to
// the `tokenizers` package id for id. Immutable after loading; every method may be called from any thread at once.
//
// Control tokens (added tokens, special or not) are recognised only where the caller says so: text that came from a
// message is encoded with parse_added_tokens = false, whatever it spells.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace tensorfold {

/// The tokenizer part of a GGUF file, as plain data (text/ doesn't know the container).
struct GgufVocabulary {
  std::string model;  // tokenizer.ggml.model: "gpt2" or "llama"
  std::string pre;    // tokenizer.ggml.pre: "default", "llama-bpe", "qwen2", "smollm", ...
  std::vector<std::string> tokens;
  std::vector<float> scores;              // "llama"
  std::vector<std::int32_t> token_types;  // 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
  std::vector<std::string> merges;        // "gpt2"
  std::int32_t bos_token = -1, eos_token = -1, unknown_token = -1, padding_token = -1;
  std::optional<bool> add_bos_token, add_eos_token, add_space_prefix;
};

/// The vocabulary as the text of a tokenizer.json that gives the same ids, for conversions. Throws Error(kUnsupported) for
/// a score-based ("llama") vocabulary.
std::string gguf_tokenizer_json(const GgufVocabulary& vocabulary);

/// A piece of a rendered prompt. `control` text was written by the template (added tokens are parsed in it); other text
/// came from a message and never yields a control token.
struct PromptSegment {
  std::string text;
  bool control = false;
};

/// Thrown where a caller's tokens_max can't be kept: the text gives tokens_min() tokens at least.
class TooManyTokens : public Error {
 public:
  explicit TooManyTokens(std::size_t tokens_min)
      : Error(ErrorCode::kInvalidArgument, fmt::format("the text has at least {} tokens; send less", tokens_min)),
        tokens_min_(tokens_min) {}
  std::size_t tokens_min() const { return tokens_min_; }

 private:
  std::size_t tokens_min_;
};

class Tokenizer {
 public:
  static constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

  /// Reads tokenizer.json (and tokenizer_config.json for add_bos_token etc.) in `directory`. Throws
  /// Error(kInvalidCheckpoint) naming the file and what is wrong (special ids outside the vocabulary, merges that name
  /// absent tokens, unknown component types, ...).
  static std::shared_ptr<const Tokenizer> from_directory(const std::filesystem::path& directory);
  /// The same from the documents' texts; `config_json` may be empty.
  static std::shared_ptr<const Tokenizer> from_json(std::string_view tokenizer_json, std::string_view config_json);
  static std::shared_ptr<const Tokenizer> from_gguf(GgufVocabulary vocabulary);
  virtual ~Tokenizer() = default;

  struct EncodeOptions {
    bool add_special_tokens = false;  // the post-processor's BOS/EOS
    bool parse_added_tokens = true;   // recognise added tokens spelled in the text
    /// May throw TooManyTokens as soon as it is certain that more come out, which a long text tells early.
    std::size_t tokens_max = kUnlimited;
  };
  virtual std::vector<std::int32_t> encode(std::string_view text, EncodeOptions options) const = 0;
  /// A rendered prompt: neighbouring segments are tokenized as one text wherever no added token separates them, so the
  /// ids equal those of the whole text, except that added tokens are found in control segments only. No BOS/EOS is
  /// added.
  virtual std::vector<std::int32_t> encode_segments(std::span<const PromptSegment> segments,
                                                    std::size_t tokens_max) const = 0;
  std::vector<std::int32_t> encode_segments(std::span<const PromptSegment> segments) const {
    return encode_segments(segments, kUnlimited);
  }
  /// Whole decoding as the `tokenizers` package does it (invalid UTF-8 becomes U+FFFD).
  virtual std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const = 0;
  /// Exact bytes a token adds in the middle of a text (empty for special tokens when `skip_special_tokens`).
  virtual std::string token_bytes(std::int32_t id) const = 0;
  /// The vocabulary's own spelling of a token.
  virtual std::string_view token_text(std::int32_t id) const = 0;
  virtual std::optional<std::int32_t> token_id(std::string_view token_text) const = 0;
  virtual bool is_special(std::int32_t id) const = 0;
  virtual std::int32_t size() const = 0;  // largest id + 1
  virtual std::optional<std::int32_t> bos_token() const = 0;
  virtual std::optional<std::int32_t> eos_token() const = 0;
  /// bos_token, eos_token, ... texts for templates ("" when absent).
  virtual std::string special_text(std::string_view name) const = 0;
  /// The chat template that came with the tokenizer files ("" = none); `name` selects among named ones.
  virtual std::string chat_template(std::string_view name = "default") const = 0;
};

/// Decodes a reply token by token: push() returns the text that became certain, holding back bytes of an unfinished
/// UTF-8 sequence; finish() returns what is left (U+FFFD for a broken end). The concatenation equals Tokenizer::decode.
class StreamDecoder {
 public:
  StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens);
  std::string push(std::int32_t id);
  std::string finish();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_tokens_;
  std::string pending_;
  bool at_start_ = true;
};

}  // namespace tensorfold
