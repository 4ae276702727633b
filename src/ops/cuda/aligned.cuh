// Reading rows of floats four at a time where they are aligned for it, and asking whether they are.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorfold::ops::cuda {

inline bool is_aligned(const void* pointer, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

#if defined(__CUDACC__)

/// Elements first .. + 3 of a row of `width`, zeros beyond it; `vectors`: the row is 16-byte aligned.
__device__ __forceinline__ float4 load_four(const float* row, int first, int width, bool vectors) {
  if (vectors && first + 4 <= width) return *reinterpret_cast<const float4*>(row + first);
  float4 x = {0.0f, 0.0f, 0.0f, 0.0f};
  if (first < width) x.x = row[first];
  if (first + 1 < width) x.y = row[first + 1];
  if (first + 2 < width) x.z = row[first + 2];
  if (first + 3 < width) x.w = row[first + 3];
  return x;
}

#endif

}  // namespace tensorfold::ops::cuda
