// Routing, and the combination of the experts' outputs, as launches of their own: for every way to run the experts that
// isn't one launch from logits to residual.
#pragma once

#include "ops/cuda/cuda_context.h"
#include "ops/cuda/moe/expert_plan.h"

namespace tensorfold::ops::cuda::experts {

/// A plan's memory for these inputs, in Scratch::kPlan.
ExpertPlan reserve_plan(CudaContext& context, const RoutingInputs& inputs);

/// Fills `plan` in one launch.
void route(CudaContext& context, const RoutingInputs& inputs, const ExpertPlan& plan);

/// residual += outputs [rows · top_k, hidden] by slot, weighted, in slot order, the shared expert last. NaN where the row
/// has no experts.
void combine(CudaContext& context, const RoutingInputs& inputs, const ExpertPlan& plan, const CombineTarget& target,
             const float* outputs);

}  // namespace tensorfold::ops::cuda::experts
