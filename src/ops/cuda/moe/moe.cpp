// Mixture of experts on the GPU: checks, the choice of a path, statistics for the host. Every path gives the same bits:
// an expert's outputs are linear layers by rule 1, and nothing depends on which rows share a tile.
#include "ops/cuda/moe/moe.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "base/error.h"
#include "ops/cuda/cuda_error.h"
#include "ops/cuda/cuda_operations.h"
#include "ops/cuda/linear/cuda_linear.h"
#include "ops/cuda/moe/expert_plan.h"
#include "ops/cuda/moe/grouped_experts.h"
#include "ops/cuda/moe/portable_experts.h"
#include "ops/cuda/moe/routing.h"
#include "ops/cuda/moe/window_experts.h"

namespace tensorfold::ops::cuda {
namespace experts {
namespace {

// Up to here one launch beats four and their wider tiles (measured: 204 us against 310 at 128 rows of 35B-A3B).
constexpr std::int64_t kWindowRowsMax = 128;
constexpr std::int64_t kWindowSlotsPerExpertMax = 4;

RoutingInputs routing_inputs(const CudaContext& context, const MoeParams& params) {
  RoutingInputs inputs;
  inputs.logits = params.router_logits;
  inputs.logits_stride = params.router_stride;
  inputs.pass = context.pass();
  inputs.rows = static_cast<std::int32_t>(params.rows);
  inputs.experts = params.experts;
  inputs.top_k = params.top_k;
  inputs.normalise = params.normalise_top_k ? 1 : 0;
  return inputs;
}

const std::uint16_t* activations(const MoeParams& params) {
  return reinterpret_cast<const std::uint16_t*>(params.x);
}

/// The experts that the plan names, in host memory; rows that have none list the first ids.
void copy_chosen(const CudaContext& context, const MoeParams& params, const ExpertPlan& plan) {
  const std::int64_t slots = params.rows * params.top_k;
  check(cudaMemcpyAsync(params.chosen_experts, plan.chosen, static_cast<std::size_t>(slots) * sizeof(std::int32_t),
                        cudaMemcpyDefault, context.stream()),
        "copying chosen experts");
  check(cudaStreamSynchronize(context.stream()), "choosing experts");
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    if (params.chosen_experts[slot] == kUnrouted) {
      params.chosen_experts[slot] = static_cast<std::int32_t>(slot % params.top_k);
    }
  }
}

}  // namespace

bool path_fits(const CudaContext& context, const ExpertWeights& weights, const MoeParams& params, Path path) {
  const bool shared = weights.shared_gate_up != nullptr;
  if (path == Path::kPortable) return !shared;
  if (weights.gate_up.size() != 1 || weights.down.size() != 1) return false;
  const PackedPart& gate_up = weights.gate_up.front();
  const PackedPart& down = weights.down.front();
  if (path == Path::kGrouped) return !shared && grouped_experts_fit(context, gate_up, down);
  if (shared && !(stored_alike(*weights.shared_gate_up, gate_up) && stored_alike(*weights.shared_down, down))) return false;
  return window_experts_fit(context, gate_up, down, routing_inputs(context, params), shared);
}

Path choose_path(const CudaContext& context, const ExpertWeights& weights, const MoeParams& params) {
  const bool window = path_fits(context, weights, params, Path::kWindow);
  const bool grouped = path_fits(context, weights, params, Path::kGrouped);
  const bool few = params.rows <= kWindowRowsMax && params.rows * params.top_k <= kWindowSlotsPerExpertMax * params.experts;
  if (window && (few || !grouped)) return Path::kWindow;
  return grouped ? Path::kGrouped : Path::kPortable;
}

void run_experts(CudaContext& context, const ExpertWeights& weights, const MoeParams& params, Path path) {
  RoutingInputs routing = routing_inputs(context, params);
  CombineTarget target;
  target.residual = params.residual;
  target.shared_output = params.shared_output;
  target.shared_gate = params.shared_gate;
  target.shared_gate_stride = params.shared_gate_stride;
  target.hidden = weights.hidden;
  ExpertPlan plan;
  if (path == Path::kWindow) {
    routing.item_rows[0] = kWindowItemRows;
    plan = reserve_plan(context, routing);
    if (!window_experts_route(routing)) route(context, routing, plan);
    const bool shared = weights.shared_gate_up != nullptr;
    run_window_experts(context, {weights.gate_up.front(), weights.down.front(), activations(params), params.kind, routing,
                                 plan, target, shared ? weights.shared_gate_up->blocks : nullptr,
                                 shared ? weights.shared_down->blocks : nullptr});
  } else if (path == Path::kGrouped) {
    set_grouped_item_rows(context, weights.gate_up.front(), weights.down.front(), routing);
    plan = reserve_plan(context, routing);
    route(context, routing, plan);
    run_grouped_experts(context, {weights.gate_up.front(), weights.down.front(), activations(params), params.kind, routing,
                                  plan, target});
  } else {
    routing.item_rows[0] = kPortableItemRows;
    plan = reserve_plan(context, routing);
    route(context, routing, plan);
    run_portable_experts(context, {weights.gate_up, weights.down, activations(params), weights.hidden, weights.width,
                                   params.kind, routing, plan, target});
  }
  if (params.chosen_experts != nullptr) copy_chosen(context, params, plan);
}

namespace {

ExpertWeights expert_weights(const MoeParams& params) {
  const CudaLinear& gate_up = cuda_linear(params.gate_up);
  const CudaLinear& down = cuda_linear(params.down);
  return {gate_up.parts(), down.parts(), static_cast<std::int32_t>(down.rows()), static_cast<std::int32_t>(down.columns())};
}

/// Adds the shared expert's layers; false: they are of several parts.
bool add_shared(const MoeParams& params, ExpertWeights& weights) {
  const auto& gate_up = cuda_linear(params.shared_gate_up).parts();
  const auto& down = cuda_linear(params.shared_down).parts();
  if (gate_up.size() != 1 || down.size() != 1) return false;
  weights.shared_gate_up = &gate_up.front();
  weights.shared_down = &down.front();
  return true;
}

}  // namespace
}  // namespace experts

bool moe_runs_shared(const CudaContext& context, const MoeParams& params) {
  experts::ExpertWeights weights = experts::expert_weights(params);
  const bool window = experts::choose_path(context, weights, params) == experts::Path::kWindow;
  return window && experts::add_shared(params, weights) &&
         experts::path_fits(context, weights, params, experts::Path::kWindow);
}

void moe(CudaContext& context, const MoeParams& params) {
  if (params.rows == 0) return;
  const CudaLinear& gate_up = cuda_linear(params.gate_up);
  const CudaLinear& down = cuda_linear(params.down);
  TF_ASSERT(params.top_k >= 1 && params.top_k <= params.experts && params.top_k <= kTopKMax);
  TF_ASSERT(gate_up.experts() == params.experts && down.experts() == params.experts);
  TF_ASSERT(down.rows() == gate_up.columns() && gate_up.rows() == 2 * down.columns());
  TF_ASSERT((params.shared_output == nullptr && params.shared_gate_up == nullptr) || params.shared_gate != nullptr);
  experts::ExpertWeights weights = experts::expert_weights(params);
  if (params.shared_output == nullptr && params.shared_gate_up != nullptr) {
    TF_ASSERT(moe_runs_shared(context, params));
    experts::add_shared(params, weights);
  }
  experts::run_experts(context, weights, params, experts::choose_path(context, weights, params));
}

}  // namespace tensorfold::ops::cuda
