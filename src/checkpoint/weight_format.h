// How one matrix is stored on disk, as plain data: what a backend needs to pack it and what `info` prints. It is apart
// from the readers so that ops/ can name formats without knowing files (formats.md sections 4 and 14).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tensorfold {

enum class WeightFormat : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kAffine,  // MLX affine: packed codes plus scales and biases per group (bits 2,3,4,5,6,8; group 32,64,128)
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};

/// "bf16", "affine", "q4_k", ...
const char* weight_format_name(WeightFormat format);

/// Elements along K and bytes of one block of a GGUF format; {1, element size} for scalar formats. kAffine has no
/// fixed block and is refused (TF_ASSERT).
struct BlockShape {
  int elements;
  int bytes;
};
BlockShape weight_format_block(WeightFormat format);

/// A matrix [rows, columns] (y = W x, columns = K) as it lies in the mapped file; nothing is owned or copied. An expert
/// stack [E, N, K] is one view with experts = E and rows = N; expert e's data follow expert e-1's, as do its scales.
struct WeightView {
  std::string name;  // for messages
  WeightFormat format = WeightFormat::kF32;
  std::int64_t experts = 1;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  const std::byte* data = nullptr;  // not necessarily aligned: use memcpy loads
  std::size_t data_bytes = 0;
  // kAffine only: scales and biases are [experts, rows, columns / group_size] of scale_format (F32, F16 or BF16).
  int bits = 0;
  int group_size = 0;
  const std::byte* scales = nullptr;
  const std::byte* biases = nullptr;
  WeightFormat scale_format = WeightFormat::kBF16;
};

/// Decodes logical row `row` of expert `expert` to fp32 (`columns` values): q·scale + bias by fmaf for affine and
/// GGUF affine-like blocks, products of block scales formed in fp32 first. This is the format's executable
/// specification; kernels round its result by to_bf16 (one-arithmetic.md, rule 2).
void decode_row(const WeightView& view, std::int64_t expert, std::int64_t row, float* out);

}  // namespace tensorfold
