// Kernels for windows: up to 64 rows a tile.
#include "ops/cuda/linear/wide_kernel.cuh"
#include "ops/cuda/linear/wide_table.h"

namespace tensorfold::ops::cuda {

WideKernel find_window_kernel(const PackedPart& part, const WidePlan& plan) {
  WideKernel kernel = nullptr;
  visit_wide_format(part, [&]<typename F, ScaleKind kScales>() {
    if (plan.mode == SumMode::kSequential) {
      kernel = plan.tokens == 32 ? wide_kernel<F, kScales, 32, SumMode::kSequential> : wide_kernel<F, kScales, 64, SumMode::kSequential>;
    } else {
      TF_ASSERT(plan.mode == SumMode::kSplit);
      kernel = plan.tokens == 32 ? wide_kernel<F, kScales, 32, SumMode::kSplit> : wide_kernel<F, kScales, 64, SumMode::kSplit>;
    }
  });
  return kernel;
}

}  // namespace tensorfold::ops::cuda
