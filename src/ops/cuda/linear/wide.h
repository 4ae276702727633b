// Linear layers of more rows than a decode window, on Hopper GPUs: what the dispatcher of linear layers calls. How they are
// computed stands in wide_kernel.cuh; here is what to compute and the choice of how.
#pragma once

#include <cstdint>

#include "ops/cuda/linear/linear_call.h"

namespace tensorfold::ops::cuda {

/// Queues the part, for any number of rows; they pay from 17 on. False, and nothing queued, where these kernels don't go: GPUs
/// other than Hopper, columns that tensor copies can't address, rows of more than eight million outputs.
bool wide_linear(CudaContext& context, const PackedPart& part, const LinearCall& call);

enum class SumMode : std::int32_t { kSequential, kTree, kSplit };

/// A way to compute a part, with its estimated cost. All give the same bits.
struct WidePlan {
  SumMode mode = SumMode::kSequential;
  std::int32_t tokens = 0;       // rows of x in a tile of the output
  std::int32_t groups = 0;       // of 64 rows of the weights in a tile
  std::int32_t cluster = 1;      // CTAs that share activations: 1 or 2
  std::int32_t grid = 0;
  std::int32_t stages = 0, stage_bytes = 0;
  std::int32_t token_tiles = 0, items = 0, item_units = 0;
  double cost = 0;               // tensor-core cycles of the busiest multiprocessor
};

/// The plan for `rows` rows; false when there is none.
bool choose_wide_plan(const DeviceFacts& facts, const PackedPart& part, std::int64_t rows, WidePlan& plan);
/// Completes a plan whose mode, tokens, groups and cluster are set; false when it doesn't fit.
bool complete_wide_plan(const DeviceFacts& facts, const PackedPart& part, std::int64_t rows, WidePlan& plan);
/// Queues the part by a plan of the caller's choice.
void run_wide_plan(CudaContext& context, const PackedPart& part, const LinearCall& call, const WidePlan& plan);

}  // namespace tensorfold::ops::cuda
