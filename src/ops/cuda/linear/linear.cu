// Linear layers: which kernel computes a part. All give the same bits; the choice depends on row counts and shapes only.
#include "base/assert.h"
#include "ops/cuda/cuda_operations.h"
#include "ops/cuda/linear/cuda_linear.h"
#include "ops/cuda/linear/gated_linear.h"
#include "ops/cuda/linear/linear_call.h"
#include "ops/cuda/linear/wide.h"

namespace tensorfold::ops::cuda {
namespace {

constexpr std::int32_t kFewRows = 8;  // of a token tile of the portable kernel, which is then no slower

void linear_part(CudaContext& context, const PackedPart& part, const LinearCall& call) {
  if (decode_linear(context, part, call)) return;
  if (call.rows > kFewRows && wide_linear(context, part, call)) return;
  portable_linear(context, part, call);
}

}  // namespace

void linear(CudaContext& context, const LinearParams& params) {
  if (params.rows == 0) return;
  TF_ASSERT(params.weight != nullptr && params.x != nullptr && params.y != nullptr && params.rows > 0);
  const CudaLinear& weight = cuda_linear(params.weight);
  TF_ASSERT(weight.experts() == 1 && params.y_stride >= weight.rows());
  LinearCall call;
  call.x = params.x;
  call.row_index = context.ids(params.row_index, params.rows);
  call.rows = static_cast<std::int32_t>(params.rows);
  call.y = params.y;
  call.y_stride = params.y_stride;
  call.accumulate = params.accumulate;
  for (const PackedPart& part : weight.parts()) linear_part(context, part, call);
}

bool gated_linear(CudaContext& context, const Linear& weight, const Activation* x, std::int64_t rows, ActivationKind kind,
                  Activation* out) {
  const CudaLinear& layer = cuda_linear(&weight);
  if (layer.experts() != 1 || layer.parts().size() != 1 || !layer.parts().front().paired_halves) return false;
  if (rows > kDecodeRowsMax && !context.facts().hopper) return false;
  if (rows == 0) return true;
  LinearCall call;
  call.x = x;
  call.rows = static_cast<std::int32_t>(rows);
  call.gated = out;
  call.kind = kind;
  linear_part(context, layer.parts().front(), call);
  return true;
}

}  // namespace tensorfold::ops::cuda
