// The dynamic grouped convolution of DFlash2 drafters (families-a.md 4.3): two taps over the rows of one drafted block,
// whose weights are a learnt kernel plus one that the row's own input yields for each group of channels. It is an
// operation of its own because its taps end at the block: nothing of another lane or of the context enters.
//
// Per row t of a block and channel c (g = c / group_size):  sum = (base[0, c] + dynamic[t, 0, g]) · y[t, c];
// sum = fma(base[1, c] + dynamic[t, 1, g], y[t − 1, c], sum), the second tap left out in a block's first row. Then
// residual[t, c] += sum, or out[t, c] = sum rounded once to bf16.
#pragma once

#include <cstdint>

#include "ops/types.h"

namespace tensorfold::ops {

struct BlockConvolutionParams {
  const float* y = nullptr;        // [rows, width]
  const float* base = nullptr;     // [2 taps, width]
  const float* dynamic = nullptr;  // [rows, dynamic_stride], tap o's groups at o · width / group_size
  std::int64_t dynamic_stride = 0;
  std::int64_t rows = 0;
  std::int64_t width = 0;  // a multiple of group_size
  std::int64_t group_size = 0;
  const std::int32_t* block_starts = nullptr;  // host array: the first row of every block, ascending from 0
  std::int32_t block_count = 0;
  float* residual = nullptr;  // [rows, width], or null: then
  Activation* out = nullptr;  // [rows, width]
};

}  // namespace tensorfold::ops
