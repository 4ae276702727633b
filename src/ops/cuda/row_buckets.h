// The row counts that passes are padded to, so that a round with one draft more or less replays the same graph. They lie
// close together where a row costs something, and at the widths of the linear kernels' tiles.
#pragma once

#include <cstdint>

namespace tensorfold::ops::cuda {

constexpr std::int64_t row_bucket(std::int64_t rows) {
  if (rows <= 8) return rows;
  if (rows <= 16) return (rows + 1) / 2 * 2;
  if (rows <= 32) return (rows + 3) / 4 * 4;
  if (rows <= 64) return (rows + 7) / 8 * 8;
  if (rows <= 128) return (rows + 15) / 16 * 16;
  return rows;  // prompts: not captured, and padding would cost
}

}  // namespace tensorfold::ops::cuda
