// Tensor maps: how the copy engine finds boxes of weights and activations. Apart, because they are made by the driver, which is
// looked up at run time so that the binary starts without one.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "ops/cuda/linear/packed_linear.h"

namespace tensorfold::ops::cuda {

/// Boxes of one k block of `tiles` adjacent tiles, block after block: coordinates (0, 0, k block, tile). Tiles beyond the
/// part's are zeros.
CUtensorMap weight_map(const PackedPart& part, int tiles);

/// Boxes of 64 k of `box_rows` rows of bf16 [rows, columns], in the 128-byte swizzle: coordinates (k, row). What lies beyond
/// is zeros.
CUtensorMap activation_map(const void* x, std::int64_t rows, std::int64_t columns, int box_rows);

}  // namespace tensorfold::ops::cuda
