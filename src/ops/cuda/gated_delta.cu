// Gated DeltaNet.
#include "base/assert.h"
#include "ops/cuda/cuda_operations.h"

namespace tensorfold::ops::cuda {

std::size_t gated_delta_state_bytes(const GatedDeltaGeometry&) { TF_ASSERT(!"not built yet"); throw 0; }
std::size_t gated_delta_window_row_bytes(const GatedDeltaGeometry&) { TF_ASSERT(!"not built yet"); throw 0; }
void gated_delta(CudaContext&, const GatedDeltaParams&) { TF_ASSERT(!"not built yet"); throw 0; }
void gated_delta_settle(CudaContext&, const GatedDeltaSettleParams&) { TF_ASSERT(!"not built yet"); throw 0; }

}  // namespace tensorfold::ops::cuda
