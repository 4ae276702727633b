// The body of every ops_kernels_<path>.cpp: the shared kernels over the lanes16 header that the unit has included, and
// their table, in the namespace that the unit has defined as TF_OPS_KERNELS_PATH (avx2, avx512, avx512_bf16, neon: tools/check_kernel_symbols.py
// checks that such a unit defines nothing outside it).
#include "ops/cpu/kernels_math.inl"
//
#include "ops/cpu/kernels_rows.inl"
//
#if defined(TF_OPS_BF16_PAIRS)
#include "ops/cpu/attention_dot_bf16.inl"
#else
#include "ops/cpu/attention_dot_fma.inl"
#endif
//
#include "ops/cpu/kernels_attention.inl"
#include "ops/cpu/kernels_gated_delta.inl"

namespace tensorfold::ops::cpu::TF_OPS_KERNELS_PATH {

const OpsKernels kOpsKernels = {
    .rms_norm_row = rms_norm_row,
    .rms_norm_row_float = rms_norm_row_float,
    .rms_norm_add_row = rms_norm_add_row,
    .gated_silu = gated_silu,
    .gated_gelu = gated_gelu,
    .soft_cap = soft_cap,
    .block_convolve = block_convolve,
    .prepare_head = prepare_head,
    .pack_queries = pack_queries,
    .attention_open = attention_open,
    .attention_tile = attention_tile,
    .attention_close = attention_close,
    .attention_merge = attention_merge,
    .attention_finish = attention_finish,
    .delta_convolve = delta_convolve,
    .delta_normalise = delta_normalise,
    .delta_gates = delta_gates,
    .delta_chunk = delta_chunk,
    .delta_output = delta_output,
    .softmax = softmax,
    .add_scaled = add_scaled,
    .sigmoid = sigmoid_scalar,
    .transcendental = transcendental,
    .round_bf16 = round_bf16,
};

}  // namespace tensorfold::ops::cpu::TF_OPS_KERNELS_PATH
