// Device memory: buffers, scratch and pinned staging. One owner, so that freeing anything that a captured graph may point to
// drops the graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>

#include "ops/backend.h"

namespace tensorfold::ops::cuda {

enum class MemoryPlace {
  kDevice,
  kPinnedHost,  // the GPU reads and writes host memory (tests look inside buffers)
};

/// Zeroed. Throws Error(kResourceExhausted) naming `purpose` and what is left. `on_free` runs before the memory goes.
std::unique_ptr<Buffer> allocate_buffer(MemoryPlace place, std::size_t bytes, const char* purpose,
                                        std::function<void()> on_free);

/// Host memory that the copy engines read without a detour; grows on demand, contents don't survive that.
class PinnedBytes {
 public:
  ~PinnedBytes();
  std::byte* reserve(std::size_t bytes);

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace tensorfold::ops::cuda
