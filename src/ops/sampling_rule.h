// How a token is drawn from a row of logits, as plain data that goes to devices as it is (engine.md 2). The draw itself is
// defined in sampler.h.
#pragma once

#include <cstdint>

namespace tensorfold {

struct SamplingRule {
  double temperature = 0.0;  // <= 0: greedy
  std::int32_t top_k = 0;    // <= 0: off
  double top_p = 1.0;        // outside (0, 1): off
  double min_p = 0.0;        // 0: off
  std::uint64_t seed = 0;
};

}  // namespace tensorfold
