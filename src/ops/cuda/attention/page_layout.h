// How keys and values lie in pages and in a slot's tree area. One layout serves every kernel: a page is what the tensor
// cores read from shared memory, so that it gets there by plain contiguous copies.
//
// A page holds 64 consecutive positions:
//
//   [kv head][key | value][block of 64 dimensions][64 positions][64 dimensions]   bf16
//
// with head_dim padded to whole blocks by zeros. The 16-byte chunk c (0..7) of a position's 128 bytes in a block stands at
// c ^ (position & 7): the 128-byte swizzle of wgmma, which reads K as it is and V through the transposed descriptor;
// ldmatrix reads both without bank conflicts.
//
// A tree area holds the rows of one tree: [kv head][key | value][kTreeRowsMax rows][padded head_dim], plain.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/limits.h"
#include "ops/attention.h"

namespace tensorfold::ops::cuda {

constexpr int kTileKeys = limits::kKvPageTokens;
constexpr int kBlockDims = 64;                            // of a block
constexpr int kBlockRowBytes = kBlockDims * 2;            // one position in a block
constexpr int kBlockBytes = kTileKeys * kBlockRowBytes;   // 8 KiB
constexpr int kHeadBlocksMax = 4;
constexpr int kHeadDimMax = kHeadBlocksMax * kBlockDims;
static_assert(kTileKeys == 64);

constexpr int head_blocks(int head_dim) { return (head_dim + kBlockDims - 1) / kBlockDims; }

/// Keys, or values, of one kv head in a page.
constexpr std::size_t page_part_bytes(int blocks) { return static_cast<std::size_t>(blocks) * kBlockBytes; }
constexpr std::size_t page_head_bytes(int blocks) { return 2 * page_part_bytes(blocks); }

/// From the start of a page part to 16-byte chunk `chunk` (of the whole padded head) of position `key` of the page.
constexpr int page_chunk_offset(int key, int chunk) {
  return (chunk >> 3) * kBlockBytes + key * kBlockRowBytes + (((chunk & 7) ^ (key & 7)) << 4);
}

constexpr std::size_t tree_row_bytes(int blocks) { return static_cast<std::size_t>(blocks) * kBlockRowBytes; }
constexpr std::size_t tree_part_bytes(int blocks) { return limits::kTreeRowsMax * tree_row_bytes(blocks); }
constexpr std::size_t tree_head_bytes(int blocks) { return 2 * tree_part_bytes(blocks); }

// --- segments, counted in tiles

/// Tiles of the segment that holds `tile` (segment_end() of attention.h).
constexpr int segment_tiles(int tile) { return tile < 32 ? 2 : tile < 128 ? 4 : tile < 512 ? 8 : 16; }
/// Whether `tile` is the last one of its segment. Lengths divide the places where they change.
constexpr bool ends_segment(int tile) { return ((tile + 1) & (segment_tiles(tile) - 1)) == 0; }
/// How many segments end before the one that holds `key`.
constexpr int segment_ordinal(int key) {
  return key < 2048 ? key / 128 : key < 8192 ? 8 + key / 256 : key < 32768 ? 24 + key / 512 : 56 + key / 1024;
}

namespace layout_checks {
constexpr bool segments_agree() {
  int ordinal = 0;
  for (int tile = 0; tile < 1100; ++tile) {
    const bool ends = segment_end(tile * kTileKeys) == (tile + 1) * kTileKeys;
    if (ends != ends_segment(tile) || segment_ordinal(tile * kTileKeys) != ordinal) return false;
    if (ends) ++ordinal;
  }
  return true;
}
static_assert(segments_agree());
}  // namespace layout_checks

}  // namespace tensorfold::ops::cuda
