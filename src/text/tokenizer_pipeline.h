// The one implementation of Tokenizer: parts that the loaders (tokenizer_load.cpp, tokenizer_gguf.cpp) put together,
// and the pipeline over them: added tokens, normalizer, pre-tokenizer, model.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/normalizer.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_added_tokens.h"
#include "text/tokenizer_decoder.h"
#include "text/tokenizer_model.h"
#include "text/tokenizer_vocabulary.h"

namespace tensorfold {

struct TokenizerParts {
  std::unique_ptr<Vocabulary> vocabulary = std::make_unique<Vocabulary>();
  std::vector<AddedToken> added_tokens;
  Normalizer normalizer;
  PreTokenizerChain pre_tokenizer;
  std::unique_ptr<TokenizerModel> model;
  Decoder decoder;
  std::int32_t unknown_token = kNoToken;
  std::vector<std::int32_t> prefix, suffix;  // what add_special_tokens puts around a text
  std::optional<std::int32_t> bos_token, eos_token;
  std::map<std::string, std::string, std::less<>> special_texts;   // "bos_token" -> "<s>"
  std::map<std::string, std::string, std::less<>> chat_templates;  // by name
};

class TokenizerPipeline final : public Tokenizer {
 public:
  /// Throws Error(kInvalidCheckpoint) for ids outside the vocabulary and added tokens that contradict it.
  explicit TokenizerPipeline(TokenizerParts parts);

  std::vector<std::int32_t> encode(std::string_view text, EncodeOptions options) const override;
  std::vector<std::int32_t> encode_segments(std::span<const PromptSegment> segments,
                                            std::size_t tokens_max) const override;
  std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const override;
  std::string token_bytes(std::int32_t id) const override;
  std::string_view token_text(std::int32_t id) const override;
  std::optional<std::int32_t> token_id(std::string_view token_text) const override;
  bool is_special(std::int32_t id) const override;
  std::int32_t size() const override { return size_; }
  std::optional<std::int32_t> bos_token() const override { return parts_.bos_token; }
  std::optional<std::int32_t> eos_token() const override { return parts_.eos_token; }
  std::string special_text(std::string_view name) const override;
  std::string chat_template(std::string_view name) const override;

  /// For StreamDecoder.
  std::string push(std::int32_t id, bool skip_special_tokens, std::string& pending, bool& at_start) const;
  std::string finish(std::string& pending, bool& at_start) const { return parts_.decoder.finish(pending, at_start); }

 private:
  /// Valid UTF-8 with the ranges where added tokens are looked for.
  struct MarkedText {
    std::string text;
    std::vector<TextRange> control;
  };

  bool has_token(std::int32_t id) const { return parts_.vocabulary->contains(id) || added_by_id_.contains(id); }
  void check_id(std::int32_t id, std::string_view role) const;
  void register_added_tokens();
  void append_segment(MarkedText& marked, std::string_view text, bool control) const;
  /// `guarded`: no special id of the vocabulary may come of it.
  void encode_marked(const MarkedText& marked, bool guarded, std::size_t tokens_max,
                     std::vector<std::int32_t>& ids) const;
  void encode_part(std::string_view text, std::span<const TextRange> control, bool at_start, bool guarded,
                   std::size_t tokens_max, std::vector<std::int32_t>& ids) const;
  bool may_drop(std::string_view special_text) const;
  MarkedText normalize_marked(std::string_view text, std::span<const TextRange> control) const;
  std::size_t piece_tokens_min(Piece piece, bool guarded) const;
  void encode_piece(Piece piece, bool guarded, std::vector<std::int32_t>& ids) const;

  TokenizerParts parts_;
  std::unordered_map<std::int32_t, std::size_t> added_by_id_;
  TextTable added_by_text_;
  AddedTokenMatcher raw_matcher_, normalized_matcher_;
  std::vector<bool> forbidden_;  // special ids of the model's own vocabulary, which a message must never yield
  bool guard_drops_ = false;     // a guarded text may lose characters: there is one among those
  std::int32_t size_ = 0;
};

}  // namespace tensorfold
