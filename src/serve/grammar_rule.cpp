// See grammar_rule.h.
#include "serve/grammar_rule.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace tensorfold {
namespace {

constexpr int kWordBits = 32;

std::size_t word_count(std::int32_t vocabulary_size) {
  return (static_cast<std::size_t>(vocabulary_size) + kWordBits - 1) / kWordBits;
}

void set_bit(std::vector<std::uint32_t>& bits, std::int32_t id, bool value) {
  const auto word = static_cast<std::size_t>(id) / kWordBits;
  if (id < 0 || word >= bits.size()) return;
  const std::uint32_t bit = 1u << (static_cast<std::uint32_t>(id) % kWordBits);
  bits[word] = value ? bits[word] | bit : bits[word] & ~bit;
}

/// How many bytes of `mark` the text ends with, short of all of it.
std::size_t begun(const std::string& text, const std::string& mark) {
  for (std::size_t length = std::min(text.size(), mark.size() - 1); length > 0; --length) {
    if (text.ends_with(mark.substr(0, length))) return length;
  }
  return 0;
}

bool is_blank_text(const std::string& bytes) {
  return bytes.find_first_not_of(" \t\r\n") == std::string::npos;
}

}  // namespace

GrammarRule::GrammarRule(std::shared_ptr<const GrammarRuleSetting> setting, std::unique_ptr<GrammarMatcher> matcher)
    : setting_(std::move(setting)),
      matcher_(std::move(matcher)),
      phase_(Phase::kAnswer),
      decoder_(setting_->tokenizer, true),
      splitter_(setting_->format, true) {
  if (setting_->marks->close.empty()) return;
  if (setting_->inside_thought) {
    phase_ = Phase::kThought;
  } else if (setting_->thinking && setting_->marks->opener) {
    phase_ = Phase::kBeforeThought;
  }
}

GrammarRule::GrammarRule(const GrammarRule& other)
    : setting_(other.setting_),
      matcher_(other.matcher_->clone()),
      phase_(other.phase_),
      decoder_(other.decoder_),
      splitter_(other.splitter_),
      answer_begun_(other.answer_begun_),
      thought_end_(other.thought_end_) {}

PathRule::Verdict GrammarRule::advance(std::int32_t token) {
  if (phase_ == Phase::kBeforeThought) {
    phase_ = token == *setting_->marks->opener ? Phase::kThought : Phase::kAnswer;
    if (phase_ == Phase::kThought) return Verdict::kContinue;
  }
  if (phase_ == Phase::kThought) {
    advance_thought(token);
    return Verdict::kContinue;
  }
  if (!matcher_->advance(token)) fail(ErrorCode::kInternal, "The reply left its grammar at token {}.", token);
  answer_begun_ = answer_begun_ || !is_blank_text(setting_->tokenizer->token_bytes(token));
  // With end tokens ignored nothing could follow a finished text: the reply ends with it.
  const bool finished = setting_->ignore_stop_tokens && matcher_->is_complete() && !can_go_on();
  return finished ? Verdict::kStop : Verdict::kContinue;
}

void GrammarRule::advance_thought(std::int32_t token) {
  const std::string text = decoder_.push(token);
  const ReplyPieces pieces = splitter_.push(text);
  if (splitter_.inside()) {
    thought_end_ += text;
    thought_end_.erase(0, thought_end_.size() - begun(thought_end_, setting_->marks->close));
    return;
  }
  phase_ = Phase::kAnswer;
  if (!pieces.content.empty() && !matcher_->advance_text(pieces.content)) {
    fail(ErrorCode::kInternal, "The token that closed the reasoning began an answer outside its grammar.");
  }
}

bool GrammarRule::can_go_on() {
  std::vector<std::uint32_t> bits(word_count(setting_->vocabulary_size));
  matcher_->mask(bits);
  return std::any_of(bits.begin(), bits.end(), [](std::uint32_t word) { return word != 0; });
}

bool GrammarRule::mask(std::vector<std::uint32_t>& allowed_bits) {
  allowed_bits.resize(word_count(setting_->vocabulary_size));
  if (phase_ == Phase::kThought) {
    mask_thought(allowed_bits);
  } else {
    mask_answer(allowed_bits);
    if (phase_ == Phase::kBeforeThought) set_bit(allowed_bits, *setting_->marks->opener, true);
  }
  return true;
}

void GrammarRule::mask_thought(std::vector<std::uint32_t>& allowed_bits) const {
  // Everything but an end before the answer, and tokens that would close the block and begin the answer at once.
  std::fill(allowed_bits.begin(), allowed_bits.end(), ~0u);
  for (const std::int32_t id : setting_->stop_tokens) set_bit(allowed_bits, id, false);
  for (const std::int32_t id : setting_->marks->straddling[thought_end_.size()]) set_bit(allowed_bits, id, false);
}

void GrammarRule::mask_answer(std::vector<std::uint32_t>& allowed_bits) {
  matcher_->mask(allowed_bits);
  if (setting_->first_token && !answer_begun_) mask_other_beginnings(allowed_bits);
  const bool may_end = !setting_->ignore_stop_tokens && matcher_->is_complete();
  for (const std::int32_t id : setting_->stop_tokens) set_bit(allowed_bits, id, may_end);
}

void GrammarRule::mask_other_beginnings(std::vector<std::uint32_t>& allowed_bits) const {
  const auto first = static_cast<std::size_t>(*setting_->first_token);
  if ((allowed_bits[first / kWordBits] >> (first % kWordBits) & 1u) == 0) return;  // the grammar knows better
  for (std::size_t word = 0; word < allowed_bits.size(); ++word) {
    for (std::uint32_t bits = allowed_bits[word]; bits != 0; bits &= bits - 1) {
      const auto id = static_cast<std::int32_t>(word * kWordBits + static_cast<std::size_t>(std::countr_zero(bits)));
      const bool stays = id == *setting_->first_token || is_blank_text(setting_->tokenizer->token_bytes(id));
      if (!stays) set_bit(allowed_bits, id, false);
    }
  }
}

}  // namespace tensorfold
