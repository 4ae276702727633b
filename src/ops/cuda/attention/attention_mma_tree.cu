// Windows among which are trees. See attention_mma.cuh.
#include "ops/cuda/attention/mma_choice.cuh"

namespace tensorfold::ops::cuda {

KernelChoice mma_tree_kernel(int blocks, int packed_rows, int shared_max) {
  return mma_choice<MmaMode::kTree>(blocks, packed_rows, shared_max);
}

}  // namespace tensorfold::ops::cuda
