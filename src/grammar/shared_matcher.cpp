// See shared_matcher.h.
#include "grammar/shared_matcher.h"

#include <dlpack/dlpack.h>

#include <algorithm>

#include "base/error.h"

namespace tensorfold {

MatcherTrunk::MatcherTrunk(const xgrammar::CompiledGrammar& grammar, std::int32_t vocabulary_size)
    : matcher_(grammar), vocabulary_size_(vocabulary_size) {}

void MatcherTrunk::move_to(const std::string& text, const std::vector<std::int32_t>& tokens) {
  if (text_ != text) {
    matcher_.Reset();
    text_.clear();
    tokens_.clear();
    if (!accept_text(text)) fail(ErrorCode::kInternal, "the grammar refused a text that it had allowed");
  }
  const auto shared = std::mismatch(tokens_.begin(), tokens_.end(), tokens.begin(), tokens.end());
  const auto common = shared.first - tokens_.begin();
  const auto surplus = static_cast<int>(tokens_.end() - shared.first);
  if (surplus > 0) {
    matcher_.Rollback(surplus);
    tokens_.resize(static_cast<std::size_t>(common));
  }
  for (std::size_t i = tokens_.size(); i < tokens.size(); ++i) {
    if (!accept_token(tokens[i])) fail(ErrorCode::kInternal, "the grammar refused a token that it had allowed");
  }
}

bool MatcherTrunk::accept_token(std::int32_t token) {
  if (token < 0 || token >= vocabulary_size_ || !matcher_.AcceptToken(token)) return false;
  tokens_.push_back(token);
  return true;
}

bool MatcherTrunk::accept_text(const std::string& text) {
  TF_ASSERT(tokens_.empty() && text_.empty());
  if (!text.empty() && !matcher_.AcceptString(text)) return false;
  text_ = text;
  return true;
}

void MatcherTrunk::mask(std::span<std::uint32_t> allowed_bits) {
  std::int64_t words = (vocabulary_size_ + 31) / 32;
  TF_ASSERT(static_cast<std::int64_t>(allowed_bits.size()) >= words);
  std::fill(allowed_bits.begin(), allowed_bits.end(), 0u);
  DLTensor tensor = {};
  tensor.data = allowed_bits.data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = {kDLInt, 32, 1};
  tensor.shape = &words;
  matcher_.FillNextTokenBitmask(&tensor);
  // Bits past the last id stay clear whatever the library leaves there.
  const int tail = vocabulary_size_ % 32;
  if (tail != 0) allowed_bits[static_cast<std::size_t>(words - 1)] &= (1u << tail) - 1;
}

bool SharedMatcher::advance(std::int32_t token) {
  trunk_->move_to(text_, tokens_);
  if (!trunk_->accept_token(token)) return false;
  tokens_.push_back(token);
  return true;
}

bool SharedMatcher::advance_text(std::string_view text) {
  TF_ASSERT(tokens_.empty() && text_.empty());
  trunk_->move_to(text_, tokens_);
  std::string owned(text);
  if (!trunk_->accept_text(owned)) return false;
  text_ = std::move(owned);
  return true;
}

void SharedMatcher::mask(std::span<std::uint32_t> allowed_bits) {
  trunk_->move_to(text_, tokens_);
  trunk_->mask(allowed_bits);
}

bool SharedMatcher::is_complete() {
  trunk_->move_to(text_, tokens_);
  return trunk_->is_complete();
}

}  // namespace tensorfold
