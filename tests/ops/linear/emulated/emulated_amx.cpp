// The AMX kernels as they are, on emulated instructions. This object defines amx::kLinearKernels before the linker
// looks into the library, so that it takes these.
#include "emulated_avx512.h"
#include "emulated_tiles.h"
// After the macros.
#include "ops/cpu/linear_amx.cpp"
