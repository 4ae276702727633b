// What streams' path rules have to say about the draws of a pass, asked while the pass runs: a grammar's mask takes as
// long as many kernels. A rule's answer depends on the tokens that the stream has so far and on nothing that the pass
// computes, so when it is asked can't change it. Apart from the round because a draw behind an accepted draft asks
// late, and shouldn't need to know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/path_rule.h"

namespace tensorfold {

class RulesAhead {
 public:
  struct Answer {
    std::vector<std::int32_t> forced;    // not empty: its first is the next token
    bool masks = false;                  // else `allowed` says nothing
    std::vector<std::uint32_t> allowed;  // as PathRule::mask(), for the whole vocabulary
  };

  explicit RulesAhead(std::int32_t vocabulary_size) : words_((static_cast<std::size_t>(vocabulary_size) + 31) / 32) {}

  /// A new pass: whatever was asked before is forgotten.
  void begin_pass() { count_ = 0; }
  /// Asks for the draw of `plan_row`, the next on the rule's path. A rule that throws is asked again when its draw is
  /// made, where that ends its stream.
  void ask(PathRule& rule, std::int32_t plan_row) noexcept;
  /// The answer for the draw of `plan_row`, asked for now if it wasn't. Valid until the next call. Throws what the rule
  /// throws.
  const Answer& answer(PathRule& rule, std::int32_t plan_row);

 private:
  struct Entry {
    std::int32_t plan_row = -1;
    Answer answer;
  };
  void fill(PathRule& rule, Answer& answer) const;

  std::size_t words_;
  std::vector<Entry> entries_;  // of this pass the first count_; the others' memory is used again
  std::size_t count_ = 0;
  Answer late_;
};

}  // namespace tensorfold
