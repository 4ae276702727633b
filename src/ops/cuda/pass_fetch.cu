// See pass_fetch.h.
#include "ops/cuda/pass_fetch.h"

#include "ops/cuda/cuda_error.h"

namespace tensorfold::ops::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kAhead = 4;  // chunks of a thread that are asked for at once
static_assert(kThreads <= kPassChunksMin);

/// Host memory, from there and not from a cache.
__device__ __forceinline__ uint4 load_from_host(const void* address) {
  return __ldcv(static_cast<const uint4*>(address));
}

/// One CTA.
__global__ void __launch_bounds__(kThreads) fetch_pass_kernel(const PassStaging* staged, uint4* to, std::uint32_t* fetched) {
  const auto* from = reinterpret_cast<const uint4*>(staged + 1);
  const int thread = static_cast<int>(threadIdx.x);
  const uint4 header = load_from_host(staged);
  const uint4 first = load_from_host(from + thread);  // asked for with the header: a way there and back is a microsecond
  const int chunks = static_cast<int>(header.x);
  if (thread < chunks) to[thread] = first;
#pragma unroll 1
  for (int begin = thread + kThreads; begin < chunks; begin += kAhead * kThreads) {
    uint4 ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (begin + i * kThreads < chunks) ahead[i] = load_from_host(from + begin + i * kThreads);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (begin + i * kThreads < chunks) to[begin + i * kThreads] = ahead[i];
    }
  }
  __syncthreads();  // all have what they read, or it couldn't have been stored
  if (thread == 0) *static_cast<volatile std::uint32_t*>(fetched) = header.y;
}

}  // namespace

void fetch_pass(cudaStream_t stream, const PassStaging* staged, void* to, std::uint32_t* fetched) {
  cudaLaunchConfig_t config = {};  // no programmatic launch: it waits for the pass before
  config.gridDim = 1;
  config.blockDim = kThreads;
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, fetch_pass_kernel, staged, static_cast<uint4*>(to), fetched), "fetching a pass's arrays");
}

}  // namespace tensorfold::ops::cuda
