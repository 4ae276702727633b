// The experts of many rows on Hopper: each expert's weights meet all its rows in one tile of wgmma. Four launches: routing and
// plan, gate and up, down, combination.
#pragma once

#include "ops/cuda/cuda_context.h"
#include "ops/cuda/linear/packed_linear.h"
#include "ops/cuda/moe/expert_plan.h"
#include "ops/elementwise.h"

namespace tensorfold::ops::cuda::experts {

struct GroupedExperts {
  PackedPart gate_up;   // paired halves
  PackedPart down;
  const std::uint16_t* x = nullptr;  // [rows, gate_up.columns] bf16
  ActivationKind kind = ActivationKind::kSilu;
  RoutingInputs routing;             // item_rows as set_grouped_item_rows() says
  ExpertPlan plan;
  CombineTarget target;
};

/// Whether this path can take such a layer at all.
bool grouped_experts_fit(const CudaContext& context, const PackedPart& gate_up, const PackedPart& down);

/// Sets the lengths of items for gate and up (list 0) and down (list 1).
void set_grouped_item_rows(const CudaContext& context, const PackedPart& gate_up, const PackedPart& down,
                           RoutingInputs& routing);

void run_grouped_experts(CudaContext& context, const GroupedExperts& experts);

}  // namespace tensorfold::ops::cuda::experts
