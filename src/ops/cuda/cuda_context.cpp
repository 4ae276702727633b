// See cuda_context.h.
#include "ops/cuda/cuda_context.h"

#include "ops/cuda/cuda_memory.h"

namespace tensorfold::ops::cuda {

std::unique_ptr<Buffer> CudaContext::allocate(std::size_t bytes, const char* purpose) {
  return std::make_shared<DeviceMemory>(facts().device, 0)->allocate(MemoryPlace::kDevice, bytes, purpose);
}

}  // namespace tensorfold::ops::cuda
