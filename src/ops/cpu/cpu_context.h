// What the operations of the CPU backend share: the threads, the kernel table of the chosen path, working memory that
// only grows, and the floating-point mode of the calling thread while an operation runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/thread_pool.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/ops_kernels.h"
#include "ops/types.h"

namespace tensorfold::ops::cpu {

/// The table of `path`; AMX runs the kernels of AVX-512 with bf16 here.
const OpsKernels& ops_kernels(CpuPath path);

/// Working memory, 64-byte aligned, contents undefined after it grows. Throws Error(kResourceExhausted).
class Scratch {
 public:
  Scratch() = default;
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  float* floats(std::int64_t count);

 private:
  float* data_ = nullptr;
  std::int64_t capacity_ = 0;
};

struct CpuContext {
  CpuContext(CpuPath cpu_path, int threads);
  CpuPath path;
  const OpsKernels& kernels;
  ThreadPool pool;
  Scratch thread_scratch;  // cut into equal parts, one a thread, within one operation
  Scratch shared_scratch;  // results that cross from one loop of an operation to the next
  Scratch expert_scratch;
};

/// Denormals are flushed while this lives, then the thread gets its own mode back: the engine's thread also samples.
class ComputeModeScope {
 public:
  ComputeModeScope();
  ~ComputeModeScope();
  ComputeModeScope(const ComputeModeScope&) = delete;
  ComputeModeScope& operator=(const ComputeModeScope&) = delete;

 private:
  std::uint64_t saved_;
};

/// Work (in units of about one vector instruction) below which waking the threads costs more than it saves.
constexpr std::int64_t kParallelWorkMin = 16'384;

/// Calls body(item, thread) for every item, on this thread alone when `work` in total is small.
template <typename Body>
void run_items(CpuContext& context, std::int64_t items, std::int64_t work, Body&& body) {
  if (work < kParallelWorkMin || items == 1 || context.pool.thread_count() == 1) {
    for (std::int64_t item = 0; item < items; ++item) body(item, 0);
    return;
  }
  // std::ref keeps the closure out of the heap.
  context.pool.parallel_for(items, std::ref(body));
}

inline const std::uint16_t* bf16_of(const Activation* activations) {
  return reinterpret_cast<const std::uint16_t*>(activations);
}
inline std::uint16_t* bf16_of(Activation* activations) {
  return reinterpret_cast<std::uint16_t*>(activations);
}

}  // namespace tensorfold::ops::cpu
