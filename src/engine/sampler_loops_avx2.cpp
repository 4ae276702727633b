// The sampler's loops compiled with AVX2 (see CMakeLists.txt); used only where the processor has it.
#if defined(__x86_64__)

#include "engine/sampler_loops_body.h"

namespace tensorfold::sampling {

const SamplerLoops* sampler_loops_avx2() {
  static constexpr SamplerLoops kTable = kLoops;
  return __builtin_cpu_supports("avx2") ? &kTable : nullptr;
}

}  // namespace tensorfold::sampling

#endif
