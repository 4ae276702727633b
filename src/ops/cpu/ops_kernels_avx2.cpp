// The row, attention and recurrence kernels for avx2; see ops_kernels.h for why nothing else may be included here.
#include "ops/cpu/lanes16_avx2.h"
#include "ops/cpu/ops_kernels.h"

#define TF_OPS_KERNELS_PATH avx2
#include "ops/cpu/ops_kernels.inl"
