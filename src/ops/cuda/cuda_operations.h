// The operations of the CUDA backend, one file each; parameters and arithmetic stand in the headers of ops/. All queue work
// on the context's stream and return; errors in parameters are TF_ASSERT.
#pragma once

#include <memory>

#include "ops/attention.h"
#include "ops/block_convolution.h"
#include "ops/cuda/cuda_context.h"
#include "ops/draw.h"
#include "ops/elementwise.h"
#include "ops/gated_delta.h"
#include "ops/linear.h"
#include "ops/moe.h"
#include "ops/norm.h"

namespace tensorfold::ops::cuda {

// linear/
std::unique_ptr<Linear> load_linear(CudaContext& context, const LinearSource& source);
/// Threads and staging memory of loads: while it is held, the next load finds them.
std::shared_ptr<void> weight_loader();
void linear(CudaContext& context, const LinearParams& params);
bool norms_inputs(const CudaContext& context, const Linear& weight, const RmsNormParams& norm);
void embed(CudaContext& context, const EmbedParams& params);
// moe/
void moe(CudaContext& context, const MoeParams& params);
bool moe_runs_shared(const CudaContext& context, const MoeParams& params);
// norm.cu, elementwise.cu
void rms_norm(CudaContext& context, const RmsNormParams& params);
void rms_norm_add(CudaContext& context, const RmsNormAddParams& params);
void gated_activation(CudaContext& context, const GatedActivationParams& params);
void soft_cap(CudaContext& context, const SoftCapParams& params);
void round_rows(CudaContext& context, const RoundRowsParams& params);
void block_convolution(CudaContext& context, const BlockConvolutionParams& params);
// gated_delta.cu
constexpr std::int32_t kGatedDeltaDimensionMax = 256;  // of k_dim and v_dim
std::size_t gated_delta_state_bytes(const GatedDeltaGeometry& geometry);
std::size_t gated_delta_window_row_bytes(const GatedDeltaGeometry& geometry);
std::size_t gated_delta_work_row_bytes(const GatedDeltaGeometry& geometry);
void gated_delta(CudaContext& context, const GatedDeltaParams& params);
// attention/
std::size_t kv_page_bytes(const KvGeometry& geometry);
std::size_t kv_tree_bytes(const KvGeometry& geometry);
void attention_prepare(CudaContext& context, const AttentionPrepareParams& params);
void attention(CudaContext& context, const AttentionParams& params);
void attention_replay(CudaContext& context, const AttentionReplayParams& params);
// draw.cu
bool can_draw(const SamplingRule& rule);
void draw(CudaContext& context, const DrawParams& params);

}  // namespace tensorfold::ops::cuda
