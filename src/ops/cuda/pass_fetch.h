// How a pass's arrays get from the host to the GPU: the pass's first kernel reads them from pinned memory. Part of a captured
// pass like any other, so a replayed pass costs the host one launch and no copy of its own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tensorfold::ops::cuda {

/// What lies in front of the arrays in pinned memory.
struct alignas(16) PassStaging {
  std::uint32_t chunks = 0;    // of 16 bytes, that follow
  std::uint32_t sequence = 0;  // written to `fetched` when they have been read
};
/// Chunks that may be read whether or not the pass has as many.
constexpr std::size_t kPassChunksMin = 1024;

/// Copies the arrays behind `staged` to `to` (device memory), once earlier kernels have ended. The launch after it must not
/// overlap it (CudaContext::separate_next_launch). `fetched`: pinned.
void fetch_pass(cudaStream_t stream, const PassStaging* staged, void* to, std::uint32_t* fetched);

}  // namespace tensorfold::ops::cuda
