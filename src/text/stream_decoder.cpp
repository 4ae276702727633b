// StreamDecoder over our own tokenizers, whose decoder knows what it must hold back, and over any other Tokenizer (the
// tests' own), where only unfinished UTF-8 is.
#include "text/tokenizer_pipeline.h"
#include "text/unicode.h"

namespace tensorfold {

StreamDecoder::StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens)
    : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {}

std::string StreamDecoder::push(std::int32_t id) {
  if (const auto* pipeline = dynamic_cast<const TokenizerPipeline*>(tokenizer_.get())) {
    return pipeline->push(id, skip_special_tokens_, pending_, at_start_);
  }
  if (skip_special_tokens_ && tokenizer_->is_special(id)) return "";
  pending_ += tokenizer_->token_bytes(id);
  const std::size_t certain = pending_.size() - unicode::incomplete_suffix_length(pending_);
  std::string out = unicode::to_valid_utf8(std::string_view(pending_).substr(0, certain));
  pending_.erase(0, certain);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  if (const auto* pipeline = dynamic_cast<const TokenizerPipeline*>(tokenizer_.get())) {
    out = pipeline->finish(pending_, at_start_);
  } else {
    out = unicode::to_valid_utf8(pending_);
    pending_.clear();
  }
  at_start_ = true;
  return out;
}

}  // namespace tensorfold
