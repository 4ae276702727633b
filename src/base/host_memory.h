// How much memory there is left to plan with. In base because backends answer the question and the engine asks it.
#pragma once

#include <cstdint>

namespace tensorfold {

/// Memory that is left for caches.
struct MemoryAvailable {
  std::uint64_t bytes = 0;
  bool is_shared = true;  // with the machine's other programs: a plan leaves them some
};

/// Memory that can be allocated without swapping: MemAvailable, and the control group's limit where there is one.
std::uint64_t host_memory_available();

}  // namespace tensorfold
