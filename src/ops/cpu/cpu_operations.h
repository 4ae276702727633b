// The CPU backend's operations as free functions over its context, one file each; CpuBackend (cpu_backend.cpp) only
// forwards. Private to this folder. All expect the compute mode (ComputeModeScope) to be set.
#pragma once

#include "ops/backend.h"
#include "ops/cpu/cpu_context.h"

namespace tensorfold::ops::cpu {

void rms_norm(CpuContext& context, const RmsNormParams& params);
void rms_norm_add(CpuContext& context, const RmsNormAddParams& params);
void gated_activation(CpuContext& context, const GatedActivationParams& params);
void soft_cap(CpuContext& context, const SoftCapParams& params);
void round_rows(CpuContext& context, const RoundRowsParams& params);
void block_convolution(CpuContext& context, const BlockConvolutionParams& params);

std::size_t kv_page_bytes(const KvGeometry& geometry);
std::size_t kv_tree_bytes(const KvGeometry& geometry);
void attention_prepare(CpuContext& context, const AttentionPrepareParams& params);
void attention(CpuContext& context, const AttentionParams& params);
void attention_replay(CpuContext& context, const AttentionReplayParams& params);

std::size_t gated_delta_state_bytes(const GatedDeltaGeometry& geometry);
std::size_t gated_delta_window_row_bytes(const GatedDeltaGeometry& geometry);
void gated_delta(CpuContext& context, const GatedDeltaParams& params);

void moe(CpuContext& context, const MoeParams& params);

}  // namespace tensorfold::ops::cpu
