// Where a thread stands in a ring of stages in shared memory: producer and consumers of every ring walk it alike.
#pragma once

#include <cstdint>

namespace tensorfold::ops::cuda {

/// A stage, and the parity of the turn in which it is met.
struct RingPosition {
  int stage = 0;
  std::uint32_t phase = 0;
  __device__ __forceinline__ void advance(int stages) {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

}  // namespace tensorfold::ops::cuda
