// The kernels of wide_kernel.cuh by format, size of the token tile and mode. They are compiled in two files, so that two cores
// share the work.
#pragma once

#include <cuda.h>

#include "ops/cuda/linear/wide.h"

namespace tensorfold::ops::cuda {

struct WideParameters;
using WideKernel = void (*)(CUtensorMap, CUtensorMap, WideParameters);

/// Null when no checkpoint has the part's combination of bits and scales.
WideKernel find_window_kernel(const PackedPart& part, const WidePlan& plan);  // wide_windows.cu: tiles of 32 and 64 rows
WideKernel find_prompt_kernel(const PackedPart& part, const WidePlan& plan);  // prompt.cu: tiles of 128 and 192 rows

}  // namespace tensorfold::ops::cuda
