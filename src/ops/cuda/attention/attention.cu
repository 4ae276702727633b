// Attention.
#include "base/assert.h"
#include "ops/cuda/cuda_operations.h"

namespace tensorfold::ops::cuda {

std::size_t kv_page_bytes(const KvGeometry&) { TF_ASSERT(!"not built yet"); throw 0; }
std::size_t kv_tree_bytes(const KvGeometry&) { TF_ASSERT(!"not built yet"); throw 0; }
void attention_prepare(CudaContext&, const AttentionPrepareParams&) { TF_ASSERT(!"not built yet"); throw 0; }
void attention(CudaContext&, const AttentionParams&) { TF_ASSERT(!"not built yet"); throw 0; }
void attention_replay(CudaContext&, const AttentionReplayParams&) { TF_ASSERT(!"not built yet"); throw 0; }

}  // namespace tensorfold::ops::cuda
