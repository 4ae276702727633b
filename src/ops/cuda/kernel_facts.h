// What the CUDA runtime knows of a compiled kernel, asked once for each and remembered: launches happen thousands of times a
// second. Apart from launch.cuh, as only few launches depend on such facts.
#pragma once

#include <cstddef>

#include "ops/cuda/cuda_context.h"

namespace tensorfold::ops::cuda {

/// Registers of a thread. Warpgroups that trade registers (setmaxnreg) wait for ever when a launch brings fewer than they share
/// out, so who launches such a kernel compares.
int kernel_registers(const DeviceFacts& facts, const void* kernel);

/// CTAs of `threads` threads and `shared_bytes` of dynamic shared memory that a multiprocessor holds at once.
int resident_ctas(const DeviceFacts& facts, const void* kernel, int threads, std::size_t shared_bytes);

}  // namespace tensorfold::ops::cuda
