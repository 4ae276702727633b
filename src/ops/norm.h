// Root-mean-square norms over rows of the fp32 residual stream.
//
// n(x) = x · (1 / sqrt(mean(x²) + epsilon)); out = n(x) · weight, rounded once to bf16 (families-a.md 0.4; the "+1" of
// zero-centred norms is folded into `weight` at load). The sum of squares uses 16 virtual lanes: element i goes to lane
// i mod 16, ascending, by fma; lanes fold 8, 4, 2, 1 (s[i] += s[i + 8] for i < 8, and so on). mean = sum · (1.0f / width);
// the inverse root is 1.0f / sqrtf(...), both correctly rounded; then (x · inverse) · weight in that order.
//
// CUDA: a row belongs to T threads (128 up to a width of 1,024, 256 up to 3,072, 512 up to 8,192, then 1,024); thread t adds the
// squares of elements 4·(t + j·T) .. + 3 for ascending j by fma; the 32 threads of a warp fold by butterfly 16, 8, 4, 2, 1, and
// warps are added in ascending order. The inverse root is rsqrt.approx of fma(sum, 1.0f / width, epsilon).
#pragma once

#include <cstdint>

#include "ops/types.h"

namespace tensorfold::ops {

struct RmsNormParams {
  const float* x = nullptr;       // [rows, width], row stride x_stride
  std::int64_t x_stride = 0;
  const float* weight = nullptr;  // [width], backend memory; null = no weight (families-a.md "N")
  float epsilon = 0.0f;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  Activation* out = nullptr;      // [rows, width], row stride out_stride
  /// Optional host array: row r of the call reads x row row_index[r] (the head runs on the rows that want logits).
  const std::int32_t* row_index = nullptr;
  std::int64_t out_stride = 0;    // elements between rows of `out`; 0 = width
  /// Optional [rows, width]: the same values before their rounding, for what drafters feed on. `out` may then be null.
  float* out_float = nullptr;
};

/// residual[r] += bf16-rounded norm of x[r] (Gemma's norms after the mixer and the feed-forward).
struct RmsNormAddParams {
  const float* x = nullptr;       // [rows, width]
  const float* weight = nullptr;
  float epsilon = 0.0f;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  float* residual = nullptr;      // [rows, width]
};

}  // namespace tensorfold::ops
