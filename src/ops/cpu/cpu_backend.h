// The CPU backend: the operations of backend.h on AVX2, AVX-512, AMX or NEON, with the same bits on each
// (one-arithmetic.md, "The CPU backend"). Everything else of this folder is private to it.
#pragma once

#include <memory>
#include <string>

#include "ops/backend.h"

namespace tensorfold::ops {

struct CpuBackendOptions {
  int threads = 0;   // counting the calling thread; 0 = all cores this process may use
  std::string path;  // "amx", "avx512_bf16", "avx512", "avx2", "neon"; empty = TENSORFOLD_CPU_PATH, or the fastest that runs here
};

/// Throws Error(kUnsupported) when the path can't run here, Error(kInvalidArgument) when it or the thread count is
/// none. The backend is driven by one thread at a time.
std::unique_ptr<Backend> make_cpu_backend(const CpuBackendOptions& options = {});

}  // namespace tensorfold::ops
