// The sampler's loops for the baseline instruction set, and the choice between the tables.
#include "engine/sampler_loops_body.h"

namespace tensorfold::sampling {

const SamplerLoops& sampler_loops_baseline() {
  static constexpr SamplerLoops kTable = kLoops;
  return kTable;
}

#if !defined(__x86_64__)
const SamplerLoops* sampler_loops_avx2() {
  return nullptr;
}
#endif

const SamplerLoops& sampler_loops() {
  static const SamplerLoops& best = sampler_loops_avx2() != nullptr ? *sampler_loops_avx2() : sampler_loops_baseline();
  return best;
}

}  // namespace tensorfold::sampling
