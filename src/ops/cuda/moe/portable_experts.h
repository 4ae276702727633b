// The experts of any layer, in any format, on every GPU, one step a launch: what other paths can't take runs here, and tests
// compare them with it.
#pragma once

#include <span>

#include "ops/cuda/cuda_context.h"
#include "ops/cuda/linear/packed_linear.h"
#include "ops/cuda/moe/expert_plan.h"
#include "ops/elementwise.h"

namespace tensorfold::ops::cuda::experts {

constexpr int kPortableItemRows = 32;

struct PortableExperts {
  std::span<const PackedPart> gate_up;
  std::span<const PackedPart> down;
  const std::uint16_t* x = nullptr;  // [rows, hidden] bf16
  std::int32_t hidden = 0, width = 0;
  ActivationKind kind = ActivationKind::kSilu;
  RoutingInputs routing;
  ExpertPlan plan;                   // its first list: items of kPortableItemRows
  CombineTarget target;
};

void run_portable_experts(CudaContext& context, const PortableExperts& experts);

}  // namespace tensorfold::ops::cuda::experts
