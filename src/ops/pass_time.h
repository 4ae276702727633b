// What a pass took that nobody waited for: the host queues the next one behind it, so no clock of the host's sees its end. A file of
// its own because models hand it on to whoever learns what passes cost.
#pragma once

#include <cstdint>

namespace tensorfold::ops {

struct PassTime {
  std::int64_t rows = 0;  // that held a token
  double seconds = 0.0;   // from the pass's first operation to the end of its last
};

}  // namespace tensorfold::ops
