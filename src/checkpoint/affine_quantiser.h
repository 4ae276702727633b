// Encoding MLX affine weights, to the bit as mlx.core.quantize does on a CPU: the counterpart of decode_row(), and
// apart from model/quantise.h, whose rule (a drafter's at load) is another. A group's scale takes the sign of the edge
// that is larger in magnitude and is stretched so that this edge and zero are met exactly; codes are taken with the
// unrounded scale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "checkpoint/affine.h"
#include "checkpoint/weight_format.h"

namespace tensorfold {

/// Whether the format has this width and group (bits 2, 3, 4, 5, 6, 8; groups 32, 64, 128).
bool affine_setting_exists(const AffineSetting& setting);

/// `value` in the format of a scalar (F32, F16 or BF16), nearest even, at `out`.
void store_scalar(WeightFormat format, float value, std::byte* out);

class AffineQuantiser {
 public:
  /// `columns` is a multiple of the group; `scale_format` is F32, F16 or BF16.
  AffineQuantiser(const AffineSetting& setting, WeightFormat scale_format, std::int64_t columns);

  std::size_t code_bytes() const { return code_bytes_; }    // of a row
  std::size_t scale_bytes() const { return scale_bytes_; }  // of a row's scales, and of its biases

  /// Encodes one row into code_bytes() of codes and scale_bytes() each of scales and biases. `decoded` (columns values)
  /// receives what a reader will see.
  void encode(const float* values, std::byte* codes, std::byte* scales, std::byte* biases, float* decoded);

 private:
  void encode_group(const float* values, std::byte* scale, std::byte* bias, float* decoded, std::uint8_t* codes) const;

  AffineSetting setting_;
  WeightFormat scale_format_;
  std::int64_t columns_;
  std::size_t code_bytes_, scale_bytes_, scalar_bytes_;
  std::vector<std::uint8_t> row_codes_;
};

}  // namespace tensorfold
