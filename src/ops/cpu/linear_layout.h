// The packed form of a linear layer's weights, and the task that a kernel is given. Plain data without functions,
// because translation units compiled for one instruction set include it (isa.cmake).
//
// Sixteen consecutive output rows form a panel: its codes, then its scales, padded to 64 bytes. Codes come in planes of
// 1, 2, 4 or 8 bits: 3 = 2+1 bits, 5 = 4+1, 6 = 4+2, and per block of 32 k a plane of p bits takes p groups of 64
// bytes. The paths want them in one of two orders, chosen when weights are packed; bytes are the same in number.
//
//   kRowLanes (AVX2, AVX-512 with and without bf16, NEON): a lane is an output row, so that k can ascend as the arithmetic demands. A group
//   is
//            16 dwords, one a row; element j of a dword (k ascending) is at bit p·j. bf16: dword = a pair of k.
//   kTiles   (AMX): a decoded block is a tile, 16 rows of 32 k. A group is 32 words, one a k, and a word holds 16 / p
//            rows, row j at bit p·j, so that one shift gives the 32 indices of a row's lookup. 6 bits are computed in
//            fp32, so there word 2i is k = i and word 2i + 1 is k = i + 16. 8 bits: [16 rows][32 bytes]; bf16: the
//            tile.
//
//   scales:  kPair*:    per group of k: scale[16], bias[16], as stored
//            kOffset:   per block: f16 d[16]; bias is -offset·d, exactly
//            kSuper4:   per 256 k: f16 d[16], f16 dmin[16], the three dwords of 6-bit scales and mins [3][16], as
//            stored kSuper6:   per 256 k: f16 d[16], int8 scale [16 sub-blocks of 16 k][16]; bias is -32·(d·scale),
//            exactly
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorfold::ops::cpu {

inline constexpr int kPanelRows = 16;
inline constexpr int kBlockColumns = 32;
inline constexpr int kBf16Bits = 16;  // PanelLayout::bits of unquantised weights

enum class ScaleKind : std::uint8_t { kNone, kPairF32, kPairF16, kPairBf16, kOffset, kSuper4, kSuper6 };

enum class CodeOrder : std::uint8_t { kRowLanes, kTiles };

struct PanelLayout {
  CodeOrder code_order = CodeOrder::kRowLanes;
  int bits = 0;
  ScaleKind scale_kind = ScaleKind::kNone;
  int group_blocks = 1;  // blocks of 32 k that share a scale group
  int group_bytes = 0;   // of a scale group
  float offset = 0.0f;
  std::int64_t blocks = 0;       // of 32 k
  std::int64_t codes_bytes = 0;  // of a panel
  std::int64_t panel_bytes = 0;
};

/// Consecutive panels of one part against all rows of x.
struct LinearTask {
  PanelLayout layout;
  const std::uint8_t* panels = nullptr;
  int panel_count = 0;
  int last_panel_rows = kPanelRows;  // output rows of the last panel that exist
  /// Some scale is so small or large that the flushing mode would change a weight: decode in the default mode.
  bool decode_in_default_mode = false;
  const void* x = nullptr;      // packed by LinearKernels::pack_x
  std::int64_t rows = 0;        // of the whole call
  std::int64_t first_unit = 0;  // the units of x that this task multiplies
  std::int64_t unit_count = 0;
  float* y = nullptr;  // first output column of the first panel
  std::int64_t y_stride = 0;
  const float* bias = nullptr;  // of the first panel, or null
  bool accumulate = false;
  std::byte* scratch = nullptr;  // scratch_bytes(rows), 64-byte aligned; used by nobody else meanwhile
};

/// One path's kernels. x is packed once per call, in x_units(rows) independent units.
struct LinearKernels {
  int panels_per_task;        // most that run() accepts with more than few_rows rows; with fewer there is no limit
  std::int64_t few_rows;      // up to so many rows run panel by panel, so that long tasks are best
  std::size_t x_cache_bytes;  // a task's part of x should not be larger, or 0
  std::size_t (*scratch_bytes)(std::int64_t rows);
  std::size_t (*packed_x_bytes)(std::int64_t rows, std::int64_t blocks);
  std::int64_t (*x_units)(std::int64_t rows);
  /// Packs unit `unit` of `rows` rows of `columns` bf16 values; row r is row row_index[r] of x when row_index is given.
  void (*pack_x)(const std::uint16_t* x, std::int64_t columns, const std::int32_t* row_index, std::int64_t rows,
                 std::int64_t blocks, std::int64_t unit, void* packed);
  void (*run)(const LinearTask& task);
};

namespace avx2 {
extern const LinearKernels kLinearKernels;
}
namespace avx512 {
extern const LinearKernels kLinearKernels;
}
namespace avx512_bf16 {
extern const LinearKernels kLinearKernels;
}
namespace amx {
extern const LinearKernels kLinearKernels;
}
namespace neon {
extern const LinearKernels kLinearKernels;
}

}  // namespace tensorfold::ops::cpu
