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
  TF_ASSERT(call.gated == nullptr || !call.accumulate);  // kernels look at what y holds
  if (decode_linear(context, part, call)) return;
  if (call.norm != nullptr) {
    // It didn't fit with its norm: x has to be there. Parts that follow may norm it again, to the same bits.
    rms_norm(context, *call.norm);
    LinearCall plain = call;
    plain.norm = nullptr;
    return linear_part(context, part, plain);
  }
  if (call.rows > kFewRows && wide_linear(context, part, call)) return;
  portable_linear(context, part, call);
}

}  // namespace

bool norms_inputs(const CudaContext& context, const Linear& weight, const RmsNormParams& norm) {
  return weight.experts() == 1 && weight.columns() == norm.width && decode_norms_inputs(context, norm);
}

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
  // Every CTA reads the norm's rows whole, so none may write there.
  TF_ASSERT(params.norm == nullptr ||
            (params.norm->rows == params.rows && params.row_index == nullptr && !params.accumulate && params.y != params.norm->x));
  call.norm = params.norm;
  for (const PackedPart& part : weight.parts()) {
    call.keeps_norm = params.keeps_norm && &part == &weight.parts().back();
    linear_part(context, part, call);
  }
}

bool gated_linear(CudaContext& context, const GatedLinearParams& params) {
  const CudaLinear& layer = cuda_linear(params.weight);
  if (layer.experts() != 1 || layer.parts().size() != 1 || !layer.parts().front().paired_halves) return false;
  if (params.rows > kDecodeRowsMax && !context.facts().hopper) return false;
  if (params.rows == 0) return true;
  LinearCall call;
  call.x = params.x;
  call.rows = static_cast<std::int32_t>(params.rows);
  call.gated = params.out;
  call.kind = params.kind;
  call.norm = params.norm;
  linear_part(context, layer.parts().front(), call);
  return true;
}

}  // namespace tensorfold::ops::cuda
