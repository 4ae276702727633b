// Prompts. See attention_mma.cuh.
#include "ops/cuda/attention/mma_choice.cuh"

namespace tensorfold::ops::cuda {

KernelChoice mma_prompt_kernel(int blocks, int shared_max) {
  return mma_choice<MmaMode::kPrompt>(blocks, kMmaWarpsMax * kFragmentRows, shared_max);
}

}  // namespace tensorfold::ops::cuda
