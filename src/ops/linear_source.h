// What a backend that packs linear layers needs of the checkpoint's matrices: whether a LinearSource is sound, and one
// stored row as codes or values, format by format, as formats.md 4 and 14 lay them out on disk. It is apart from the backends,
// which know where codes go and nothing about files.
#pragma once

#include <cstdint>

#include "ops/linear.h"

namespace tensorfold::ops {

/// Throws Error(kInvalidCheckpoint or kInvalidArgument) naming what doesn't fit.
void check_linear_source(const LinearSource& source);

/// Bytes of `columns` elements of one row, without affine scales.
std::int64_t stored_row_bytes(const WeightView& view);

/// Unsigned codes of the row's elements (Q8_0: value + 128), in k order. Quantised formats only.
void read_codes(const WeightView& view, const std::byte* row, std::uint8_t* codes);

/// Plain formats: to_bf16 of the row's elements.
void read_bf16(const WeightView& view, const std::byte* row, std::uint16_t* values);

}  // namespace tensorfold::ops
