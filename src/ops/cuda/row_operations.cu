// Row operations.
#include "base/assert.h"
#include "ops/cuda/cuda_operations.h"

namespace tensorfold::ops::cuda {

void rms_norm(CudaContext&, const RmsNormParams&) { TF_ASSERT(!"not built yet"); throw 0; }
void rms_norm_add(CudaContext&, const RmsNormAddParams&) { TF_ASSERT(!"not built yet"); throw 0; }
void gated_activation(CudaContext&, const GatedActivationParams&) { TF_ASSERT(!"not built yet"); throw 0; }
void soft_cap(CudaContext&, const SoftCapParams&) { TF_ASSERT(!"not built yet"); throw 0; }
void round_rows(CudaContext&, const RoundRowsParams&) { TF_ASSERT(!"not built yet"); throw 0; }
void block_convolution(CudaContext&, const BlockConvolutionParams&) { TF_ASSERT(!"not built yet"); throw 0; }

}  // namespace tensorfold::ops::cuda
