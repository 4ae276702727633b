// Kernels for prompts and the widest windows: 128 or 192 rows a tile.
#include "ops/cuda/linear/wide_kernel.cuh"
#include "ops/cuda/linear/wide_table.h"

namespace tensorfold::ops::cuda {

WideKernel find_prompt_kernel(const PackedPart& part, const WidePlan& plan) {
  WideKernel kernel = nullptr;
  visit_wide_format(part, [&]<typename F, ScaleKind kScales>() {
    if (plan.tokens == 192) {
      TF_ASSERT(plan.mode == SumMode::kSequential);
      kernel = wide_kernel<F, kScales, 192, SumMode::kSequential>;
    } else if (plan.mode == SumMode::kSequential) {
      kernel = wide_kernel<F, kScales, 128, SumMode::kSequential>;
    } else {
      kernel = plan.mode == SumMode::kTree ? wide_kernel<F, kScales, 128, SumMode::kTree> : wide_kernel<F, kScales, 128, SumMode::kSplit>;
    }
  });
  return kernel;
}

}  // namespace tensorfold::ops::cuda
