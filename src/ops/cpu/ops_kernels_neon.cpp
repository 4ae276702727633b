// The row, attention and recurrence kernels for neon; see ops_kernels.h for why nothing else may be included here.
#include "ops/cpu/lanes16_neon.h"
#include "ops/cpu/ops_kernels.h"

#define TF_OPS_KERNELS_PATH neon
#include "ops/cpu/ops_kernels.inl"
