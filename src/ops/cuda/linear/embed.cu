// Embedding lookups: rows of a packed table, one weight a thread. A lookup reads a few rows a pass, so it takes the same blocks
// that the head multiplies with, and no kernel of its own kind.
#include "base/assert.h"
#include "ops/cuda/cuda_operations.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear/cuda_linear.h"
#include "ops/cuda/linear/packed_value.cuh"

namespace tensorfold::ops::cuda {
namespace {

constexpr int kThreads = 256;

/// Rows of `part` alone: tokens of other parts are left to their launches.
__global__ void __launch_bounds__(kThreads)
    embed_kernel(const __grid_constant__ PackedPart part, IdsRef tokens, float scale, float* out) {
  allow_next();
  wait_for_previous();
  const int column = blockIdx.y * kThreads + threadIdx.x;
  const int row = pass_ids(tokens)[blockIdx.x] - part.first_row;
  if (column >= part.columns || row < 0 || row >= part.rows) return;
  const float value = __bfloat162float(packed_value(part, row / kTileRows, row % kTileRows, column));
  out[static_cast<std::int64_t>(blockIdx.x) * part.columns + column] = value * scale;
}

}  // namespace

void embed(CudaContext& context, const EmbedParams& params) {
  if (params.rows == 0) return;
  TF_ASSERT(params.table != nullptr && params.tokens != nullptr && params.out != nullptr);
  const CudaLinear& table = cuda_linear(params.table);
  TF_ASSERT(table.experts() == 1);
  const IdsRef tokens = context.ids(params.tokens, params.rows);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(params.rows), static_cast<unsigned>((table.columns() + kThreads - 1) / kThreads));
  shape.block = dim3(kThreads);
  for (const PackedPart& part : table.parts()) {
    TF_ASSERT(!part.paired_halves);
    launch(context, "an embedding lookup", embed_kernel, shape, part, tokens, params.scale, params.out);
  }
}

}  // namespace tensorfold::ops::cuda
