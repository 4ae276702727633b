// See rules_ahead.h.
#include "engine/rules_ahead.h"

namespace tensorfold {

void RulesAhead::fill(PathRule& rule, Answer& answer) const {
  answer.masks = false;
  answer.forced = rule.forced_tokens();
  if (!answer.forced.empty()) return;
  answer.allowed.assign(words_, 0);
  answer.masks = rule.mask(answer.allowed);
  answer.allowed.resize(words_, 0);  // a rule may know a smaller vocabulary: what is past its end isn't allowed
}

void RulesAhead::ask(PathRule& rule, std::int32_t plan_row) noexcept {
  try {
    if (count_ == entries_.size()) entries_.emplace_back();
    Entry& entry = entries_[count_];
    fill(rule, entry.answer);
    entry.plan_row = plan_row;
    ++count_;
  } catch (...) {  // answer() asks again
  }
}

const RulesAhead::Answer& RulesAhead::answer(PathRule& rule, std::int32_t plan_row) {
  for (std::size_t i = 0; i < count_; ++i) {
    if (entries_[i].plan_row == plan_row) return entries_[i].answer;
  }
  fill(rule, late_);
  return late_;
}

}  // namespace tensorfold
