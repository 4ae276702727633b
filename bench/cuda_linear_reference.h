// Device helpers of cuda_linear: a literal one-row product over weights that were decoded on the host, random packed weights for
// timing. Apart from the bench, so that it needs no CUDA compiler itself.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/linear/packed_linear.h"
#include "ops/elementwise.h"

namespace tensorfold::ops::cuda::bench {

/// A layer as the rule sees it: bf16 weights [rows][columns], order of segments, bias.
struct LiteralLayer {
  const void* weights = nullptr;
  std::int32_t rows = 0, columns = 0;
  std::int32_t segment_tree = 0;
  const float* bias = nullptr;
};

/// y[r] for each of `count` rows, one row at a time: mma.sync with the row as its only token, k16 steps ascending from zero in
/// each segment, segments added as one-arithmetic.md says. Row r reads x row x_rows[r].
void literal_product(const LiteralLayer& layer, const void* x, const std::int32_t* x_rows, int count, float* y,
                     std::int64_t y_stride, bool accumulate, cudaStream_t stream);

/// out[r][i] = bf16(act(y[r][i]) · y[r][width + i]).
void literal_gate(const float* y, std::int64_t y_stride, int rows, int width, ActivationKind kind, void* out,
                  cudaStream_t stream);

/// Fills `count` blocks at part.blocks with random codes and scales of a sensible size.
void fill_blocks(const PackedPart& part, std::int64_t count, std::uint32_t seed, cudaStream_t stream);

}  // namespace tensorfold::ops::cuda::bench
