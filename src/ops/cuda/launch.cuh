// How every kernel of the folder is launched and begins: with programmatic dependent launch, so that its prologue and its
// prefetch of weights overlap the end of the kernel before it.
//
// The rule that keeps this safe: every thread of every kernel calls wait_for_previous() before it reads anything that an
// earlier kernel wrote, and before it writes anything at all. Weights, tables and constants may be read earlier; so may a pass's
// arrays (pass_data.h), because the launch after their fetch doesn't overlap it (CudaContext::separate_next_launch).
// A kernel that never waits breaks the chain for the one after it.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "ops/cuda/cuda_context.h"
#include "ops/cuda/cuda_error.h"

namespace tensorfold::ops::cuda {

struct LaunchShape {
  dim3 grid = 1, block = 1;
  std::size_t shared_bytes = 0;  // dynamic; beyond 48 KiB the attribute is set here
  int cluster = 0;               // CTAs a cluster (sm_90), one included; 0: launched without (no cluster instructions)
};

/// Launches on the context's stream; throws with `what` when that fails.
template <typename... Parameters, typename... Arguments>
void launch(CudaContext& context, const char* what, void (*kernel)(Parameters...), const LaunchShape& shape,
            Arguments&&... arguments) {
  if (shape.shared_bytes > kPlainSharedBytes) {
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shape.shared_bytes)),
          what);
  }
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (context.facts().compute_capability >= 90) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = context.take_overlap() ? 1 : 0;
    if (shape.cluster > 0) {
      attributes[count].id = cudaLaunchAttributeClusterDimension;
      attributes[count].val.clusterDim.x = static_cast<unsigned>(shape.cluster);
      attributes[count].val.clusterDim.y = 1;
      attributes[count++].val.clusterDim.z = 1;
    }
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = context.stream();
  config.attrs = attributes;
  config.numAttrs = count;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...), what);
}

/// Lets the next kernel start its prologue. Call it early: the next one still waits for this one's end.
__device__ __forceinline__ void allow_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// Returns when every earlier kernel has ended and its writes are visible.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace tensorfold::ops::cuda
