// A gate|up layer and its activation in one launch.
#pragma once

#include <cstdint>

#include "ops/cuda/cuda_context.h"
#include "ops/elementwise.h"
#include "ops/linear.h"

namespace tensorfold::ops::cuda {

/// out = bf16(act(gate) · up), [rows, N / 2], with gate|up = weight · x: the bits of linear() and gated_activation(). False,
/// and nothing queued: the layer isn't stored in pairs, or so many rows are better served by the two operations.
bool gated_linear(CudaContext& context, const GatedLinearParams& params);

}  // namespace tensorfold::ops::cuda
