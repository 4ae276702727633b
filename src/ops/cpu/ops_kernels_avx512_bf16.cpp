// The row, attention and recurrence kernels for avx512_bf16; see ops_kernels.h for why nothing else may be included here.
#include "ops/cpu/lanes16_avx512.h"
#include "ops/cpu/ops_kernels.h"

#define TF_OPS_KERNELS_PATH avx512_bf16
#define TF_OPS_BF16_PAIRS
#include "ops/cpu/ops_kernels.inl"
