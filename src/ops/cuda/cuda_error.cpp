// See cuda_error.h.
#include "ops/cuda/cuda_error.h"

#include "base/error.h"

namespace tensorfold::ops::cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  const ErrorCode code = status == cudaErrorMemoryAllocation ? ErrorCode::kResourceExhausted : ErrorCode::kInternal;
  fail(code, "CUDA: {} failed: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

}  // namespace tensorfold::ops::cuda
