// The CUDA backend: the operations of backend.h on NVIDIA GPUs of compute capability 8.0 and newer. Everything else of this
// folder is private to it. The CUDA runtime is linked statically and finds the driver when it is first used, so a binary
// with this backend starts on a machine without a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/backend.h"

namespace tensorfold::ops {

struct CudaBackendOptions {
  int device = 0;
  bool graphs = true;           // replay passes as captured graphs
  bool hopper_paths = true;     // false: the kernels for every GPU, also on sm_90 (tests compare the two)
  bool pinned_buffers = false;  // buffers in host memory that the GPU reaches (tests look inside them)
  std::uint64_t memory_bytes_max = 0;  // most device memory to take; 0: what is free
};

struct CudaDevice {
  int index = 0;
  std::string name;             // "NVIDIA H200"
  int compute_capability = 0;   // 90 = 9.0
  std::size_t memory_bytes = 0;
  std::string unusable;         // why this build can't run on it; empty: it can
};

/// Devices that the driver shows; empty without driver or GPU (`reason` says which).
std::vector<CudaDevice> cuda_devices(std::string& reason);

/// Throws Error(kUnsupported) that says why when the device can't be used. One thread drives the backend.
std::unique_ptr<Backend> make_cuda_backend(const CudaBackendOptions& options = {});

}  // namespace tensorfold::ops
