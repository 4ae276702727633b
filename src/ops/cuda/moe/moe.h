// The experts' part of a layer on weights as they lie in device memory, and the choice between the ways to run it. Below
// the operation's entry (moe.cu), so that a benchmark can hand in weights that no loader packed.
#pragma once

#include <span>

#include "ops/cuda/cuda_context.h"
#include "ops/cuda/linear/packed_linear.h"
#include "ops/moe.h"

namespace tensorfold::ops::cuda::experts {

enum class Path {
  kWindow,    // one launch, few rows (window_experts.h)
  kGrouped,   // wgmma, many rows (grouped_experts.h)
  kPortable,  // everything else (portable_experts.h)
};

struct ExpertWeights {
  std::span<const PackedPart> gate_up;
  std::span<const PackedPart> down;
  std::int32_t hidden = 0, width = 0;
  /// A shared expert's layers, where its output isn't given (MoeParams::shared_output) but computed here.
  const PackedPart* shared_gate_up = nullptr;
  const PackedPart* shared_down = nullptr;
};

/// The fastest path that can take these rows; equal for equal params.rows, so a captured pass may depend on it.
Path choose_path(const CudaContext& context, const ExpertWeights& weights, const MoeParams& params);
/// Whether the path can take these rows, and the shared expert that comes as layers.
bool path_fits(const CudaContext& context, const ExpertWeights& weights, const MoeParams& params, Path path);

/// params.gate_up and params.down aren't looked at.
void run_experts(CudaContext& context, const ExpertWeights& weights, const MoeParams& params, Path path);

}  // namespace tensorfold::ops::cuda::experts
