// CUDA's error codes as this project's exceptions. Apart, so that every file of the folder reports a failure the same way:
// what was being done, what the driver said.
#pragma once

#include <cuda_runtime_api.h>

namespace tensorfold::ops::cuda {

/// Throws Error: kResourceExhausted when memory ran out, kInternal otherwise.
void check(cudaError_t status, const char* what);

}  // namespace tensorfold::ops::cuda
