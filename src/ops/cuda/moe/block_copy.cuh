// How a warp asks for a packed block (packed_linear.h), for both rings of the experts' kernels.
#pragma once

#include <cstdint>

#include "ops/cuda/instructions.cuh"

namespace tensorfold::ops::cuda::experts {

/// Copies of a block's 16-byte pieces, by one warp; `policy` is the L2 cache's.
template <typename F>
__device__ __forceinline__ void copy_block(std::uint32_t to, const std::uint8_t* block, int block_bytes, std::uint64_t policy) {
  constexpr int kCodeBytes = F::kBits * 256, kScaleBytesMax = F::kBits == 16 ? 0 : 512;
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int run = 0; run < (kCodeBytes + kScaleBytesMax + 511) / 512; ++run) {
    const int offset = run * 512 + lane * 16;
    if ((run + 1) * 512 <= kCodeBytes || offset < block_bytes) copy_16(to + offset, block + offset, policy);
  }
}

}  // namespace tensorfold::ops::cuda::experts
