// A stream's rule for drawing a token, as plain data (engine.md 2). Everything here depends on tokens before the row
// only.
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
