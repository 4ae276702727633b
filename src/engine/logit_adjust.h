// Penalties and biases on a row's logits (engine.md 2.6): one object a stream. What they do to a row is a pure function
// of the tokens before it: those committed, which are counted once as they come, and those on the row's own path, which
// are counted on the fly and never kept. So a draft that is rejected can't leave a trace, and a drafted row is adjusted
// as the serial one. Only ids that a rule touches are computed; nothing here walks a vocabulary.
//
// Of a raw logit x of token t, in double, rounded to float once:
//   1. repetition  t in prompt or reply: x / r where x > 0, x * r elsewhere
//   2. frequency   x - f * (times t stands in the reply)
//   3. presence    x - p, where t stands in the reply
//   4. bias        x + b
// Masks come before and commute with it (an excluded id stays excluded), temperature and filters come after. The result
// is kept finite; a logit of -inf stays -inf. Log-probabilities are of the raw logits.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/sampling_rule.h"

namespace tensorfold {

/// A token and what its logit becomes.
struct AdjustedLogit {
  std::int32_t token = 0;
  float logit = 0.0f;
};

class LogitAdjust {
 public:
  /// Changes nothing.
  LogitAdjust() = default;
  /// Counts the prompt where a repetition penalty needs it: O(prompt), before any pass.
  LogitAdjust(const LogitRule& rule, std::span<const std::int32_t> prompt);

  /// False: collect() yields nothing, whatever the row.
  bool is_active() const { return counts_ || !entries_.empty(); }

  /// A token of the reply was committed: each once, in any number at a time, the pending one included.
  void commit(std::int32_t token);

  /// The adjusted logits of a row, each touched id once, in no order. `logits`: the raw row (one float an id). `path`:
  /// the drafts from the pending token's child to the row itself, the row's own token included (the pending token is
  /// committed already): empty for a window's first row. Ids must be inside the vocabulary. Clears `adjusted` first.
  void collect(const float* logits, std::span<const std::int32_t> path, std::vector<AdjustedLogit>& adjusted) const;

 private:
  struct Entry {
    std::int32_t token = 0;
    std::int32_t reply_count = 0;
    bool seen = false;  // in prompt or reply
    double bias = 0.0;
  };

  Entry& entry(std::int32_t token);
  float adjusted_logit(const Entry& entry, float logit) const;

  double repetition_ = 1.0, frequency_ = 0.0, presence_ = 0.0;
  bool counts_ = false;
  std::vector<Entry> entries_;
  std::unordered_map<std::int32_t, std::size_t> index_;  // token -> entries_
};

}  // namespace tensorfold
