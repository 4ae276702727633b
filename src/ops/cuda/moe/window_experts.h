// The experts of few rows in one launch, from router logits to residual: what a decode step or a small window waits for is
// latency, so nothing here ends a kernel where a barrier does. Through mma.sync, on every GPU.
#pragma once

#include "ops/cuda/cuda_context.h"
#include "ops/cuda/linear/packed_linear.h"
#include "ops/cuda/moe/expert_plan.h"
#include "ops/elementwise.h"

namespace tensorfold::ops::cuda::experts {

constexpr int kWindowItemRows = 8;
constexpr int kWindowRoutedRowsMax = 16;  // rows that the launch routes by itself; more come with a plan

struct WindowExperts {
  PackedPart gate_up;      // paired halves
  PackedPart down;
  const std::uint16_t* x = nullptr;  // [rows, gate_up.columns] bf16
  ActivationKind kind = ActivationKind::kSilu;
  RoutingInputs routing;
  ExpertPlan plan;         // made, with items of kWindowItemRows; only memory for it where the launch routes
  CombineTarget target;
  /// The blocks of a shared expert that is stored like one of the stacks' (stored_alike); null: none that runs here.
  const std::uint8_t* shared_gate_up = nullptr;
  const std::uint8_t* shared_down = nullptr;
};

/// Whether a layer's blocks can stand among those of the other one's experts.
bool stored_alike(const PackedPart& one, const PackedPart& other);

/// Whether the launch routes these rows by itself.
bool window_experts_route(const RoutingInputs& routing);

/// Whether this path can take such a layer at all; with a shared expert only where the launch routes.
bool window_experts_fit(const CudaContext& context, const PackedPart& gate_up, const PackedPart& down,
                        const RoutingInputs& routing, bool shared);

void run_window_experts(CudaContext& context, const WindowExperts& experts);

}  // namespace tensorfold::ops::cuda::experts
