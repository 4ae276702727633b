// Linear layers on AMX tiles. Included inside the AMX unnamed namespace, after linear_kernels.h.
//
// TDPBF16PS adds to each fp32 sum, for a tile of 32 k, the even and the odd products chained by fma into two
// temporaries that start at zero, then both: linear.h's order in one instruction. Rows of x are the first operand (a
// unit is a tile of up to 16 rows), a panel's block of weights the second, in exactly the layout that panels have.
// Tiles ignore the thread's floating-point mode and always flush.

inline constexpr int kTileRows = 16;
inline constexpr int kTileBytes = 1024;
inline constexpr int kChunkBlocks = 16;
inline constexpr int kFewRowsChunkBlocks = 4;
inline constexpr int kTaskPanels = 4;
inline constexpr int kTileFloats = kTileRows * kPanelRows;

TF_INLINE std::int64_t tile_count(std::int64_t rows) {
  return (rows + kTileRows - 1) / kTileRows;
}
// With less than one tile of rows the tile is that much shorter, otherwise the last one is padded with zeros.
TF_INLINE std::int64_t rows_of_tile(std::int64_t rows) {
  return rows < kTileRows ? rows : kTileRows;
}

std::size_t scratch_bytes(std::int64_t rows) {
  const std::size_t weights = static_cast<std::size_t>(2 * kChunkBlocks) * kTileBytes;
  return weights + static_cast<std::size_t>(tile_count(rows)) * 2 * kTileBytes + kTaskPanels * kTileBytes;
}

std::size_t packed_x_bytes(std::int64_t rows, std::int64_t blocks) {
  return static_cast<std::size_t>(tile_count(rows) * rows_of_tile(rows) * blocks) * 64;
}

std::int64_t x_units(std::int64_t rows) {
  return tile_count(rows);
}

// A unit is [block][row of the tile][32 k].
void pack_x(const std::uint16_t* x, std::int64_t columns, const std::int32_t* row_index, std::int64_t rows,
            std::int64_t blocks, std::int64_t unit, void* packed) {
  const std::int64_t tile_rows = rows_of_tile(rows);
  std::uint8_t* out = static_cast<std::uint8_t*>(packed) + unit * blocks * tile_rows * 64;
  const std::int64_t tail = columns % kBlockColumns;
  const std::int64_t whole = columns / kBlockColumns;
  for (std::int64_t t = 0; t < tile_rows; ++t) {
    const std::int64_t r = unit * kTileRows + t;
    if (r >= rows) {
      for (std::int64_t b = 0; b < blocks; ++b) __builtin_memset(out + (b * tile_rows + t) * 64, 0, 64);
      continue;
    }
    const std::uint16_t* from = x + (row_index == nullptr ? r : row_index[r]) * columns;
    for (std::int64_t b = 0; b < whole; ++b) {
      __builtin_memcpy(out + (b * tile_rows + t) * 64, from + b * kBlockColumns, 64);
    }
    if (tail == 0) continue;
    __builtin_memset(out + (whole * tile_rows + t) * 64, 0, 64);
    __builtin_memcpy(out + (whole * tile_rows + t) * 64, from + whole * kBlockColumns,
                     static_cast<std::size_t>(tail) * 2);
  }
}

struct alignas(64) TileConfig {
  std::uint8_t palette, start_row, reserved[14];
  std::uint16_t row_bytes[16];
  std::uint8_t rows[16];
};

// Tiles 0..3 hold sums, 4 and 5 rows of x, 6 and 7 weights; with few rows of x also 5 holds weights.
void configure_tiles(std::int64_t x_rows, bool few_rows) {
  TileConfig config;
  __builtin_memset(&config, 0, sizeof config);
  config.palette = 1;
  for (int tile = 0; tile < 8; ++tile) {
    const bool weights = tile >= 6 || (few_rows && tile == 5);
    config.row_bytes[tile] = 64;
    config.rows[tile] = static_cast<std::uint8_t>(weights ? kTileRows : x_rows);
  }
  _tile_loadconfig(&config);
}

// The tile intrinsics don't tell the compiler which memory they read.
TF_INLINE void order_memory() {
  asm volatile("" ::: "memory");
}

// Blocks [first, first + count) of one panel as tiles: pairs of k interleaved, in bf16.
template <int kBits>
void decode_tiles(const PanelLayout& layout, const Panel& panel, std::int64_t first, std::int64_t count,
                  std::uint8_t* out) {
  for (std::int64_t block = 0; block < count; ++block) {
    std::uint8_t* tile = out + block * kTileBytes;
    F32x16 even = zero();
    decode_block<kBits>(layout, panel, first + block, [&](auto k, F32x16 weight) TF_INLINE_LAMBDA {
      if constexpr (k.value % 2 == 0) {
        even = weight;
      } else {
        _mm512_storeu_si512(tile + k.value / 2 * 64, round_pair(even, weight));
      }
    });
  }
}

// Where a panel's tiles of a chunk are: unquantised weights are tiles already.
const std::uint8_t* weight_tiles(const LinearTask& task, int panel, std::int64_t first, std::int64_t count,
                                 std::uint8_t* scratch) {
  const Panel source = panel_of(task, panel);
  switch (task.layout.bits) {
    case 2:
      decode_tiles<2>(task.layout, source, first, count, scratch);
      break;
    case 3:
      decode_tiles<3>(task.layout, source, first, count, scratch);
      break;
    case 4:
      decode_tiles<4>(task.layout, source, first, count, scratch);
      break;
    case 5:
      decode_tiles<5>(task.layout, source, first, count, scratch);
      break;
    case 6:
      decode_tiles<6>(task.layout, source, first, count, scratch);
      break;
    case 8:
      decode_tiles<8>(task.layout, source, first, count, scratch);
      break;
    default:
      return source.codes + first * kTileBytes;
  }
  return scratch;
}

void decode_chunk(const LinearTask& task, int first_panel, int panels, std::int64_t first, std::int64_t count,
                  std::uint8_t* scratch, const std::uint8_t** tiles) {
  const FloatMode mode = task.decode_in_default_mode ? enter_default_mode() : FloatMode{};
  for (int p = 0; p < panels; ++p) {
    tiles[p] = weight_tiles(task, first_panel + p, first, count, scratch + p * count * kTileBytes);
  }
  if (task.decode_in_default_mode) restore_mode(mode);
  order_memory();
}

// --- up to 16 rows: four panels at a time, their sums stay in tiles
// ---------------------------------------------------

template <int kPanels>
void multiply_few_rows(const std::uint8_t* const* weights, const std::uint8_t* x, std::int64_t x_tile_bytes,
                       std::int64_t blocks) {
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t at = block * kTileBytes;
    _tile_loadd(4, x + block * x_tile_bytes, 64);
    _tile_loadd(5, weights[0] + at, 64);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (kPanels > 1) {
      _tile_loadd(6, weights[1] + at, 64);
      _tile_dpbf16ps(1, 4, 6);
    }
    if constexpr (kPanels > 2) {
      _tile_loadd(7, weights[2] + at, 64);
      _tile_dpbf16ps(2, 4, 7);
    }
    if constexpr (kPanels > 3) {
      _tile_loadd(5, weights[3] + at, 64);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
}

void run_few_rows(const LinearTask& task, int first_panel, int panels) {
  std::uint8_t* scratch = reinterpret_cast<std::uint8_t*>(task.scratch);
  float* sums = reinterpret_cast<float*>(scratch + kTaskPanels * kFewRowsChunkBlocks * kTileBytes);
  const std::uint8_t* x = static_cast<const std::uint8_t*>(task.x);
  const std::int64_t x_tile_bytes = task.rows * 64;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (std::int64_t first = 0; first < task.layout.blocks; first += kFewRowsChunkBlocks) {
    const std::int64_t left = task.layout.blocks - first;
    const std::int64_t count = left < kFewRowsChunkBlocks ? left : kFewRowsChunkBlocks;
    const std::uint8_t* tiles[kTaskPanels];
    decode_chunk(task, first_panel, panels, first, count, scratch, tiles);
    const std::uint8_t* chunk_x = x + first * x_tile_bytes;
    switch (panels) {
      case 1:
        multiply_few_rows<1>(tiles, chunk_x, x_tile_bytes, count);
        break;
      case 2:
        multiply_few_rows<2>(tiles, chunk_x, x_tile_bytes, count);
        break;
      case 3:
        multiply_few_rows<3>(tiles, chunk_x, x_tile_bytes, count);
        break;
      default:
        multiply_few_rows<4>(tiles, chunk_x, x_tile_bytes, count);
    }
  }
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + kTileFloats, 64);
  _tile_stored(2, sums + 2 * kTileFloats, 64);
  _tile_stored(3, sums + 3 * kTileFloats, 64);
  order_memory();
  for (std::int64_t row = 0; row < task.rows; ++row) {
    for (int p = 0; p < panels; ++p) finish_row(task, first_panel + p, sums + p * kTileFloats + row * kPanelRows, row);
  }
}

// --- more rows: two panels, two tiles of rows at a time; sums wait in scratch between chunks -------------------------

template <int kTiles, int kPanels>
void multiply_chunk(const std::uint8_t* const* weights, const std::uint8_t* x, std::int64_t x_unit_bytes,
                    std::int64_t blocks, float* sums) {
  _tile_loadd(0, sums, 64);
  if constexpr (kPanels == 2) _tile_loadd(1, sums + kTileFloats, 64);
  if constexpr (kTiles == 2) _tile_loadd(2, sums + 2 * kTileFloats, 64);
  if constexpr (kTiles == 2 && kPanels == 2) _tile_loadd(3, sums + 3 * kTileFloats, 64);
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t at = block * kTileBytes;
    _tile_loadd(6, weights[0] + at, 64);
    _tile_loadd(4, x + at, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kPanels == 2) {
      _tile_loadd(7, weights[1] + at, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kTiles == 2) {
      _tile_loadd(5, x + x_unit_bytes + at, 64);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (kTiles == 2 && kPanels == 2) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, 64);
  if constexpr (kPanels == 2) _tile_stored(1, sums + kTileFloats, 64);
  if constexpr (kTiles == 2) _tile_stored(2, sums + 2 * kTileFloats, 64);
  if constexpr (kTiles == 2 && kPanels == 2) _tile_stored(3, sums + 3 * kTileFloats, 64);
}

void run_many_rows(const LinearTask& task, int first_panel, int panels) {
  std::uint8_t* scratch = reinterpret_cast<std::uint8_t*>(task.scratch);
  float* sums = reinterpret_cast<float*>(scratch + 2 * kChunkBlocks * kTileBytes);  // [unit][2 panels][16][16]
  const std::int64_t x_unit_bytes = task.layout.blocks * kTileBytes;
  const std::uint8_t* x = static_cast<const std::uint8_t*>(task.x) + task.first_unit * x_unit_bytes;
  for (std::int64_t i = 0; i < task.unit_count * 2 * kTileFloats; i += kPanelRows) store(sums + i, zero());
  for (std::int64_t first = 0; first < task.layout.blocks; first += kChunkBlocks) {
    const std::int64_t left = task.layout.blocks - first;
    const std::int64_t count = left < kChunkBlocks ? left : kChunkBlocks;
    const std::uint8_t* tiles[2];
    decode_chunk(task, first_panel, panels, first, count, scratch, tiles);
    for (std::int64_t unit = 0; unit < task.unit_count; unit += 2) {
      const std::uint8_t* unit_x = x + unit * x_unit_bytes + first * kTileBytes;
      float* unit_sums = sums + unit * 2 * kTileFloats;
      const bool pair = unit + 1 < task.unit_count;
      if (pair && panels == 2) multiply_chunk<2, 2>(tiles, unit_x, x_unit_bytes, count, unit_sums);
      if (pair && panels == 1) multiply_chunk<2, 1>(tiles, unit_x, x_unit_bytes, count, unit_sums);
      if (!pair && panels == 2) multiply_chunk<1, 2>(tiles, unit_x, x_unit_bytes, count, unit_sums);
      if (!pair && panels == 1) multiply_chunk<1, 1>(tiles, unit_x, x_unit_bytes, count, unit_sums);
    }
  }
  order_memory();
  const std::int64_t first_row = task.first_unit * kTileRows;
  const std::int64_t end = (task.first_unit + task.unit_count) * kTileRows;
  const std::int64_t last_row = end < task.rows ? end : task.rows;
  for (std::int64_t row = first_row; row < last_row; ++row) {
    const float* unit_sums = sums + (row - first_row) / kTileRows * 2 * kTileFloats;
    for (int p = 0; p < panels; ++p) {
      finish_row(task, first_panel + p, unit_sums + p * kTileFloats + row % kTileRows * kPanelRows, row);
    }
  }
}

void run(const LinearTask& task) {
  const bool few_rows = task.rows <= kTileRows;
  configure_tiles(rows_of_tile(task.rows), few_rows);
  const int step = few_rows ? kTaskPanels : 2;
  for (int panel = 0; panel < task.panel_count; panel += step) {
    const int left = task.panel_count - panel;
    const int panels = left < step ? left : step;
    if (few_rows) {
      run_few_rows(task, panel, panels);
    } else {
      run_many_rows(task, panel, panels);
    }
  }
  _tile_release();
}
