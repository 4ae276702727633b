// What keeps a launch's code short. A pass of few rows launches kernels that run most of their code once, and is then bound by
// the fetch of instructions.
#pragma once

#include "ops/cuda/attention/divisor.h"

namespace tensorfold::ops::cuda {

/// The same address, but the compiler can't take it apart to build it anew for every load at a fixed distance from it.
template <typename T>
__device__ __forceinline__ T* whole(T* address) {
  asm("" : "+l"(address));
  return address;
}

}  // namespace tensorfold::ops::cuda
