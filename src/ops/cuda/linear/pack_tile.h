// The host's side of packed_linear.h: one tile of 16 rows from stored rows to blocks. Apart from the loader, which knows
// threads, staging and uploads and nothing of bits.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ops/cuda/linear/packed_linear.h"
#include "ops/linear.h"

namespace tensorfold::ops::cuda {

/// How a matrix is stored on the device. `values`: as bf16, whatever the file has.
struct PackedStorage {
  std::int32_t bits = 0;
  ScaleKind scale_kind = ScaleKind::kNone;
  std::int32_t group_size = 0;
  std::int32_t zero_point = 0;
  bool operator==(const PackedStorage&) const = default;
};
PackedStorage packed_storage(const WeightView& view);
std::int32_t packed_block_bytes(const PackedStorage& storage);

/// What the scales of some rows of an affine matrix say about how it may be stored.
struct ScaleRange {
  bool small = true;    // every |scale| < 0.5
  bool extreme = false;  // a finite scale beyond 2^100, or an fp32 scale or bias, not zero, below 2^-100
  void join(const ScaleRange& other) {
    small = small && other.small;
    extreme = extreme || other.extreme;
  }
};
ScaleRange scale_range(const WeightView& view, std::int64_t first_row, std::int64_t row_count);

/// A row of a tile: where it is stored; null view: padding, exactly zero.
struct TileRow {
  const WeightView* view = nullptr;
  std::int64_t stored_row = 0;  // counted over experts
};

/// Packs tiles of one part; keeps the memory that it works in.
class TilePacker {
 public:
  /// `out`: part.k_blocks · part.block_bytes.
  void pack(const PackedPart& part, const std::array<TileRow, kTileRows>& rows, std::uint8_t* out);

 private:
  void pack_values(const PackedPart& part, const std::array<TileRow, kTileRows>& rows, std::uint8_t* out);
  void pack_codes(const PackedPart& part, const std::array<TileRow, kTileRows>& rows, std::uint8_t* out);

  std::vector<std::uint8_t> codes_;    // [16][k_blocks · 128]
  std::vector<std::uint16_t> values_;  // the same for bf16
};

/// The weights of a row as the product sees them: one rounding to bf16 of q·scale + bias where scales and biases are bf16,
/// to_bf16(decode_row()) elsewhere.
void packed_row_values(const WeightView& view, std::int64_t expert, std::int64_t row, std::uint16_t* values);

}  // namespace tensorfold::ops::cuda
