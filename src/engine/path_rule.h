// What text and grammar have to say about a stream's tokens, as the one interface through which it reaches the engine.
// The engine knows token ids and never text; stop strings, grammars, thinking budgets, tool gates and the loop guard
// are implemented outside and injected by `serve`. A rule's state follows one path of tokens: it is cloned where drafts
// branch, so that a draft can never change what a rule decides.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace tensorfold {

class PathRule {
 public:
  enum class Verdict {
    kContinue,
    kStop,  // the reply ends after this token (a stop string was completed)
    kCut,   // the reply ends before this token
  };

  virtual ~PathRule() = default;
  virtual std::unique_ptr<PathRule> clone() const = 0;
  /// The path grows by `token`, which was drawn (or forced). Throws Error to end this stream alone with a message.
  virtual Verdict advance(std::int32_t token) = 0;
  /// Restricts the next draw: bit i of word i/32 allows id i. Returns false when every token is allowed (bits
  /// untouched).
  virtual bool mask(std::vector<std::uint32_t>& allowed_bits) {
    (void)allowed_bits;
    return false;
  }
  /// Tokens that must come next whatever the logits say (a closed thinking budget, a tool gate). Empty = draw.
  virtual std::vector<std::int32_t> forced_tokens() { return {}; }
};

}  // namespace tensorfold
