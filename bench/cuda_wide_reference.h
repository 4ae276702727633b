// Device helpers of cuda_wide: random packed weights, a literal one-row product, counts of differing bits. Apart from the
// bench, so that it needs no CUDA compiler itself.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/linear/packed_linear.h"
#include "ops/elementwise.h"

namespace tensorfold::ops::cuda::bench {

/// Fills `count` blocks at part.blocks with random codes and scales of a sensible size.
void fill_blocks(const PackedPart& part, std::int64_t count, std::uint32_t seed, cudaStream_t stream);
/// bf16 numbers in (-1, 1), about one in a hundred of them twelve times that.
void fill_activations(void* x, std::int64_t count, std::uint32_t seed, cudaStream_t stream);
void fill_floats(float* y, std::int64_t count, std::uint32_t seed, cudaStream_t stream);

/// y[i][0 .. part.rows) for each of `count` rows, one row at a time: mma.sync with the row as its only token, the segments
/// added as the rule says, bias and accumulate as linear.h says. Row i reads x row rows[i] and writes y row rows[i].
void literal_product(const PackedPart& part, const void* x, const std::int32_t* rows, int count, float* y, std::int64_t y_stride,
                     bool accumulate, cudaStream_t stream);

/// out[rows[i]] = bf16(act(gate) · up) of y's rows, gate|up being two halves of `width`.
void literal_gate(const float* y, std::int64_t y_stride, const std::int32_t* rows, int count, std::int64_t width, ActivationKind kind,
                  void* out, cudaStream_t stream);

struct Difference {
  unsigned long long count = 0;
  long long first = 0;  // row · columns + column of some differing element
};
/// Compares rows rows[i] of a and b, `columns` floats each, bit by bit.
void count_differences(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride, const std::int32_t* rows,
                       int count, std::int64_t columns, Difference* difference, cudaStream_t stream);
/// Counts elements of [from, to) of each row that are not the poison 0xffffffff.
void count_unpoisoned(const float* y, std::int64_t stride, int rows, std::int64_t from, std::int64_t to, Difference* difference,
                      cudaStream_t stream);
/// to[r][c] = bf16(from[r][c] · scale): the next layer's input.
void to_activations(const float* from, std::int64_t from_stride, void* to, std::int64_t rows, std::int64_t columns, float scale,
                    cudaStream_t stream);

}  // namespace tensorfold::ops::cuda::bench
