// A stream's rules for drawing a token, as plain data (engine.md 2): SamplingRule is the keyed draw's own and goes to
// devices as it is; LogitRule says what happens to a row's logits before it. Everything here depends on tokens before
// the row only.
#pragma once

#include <cstdint>
#include <vector>

namespace tensorfold {

struct SamplingRule {
  double temperature = 0.0;  // <= 0: greedy
  std::int32_t top_k = 0;    // <= 0: off
  double top_p = 1.0;        // outside (0, 1): off
  double min_p = 0.0;        // 0: off
  std::uint64_t seed = 0;
};

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
