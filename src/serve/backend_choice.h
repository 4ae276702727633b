// Which backend computes, from the names on a command line: the one place that knows what this build has and what this
// machine offers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ops/backend.h"
#include "ops/cuda/cuda_backend.h"

namespace tensorfold {

struct BackendChoice {
  std::string backend = "auto";   // "auto": a GPU where this build can use one, else the CPU; "cpu", "cuda", "reference"
  std::string rounding = "none";  // reference backend: "none" or "backend"
  int threads = 0;                // 0 = all cores
  int device = -1;                // GPU; -1: the first that can be used
};

/// Names that --backend takes in this build.
std::vector<std::string> backend_names();

/// The GPUs of this machine, usable or not. When there is none, `reason` says why (no driver, a build without CUDA ...).
std::vector<ops::CudaDevice> gpus(std::string& reason);

/// What a choice comes to, for people: "cuda (GPU 0: NVIDIA H200)". Throws as make_backend() does, but starts nothing.
std::string backend_title(const BackendChoice& choice);

bool runs_on_gpu(const BackendChoice& choice);

/// Throws Error that says what is missing. Environment, for tests and for finding faults: TENSORFOLD_GPU_MEMORY_GIB (most
/// GPU memory to take), TENSORFOLD_NO_GRAPHS (passes aren't captured), TENSORFOLD_CUDA_PATH=sm_80 (the kernels for
/// every GPU alone).
std::unique_ptr<ops::Backend> make_backend(const BackendChoice& choice);

}  // namespace tensorfold
