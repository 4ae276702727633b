// What happens to a row's logits before the keyed draw (ops/sampling_rule.h), as plain data (engine.md 2). Everything here
// depends on tokens before the row only.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/sampling_rule.h"

namespace tensorfold {

struct TokenBias {
  std::int32_t token = 0;
  double bias = 0.0;
};

/// Penalties and biases; logit_adjust.h has their arithmetic.
struct LogitRule {
  double repetition_penalty = 1.0;  // > 0; of every token of prompt and reply
  double frequency_penalty = 0.0;   // for each time a token stands in the reply
  double presence_penalty = 0.0;    // once for a token that stands in the reply
  std::vector<TokenBias> bias;      // ascending ids, each at most once

  bool has_penalties() const {
    return repetition_penalty != 1.0 || frequency_penalty != 0.0 || presence_penalty != 0.0;
  }
};

}  // namespace tensorfold
