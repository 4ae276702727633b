// Reading one stored row of a quantised or plain matrix into codes and scales, format by format, as formats.md 4 and 14
// lay them out on disk. It is apart from linear_pack.cpp, which knows where they go and nothing about files.
#pragma once

#include <cstdint>

#include "checkpoint/weight_format.h"

namespace tensorfold::ops::cpu {

/// Bytes of `columns` elements of one row, without affine scales.
std::int64_t stored_row_bytes(const WeightView& view);

/// Unsigned codes of the row's elements (Q8_0: value + 128), in k order. Quantised formats only.
void read_codes(const WeightView& view, const std::byte* row, std::uint8_t* codes);

/// Plain formats: to_bf16 of the row's elements.
void read_bf16(const WeightView& view, const std::byte* row, std::uint16_t* values);

}  // namespace tensorfold::ops::cpu
