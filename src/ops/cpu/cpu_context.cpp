#include "ops/cpu/cpu_context.h"

#include <cstdlib>
#include <new>

#include "base/error.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tensorfold::ops::cpu {

const OpsKernels& ops_kernels(CpuPath path) {
#if defined(__x86_64__)
  if (path == CpuPath::kAvx2) return avx2::kOpsKernels;
  return path == CpuPath::kAvx512 ? avx512::kOpsKernels : avx512_bf16::kOpsKernels;
#else
  TF_ASSERT(path == CpuPath::kNeon);
  return neon::kOpsKernels;
#endif
}

Scratch::~Scratch() {
  std::free(data_);
}

float* Scratch::floats(std::int64_t count) {
  if (count <= capacity_) return data_;
  // Half as much again, so that a slowly growing context doesn't allocate at every step.
  const std::int64_t wanted = (count + count / 2 + 15) / 16 * 16;
  std::free(data_);
  capacity_ = 0;
  data_ = static_cast<float*>(std::aligned_alloc(64, static_cast<std::size_t>(wanted) * sizeof(float)));
  if (data_ == nullptr) {
    fail(ErrorCode::kResourceExhausted,
         "Out of memory: {} MiB of working memory for the CPU backend. Lower --context or the number of lanes.",
         (static_cast<std::size_t>(wanted) * sizeof(float)) >> 20);
  }
  capacity_ = wanted;
  return data_;
}

CpuContext::CpuContext(CpuPath cpu_path, int threads)
    : path(cpu_path), kernels(ops_kernels(cpu_path)), pool(threads, [] { set_compute_thread_mode(); }) {}

namespace {

std::uint64_t thread_mode() {
#if defined(__x86_64__)
  return _mm_getcsr();
#else
  std::uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
#endif
}

void set_thread_mode(std::uint64_t mode) {
#if defined(__x86_64__)
  _mm_setcsr(static_cast<unsigned>(mode));
#else
  asm volatile("msr fpcr, %0" : : "r"(mode));
#endif
}

}  // namespace

ComputeModeScope::ComputeModeScope() : saved_(thread_mode()) {
  set_compute_thread_mode();
}

ComputeModeScope::~ComputeModeScope() {
  set_thread_mode(saved_);
}

}  // namespace tensorfold::ops::cpu
