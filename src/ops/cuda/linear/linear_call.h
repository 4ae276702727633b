// One linear layer on some rows, as the kernels of this folder are asked for it, and the ways to compute it. All give the
// same bits (one-arithmetic.md, rule 1); which one runs is linear.cu's choice and a matter of speed alone.
#pragma once

#include <cstdint>

#include "ops/cuda/cuda_context.h"
#include "ops/cuda/linear/packed_linear.h"
#include "ops/elementwise.h"
#include "ops/norm.h"

namespace tensorfold::ops::cuda {

struct LinearCall {
  const void* x = nullptr;         // bf16 [.., K]
  /// Not null: x isn't there yet, it is norm->out; for decode_linear() alone. It is written with keeps_norm.
  const RmsNormParams* norm = nullptr;
  bool keeps_norm = false;
  IdsRef row_index;                // without a header: row r reads x row r
  std::int32_t rows = 0;           // at least 1
  float* y = nullptr;              // [rows, N], row stride y_stride
  std::int64_t y_stride = 0;
  bool accumulate = false;
  /// Instead of y: bf16 [rows, N / 2] of act(gate) · up, for parts with paired_halves that cover their layer.
  void* gated = nullptr;
  ActivationKind kind = ActivationKind::kSilu;
};

/// Every format, shape and row count, on every GPU.
void portable_linear(CudaContext& context, const PackedPart& part, const LinearCall& call);

/// A way to run the decode kernel (decode_kernel.cuh). Zero: chosen from the shape. The last four choose among builds.
struct DecodePlan {
  int cluster = 0;        // CTAs that share a tile's segments: 1, 2, 4
  int slots = 0;          // tiles that a cluster works on at once, each by one warp a segment
  int buffers = 0;        // of a slot for sums that are handed over: 1 or 2
  int clusters = 0;       // in the grid
  int tiles_at_once = 0;  // that one warp works on side by side
  int stages = 0;         // of a warp's ring of weight blocks
  int ctas = 0;           // that fit a multiprocessor
  int warps = 0;          // at most, of a CTA
};
constexpr std::int32_t kDecodeRowsMax = 16;

/// Whether decode_linear() can run this norm as it reads its input, and gains by it.
bool decode_norms_inputs(const CudaContext& context, const RmsNormParams& norm);

/// Few rows on Hopper GPUs. False, and nothing queued: not this call, or `wanted` doesn't fit.
bool decode_linear(CudaContext& context, const PackedPart& part, const LinearCall& call, const DecodePlan& wanted = {});

}  // namespace tensorfold::ops::cuda
