// How linear layers lie in device memory. One layout for every kernel that reads weights (decode, windows, prompts, experts),
// so that a checkpoint is packed once; plain structs, shared by host and device.
//
// A matrix is cut into tiles of 16 output rows and blocks of 128 k: block (tile, k block) lies at
// (tile · k_blocks + k block) · block_bytes, so a tile's K-segment is contiguous. Rows and columns are padded with weights that
// are exactly zero. A block holds, for lane l of a warp (g = l / 4, t = l % 4) and each of its 8 k16 steps j, the eight codes that are
// the lane's A fragment of mma.m16n8k16 (register p: row g + 8·(p & 1), k = 16·j + 2·t + 8·(p >> 1), and k + 1):
//
//   Codes lie in planes, the widest first, low bits of a code in the first: 2, 4, 8 and 16 bits have one, 3 = 2 + 1, 5 = 4 + 1,
//   6 = 4 + 2. A plane of width w takes 256 · w bytes, first those of steps 0..3, then those of steps 4..7. In a half, a lane's
//   4 · w bytes are consecutive (w = 1, 2, 4); wider ones are cut into runs of 16 bytes, run r of lane l at r · 512 + l · 16.
//   w = 1, 2, 4  32-bit words for 4 / w steps each: bits [4·p + w·o, + w) of the low half-word are the even k of register p
//                of the word's step o, those of the high half-word the odd k.
//   w = 8        two words a step, registers 0 and 2, then 1 and 3: bytes are even k of the first register, even k of the
//                second, odd k of the first, odd k of the second.
//   w = 16       bf16 values: four words a step, register p. No scales.
//
// Then the scales, for g = 0..7 one after the other, so that a lane reads its own rows' at once:
//   kBf16Pair, kHalfPair, kFloatPair   [group in the block][row g, row g + 8] of (scale, bias) as bf16, fp16, fp32. bf16
//                                      scales are stored times 2^scale_exponent(), which is exact
//   kHalf                              [group of 32][row g, row g + 8] of scale (fp16); w = (q − zero_point) · scale
//   kScaleMin                          [group of 32][row g, row g + 8] of (scale, min) as bytes; then, again for g = 0..7,
//                                      [row g, row g + 8] of (d, dmin) as fp16; w = fmaf(q, d·scale, −(dmin·min))
//   kScale                             [group of 16][row g, row g + 8] of scale (int8); then, again for g = 0..7,
//                                      [row g, row g + 8] of d (fp16); w = (q − 32) · (d·scale)
// A weight reaches the product as bf16: for kBf16Pair by one fma.rn.bf16x2, otherwise to_bf16 of the fp32 value above, which
// equals to_bf16(decode_row()) (one-arithmetic.md, rule 2). Parts whose scales are so large or (fp32) so small that this
// would not hold are stored as bf16 values.
#pragma once

#include <cstdint>

namespace tensorfold::ops::cuda {

constexpr int kTileRows = 16;
constexpr int kBlockColumns = 128;
constexpr int kSegmentsMax = 8;

enum class ScaleKind : std::int32_t { kNone, kBf16Pair, kHalfPair, kFloatPair, kHalf, kScaleMin, kScale };

/// Consecutive output rows of one layer that are stored alike. All pointers are device memory.
struct PackedPart {
  const std::uint8_t* blocks = nullptr;
  std::int32_t bits = 0;          // 2, 3, 4, 5, 6, 8, 16
  ScaleKind scale_kind = ScaleKind::kNone;
  std::int32_t group_size = 0;    // columns of a scale: 16, 32, 64, 128
  std::int32_t group_shift = 0;   // its logarithm
  std::int32_t zero_point = 0;    // kHalf
  std::int32_t small_scales = 0;  // 1: kBf16Pair, 4 bits, groups of 64, every |scale| < 0.5 (scale_exponent)
  std::int32_t block_bytes = 0;   // a multiple of 16
  std::int32_t first_row = 0;     // of the layer
  std::int32_t rows = 0;          // N
  std::int32_t tiles = 0;         // ceil(rows / 16)
  std::int32_t columns = 0;       // K
  std::int32_t k_blocks = 0;      // ceil(columns / 128)
  std::int32_t segment_blocks = 0;  // k blocks of a segment: segment_length(K) / 128
  std::int32_t segments = 0;        // that hold columns, 1 to 8
  std::int32_t segment_tree = 0;    // 1: segments are added as a binary tree over eight, else one after the other
  /// Rows are gate|up and stored in pairs: tile i holds gate rows 8·i .. 8·i + 7, then up rows 8·i .. 8·i + 7, so that one
  /// thread's accumulators hold both.
  std::int32_t paired_halves = 0;
  std::int64_t expert_bytes = 0;  // of one expert of a stack; expert e's blocks start at blocks + e · expert_bytes
  const float* bias = nullptr;    // [rows] or null
};

/// What bf16 scales are multiplied by, as a power of two. Pairs of codes are used as bf16 numbers without a conversion
/// (dequantise.cuh): in units of 2^-133, or of 2^-129 where the codes have up to four bits and the row is one of g + 8, which
/// lie four bits higher; then times 2^127, but for those when small_scales.
constexpr std::int32_t scale_exponent(std::int32_t bits, bool small_scales, bool high_row = false) {
  if (bits > 4 || !high_row) return 6;
  return small_scales ? 129 : 2;
}

/// ceil(K / 1024) · 128: the length of a K-segment (one-arithmetic.md, rule 1).
constexpr std::int32_t segment_length(std::int32_t columns) {
  return (columns + 1023) / 1024 * 128;
}

/// Output row (within the part) of row `row` of tile `tile`.
#if defined(__CUDACC__)
__host__ __device__
#endif
inline std::int32_t packed_row(const PackedPart& part, std::int32_t tile, std::int32_t row) {
  if (!part.paired_halves) return tile * kTileRows + row;
  return (row < 8 ? 0 : part.rows / 2 - 8) + tile * 8 + row;
}

}  // namespace tensorfold::ops::cuda
