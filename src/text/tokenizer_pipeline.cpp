// The pipeline. Text of messages and text of templates run through it as one; only the search for added tokens knows
// which is which, and the guard that a message's own characters never merge into a special id.
#include "text/tokenizer_pipeline.h"

#include <algorithm>

#include "base/error.h"
#include "base/limits.h"
#include "text/unicode.h"

namespace tensorfold {
namespace {

std::vector<TextRange> intersect(std::span<const TextRange> ranges, TextRange window) {
  std::vector<TextRange> inside;
  auto first = std::lower_bound(ranges.begin(), ranges.end(), window.begin,
                                [](const TextRange& range, std::size_t begin) { return range.end <= begin; });
  for (; first != ranges.end() && first->begin < window.end; ++first) {
    inside.push_back(
        {std::max(first->begin, window.begin) - window.begin, std::min(first->end, window.end) - window.begin});
  }
  return inside;
}

struct Run {
  TextRange range;
  bool control;
};

// The whole of a text as alternating runs.
std::vector<Run> runs_of(std::size_t size, std::span<const TextRange> control) {
  std::vector<Run> runs;
  std::size_t position = 0;
  for (const TextRange& range : control) {
    if (position < range.begin) runs.push_back({{position, range.begin}, false});
    runs.push_back({range, true});
    position = range.end;
  }
  if (position < size) runs.push_back({{position, size}, false});
  return runs;
}

}  // namespace

TokenizerPipeline::TokenizerPipeline(TokenizerParts parts) : parts_(std::move(parts)) {
  TF_ASSERT(parts_.model != nullptr);
  register_added_tokens();
  for (const std::int32_t id : parts_.prefix) check_id(id, "a token put before the text");
  for (const std::int32_t id : parts_.suffix) check_id(id, "a token put after the text");
  if (parts_.bos_token) check_id(*parts_.bos_token, "bos_token");
  if (parts_.eos_token) check_id(*parts_.eos_token, "eos_token");
}

void TokenizerPipeline::check_id(std::int32_t id, std::string_view role) const {
  if (!has_token(id)) {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer: {} has id {}, which is outside the vocabulary ({} tokens)", role,
         id, size_);
  }
}

void TokenizerPipeline::register_added_tokens() {
  // Specials first: of two added tokens with one text, the package finds the special one.
  std::stable_partition(parts_.added_tokens.begin(), parts_.added_tokens.end(),
                        [](const AddedToken& token) { return token.special; });
  size_ = parts_.vocabulary->size();
  forbidden_.resize(static_cast<std::size_t>(size_));
  added_by_text_.reserve(parts_.added_tokens.size());
  for (std::size_t i = 0; i < parts_.added_tokens.size(); ++i) {
    const AddedToken& token = parts_.added_tokens[i];
    added_by_id_.emplace(token.id, i);
    added_by_text_.insert(token.content, token.id);
    size_ = std::max(size_, token.id + 1);
    if (token.special && token.id != parts_.unknown_token && parts_.vocabulary->contains(token.id)) {
      forbidden_[static_cast<std::size_t>(token.id)] = true;
      guard_drops_ = guard_drops_ || may_drop(token.content);
    }
    if (token.normalized) {
      normalized_matcher_.add(parts_.normalizer.normalize(token.content), token);
    } else {
      raw_matcher_.add(token.content, token);
    }
  }
  raw_matcher_.finish();
  normalized_matcher_.finish();
}

/// A special token that is a single character or a byte can't be spelled by others: in a guarded text it is dropped.
bool TokenizerPipeline::may_drop(std::string_view special_text) const {
  return special_text.empty() || unicode::valid_length(special_text.front()) >= special_text.size() ||
         special_text.starts_with("<0x");
}

void TokenizerPipeline::append_segment(MarkedText& marked, std::string_view text, bool control) const {
  if (text.size() > limits::kEncodeTextBytesMax - std::min(limits::kEncodeTextBytesMax, marked.text.size())) {
    fail(ErrorCode::kResourceExhausted, "the text to tokenize is larger than {} bytes; send less",
         limits::kEncodeTextBytesMax);
  }
  if (text.empty()) return;
  const std::size_t begin = marked.text.size();
  marked.text += unicode::is_valid_utf8(text) ? std::string(text) : unicode::to_valid_utf8(text);
  if (!control) return;
  if (!marked.control.empty() && marked.control.back().end == begin) {
    marked.control.back().end = marked.text.size();
  } else {
    marked.control.push_back({begin, marked.text.size()});
  }
}

std::vector<std::int32_t> TokenizerPipeline::encode(std::string_view text, EncodeOptions options) const {
  MarkedText marked;
  append_segment(marked, text, options.parse_added_tokens);
  std::vector<std::int32_t> ids;
  if (options.add_special_tokens) ids = parts_.prefix;
  encode_marked(marked, !options.parse_added_tokens, options.tokens_max, ids);
  if (options.add_special_tokens) ids.insert(ids.end(), parts_.suffix.begin(), parts_.suffix.end());
  return ids;
}

std::vector<std::int32_t> TokenizerPipeline::encode_segments(std::span<const PromptSegment> segments,
                                                             std::size_t tokens_max) const {
  MarkedText marked;
  bool guarded = false;
  for (const PromptSegment& segment : segments) {
    append_segment(marked, segment.text, segment.control);
    guarded = guarded || (!segment.control && !segment.text.empty());
  }
  std::vector<std::int32_t> ids;
  encode_marked(marked, guarded, tokens_max, ids);
  return ids;
}

void TokenizerPipeline::encode_marked(const MarkedText& marked, bool guarded, std::size_t tokens_max,
                                      std::vector<std::int32_t>& ids) const {
  const std::string_view text = marked.text;
  for (const TextPart& part : raw_matcher_.split(text, marked.control)) {
    if (part.id != kNoToken) {
      ids.push_back(part.id);
      continue;
    }
    encode_part(text.substr(part.range.begin, part.range.end - part.range.begin), intersect(marked.control, part.range),
                part.range.begin == 0, guarded, tokens_max, ids);
  }
}

void TokenizerPipeline::encode_part(std::string_view text, std::span<const TextRange> control, bool at_start,
                                    bool guarded, std::size_t tokens_max, std::vector<std::int32_t>& ids) const {
  class Encoder final : public PieceSink {
   public:
    Encoder(const TokenizerPipeline& pipeline, bool guarded, std::size_t tokens_max, std::vector<std::int32_t>& ids)
        : pipeline_(pipeline), guarded_(guarded), tokens_max_(tokens_max), ids_(ids) {}
    void accept(Piece piece) override {
      const std::size_t count = ids_.size() + pipeline_.piece_tokens_min(piece, guarded_);
      if (count > tokens_max_) throw TooManyTokens(count);
      pipeline_.encode_piece(piece, guarded_, ids_);
    }

   private:
    const TokenizerPipeline& pipeline_;
    bool guarded_;
    std::size_t tokens_max_;
    std::vector<std::int32_t>& ids_;
  };
  Encoder encoder(*this, guarded, tokens_max, ids);
  if (parts_.normalizer.is_identity() && normalized_matcher_.empty()) {
    parts_.pre_tokenizer.split({text, at_start}, encoder);
    return;
  }
  const MarkedText normalized = normalize_marked(text, control);
  const std::string_view whole = normalized.text;
  for (const TextPart& part : normalized_matcher_.split(whole, normalized.control)) {
    if (part.id != kNoToken) {
      ids.push_back(part.id);
      continue;
    }
    parts_.pre_tokenizer.split(
        {whole.substr(part.range.begin, part.range.end - part.range.begin), at_start && part.range.begin == 0},
        encoder);
  }
}

TokenizerPipeline::MarkedText TokenizerPipeline::normalize_marked(std::string_view text,
                                                                  std::span<const TextRange> control) const {
  MarkedText out;
  out.text = parts_.normalizer.normalize(text);
  if (normalized_matcher_.empty() || control.empty()) return out;
  if (parts_.normalizer.is_identity()) {
    out.control.assign(control.begin(), control.end());
    return out;
  }
  const std::vector<Run> runs = runs_of(text.size(), control);
  if (runs.size() == 1) {
    out.control.push_back({0, out.text.size()});
    return out;
  }
  // Where the runs' boundaries lie in the normalized text is known for certain when the runs normalized alone give the
  // same text. Where they don't (a message ends in a letter and the template goes on with a combining mark), the runs
  // stay apart, so that no message can reach over its end.
  std::string apart;
  for (const Run& run : runs) {
    const std::size_t begin = apart.size();
    apart += parts_.normalizer.normalize(text.substr(run.range.begin, run.range.end - run.range.begin),
                                         run.range.begin == 0, run.range.end == text.size());
    if (run.control) out.control.push_back({begin, apart.size()});
  }
  out.text = std::move(apart);
  return out;
}

std::size_t TokenizerPipeline::piece_tokens_min(Piece piece, bool guarded) const {
  if (guarded && guard_drops_) return 0;
  return parts_.model->tokens_min(piece.text.size(), parts_.pre_tokenizer.ends_in_bytes());
}

void TokenizerPipeline::encode_piece(Piece piece, bool guarded, std::vector<std::int32_t>& ids) const {
  static const std::vector<bool> kNothingForbidden;
  const std::size_t begin = ids.size();
  const bool bytes = parts_.pre_tokenizer.ends_in_bytes();
  parts_.model->encode(piece.text, bytes, kNothingForbidden, ids);
  if (!guarded) return;
  const auto bad = [&](std::int32_t id) { return is_forbidden(forbidden_, id); };
  if (std::none_of(ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end(), bad)) return;
  ids.resize(begin);
  parts_.model->encode(piece.text, bytes, forbidden_, ids);
  ids.erase(std::remove_if(ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end(), bad), ids.end());
}

std::string TokenizerPipeline::decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const std::int32_t id : ids) {
    if (!has_token(id) || (skip_special_tokens && is_special(id))) continue;
    tokens.emplace_back(token_text(id));
  }
  return parts_.decoder.decode(std::move(tokens));
}

std::string TokenizerPipeline::token_bytes(std::int32_t id) const {
  return has_token(id) ? parts_.decoder.token_bytes(token_text(id)) : std::string();
}

std::string_view TokenizerPipeline::token_text(std::int32_t id) const {
  const auto added = added_by_id_.find(id);
  return added != added_by_id_.end() ? std::string_view(parts_.added_tokens[added->second].content)
                                     : parts_.vocabulary->text(id);
}

std::optional<std::int32_t> TokenizerPipeline::token_id(std::string_view token_text) const {
  std::int32_t id = added_by_text_.find(token_text);
  if (id == kNoToken) id = parts_.vocabulary->find(token_text);
  return id == kNoToken ? std::nullopt : std::optional(id);
}

bool TokenizerPipeline::is_special(std::int32_t id) const {
  const auto added = added_by_id_.find(id);
  return added != added_by_id_.end() && parts_.added_tokens[added->second].special;
}

std::string TokenizerPipeline::special_text(std::string_view name) const {
  const auto found = parts_.special_texts.find(name);
  return found != parts_.special_texts.end() ? found->second : "";
}

std::string TokenizerPipeline::chat_template(std::string_view name) const {
  const auto found = parts_.chat_templates.find(name);
  return found != parts_.chat_templates.end() ? found->second : "";
}

std::string TokenizerPipeline::push(std::int32_t id, bool skip_special_tokens, std::string& pending,
                                    bool& at_start) const {
  if (!has_token(id) || (skip_special_tokens && is_special(id))) return "";
  return parts_.decoder.push(token_text(id), pending, at_start);
}

}  // namespace tensorfold
