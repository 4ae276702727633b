// Linear layers on AMX tiles. Included inside the AMX unnamed namespace, after linear_kernels.h and
// linear_tile_decode.h.
//
// TDPBF16PS adds to each fp32 sum, for a tile of 32 k, the even and the odd products chained by fma into two
// temporaries that start at zero, then both: linear.h's order in one instruction. A panel's block of weights is the
// first operand (16 rows), up to 16 rows of x, a unit, are the second, and sums are [16 outputs][rows of x]. Which of
// the two operands holds the weights doesn't change a bit. Tiles ignore the thread's floating-point mode and always
// flush.
//
// Up to four panels go side by side: they share each tile of x, and a sum is added to only every fourth product, which
// hides the product's latency.

inline constexpr int kTileRows = 16;
inline constexpr int kTileBytes = 1024;
inline constexpr int kTileFloats = kTileBytes / 4;
inline constexpr int kTaskPanels = 4;
// With many rows of x: the blocks whose decoded tiles stay in the level-1 cache while all rows pass by.
inline constexpr int kChunkBlocks = 8;
// With few: how many tiles decoding runs ahead of the products, because a tile can't be loaded before what was stored
// to it has left the store buffer.
inline constexpr int kLeadTiles = 8;
inline constexpr std::int64_t kPrefetchBlocks = 4;
inline constexpr int kDecodedBytes = 4 * kLeadTiles * kTileBytes;
static_assert(kDecodedBytes >= kChunkBlocks * kTaskPanels * kTileBytes);

// x passes by once for every four panels, so it should come from the level-2 cache.
inline constexpr std::size_t kXCacheBytes = 3u << 19;

TF_INLINE std::int64_t tile_count(std::int64_t rows) {
  return (rows + kTileRows - 1) / kTileRows;
}
// With less than one tile of rows the tile is that much narrower, otherwise the last one is padded with zeros.
TF_INLINE std::int64_t rows_of_unit(std::int64_t rows) {
  return rows < kTileRows ? rows : kTileRows;
}
TF_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

std::size_t scratch_bytes(std::int64_t rows) {
  return kDecodedBytes + static_cast<std::size_t>(tile_count(rows)) * kTaskPanels * kTileBytes;
}

std::size_t packed_x_bytes(std::int64_t rows, std::int64_t blocks) {
  return static_cast<std::size_t>(tile_count(rows) * rows_of_unit(rows) * blocks) * 64;
}

std::int64_t x_units(std::int64_t rows) {
  return tile_count(rows);
}

// --- packing x -------------------------------------------------------------------------------------------------------

TF_INLINE void transpose_dwords(__m512i (&v)[16]) {
  __m512i t[16];
  unroll<0, 8>([&](auto i) TF_INLINE_LAMBDA {
    t[2 * i.value] = _mm512_unpacklo_epi32(v[2 * i.value], v[2 * i.value + 1]);
    t[2 * i.value + 1] = _mm512_unpackhi_epi32(v[2 * i.value], v[2 * i.value + 1]);
  });
  unroll<0, 4>([&](auto i) TF_INLINE_LAMBDA {
    constexpr int kAt = 4 * i.value;
    v[kAt] = _mm512_unpacklo_epi64(t[kAt], t[kAt + 2]);
    v[kAt + 1] = _mm512_unpackhi_epi64(t[kAt], t[kAt + 2]);
    v[kAt + 2] = _mm512_unpacklo_epi64(t[kAt + 1], t[kAt + 3]);
    v[kAt + 3] = _mm512_unpackhi_epi64(t[kAt + 1], t[kAt + 3]);
  });
  // v[4 i + j] holds columns j, j + 4, j + 8, j + 12 of rows 4 i to 4 i + 3.
  unroll<0, 4>([&](auto j) TF_INLINE_LAMBDA {
    constexpr int kAt = j.value;
    const __m512i low01 = _mm512_shuffle_i32x4(v[kAt], v[kAt + 4], 0x88);
    const __m512i low23 = _mm512_shuffle_i32x4(v[kAt + 8], v[kAt + 12], 0x88);
    const __m512i high01 = _mm512_shuffle_i32x4(v[kAt], v[kAt + 4], 0xdd);
    const __m512i high23 = _mm512_shuffle_i32x4(v[kAt + 8], v[kAt + 12], 0xdd);
    t[kAt] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    t[kAt + 8] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    t[kAt + 4] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    t[kAt + 12] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  });
  unroll<0, 16>([&](auto i) TF_INLINE_LAMBDA { v[i.value] = t[i.value]; });
}

// One block of a unit: [16 pairs of k][width rows], a pair being a dword. `valid` of the rows exist; of each, `columns`
// elements from `first` on, the rest being zero and never read from x.
void pack_x_block(const std::uint16_t* const* from, int valid, int width, std::int64_t first, std::int64_t columns,
                  std::uint8_t* out) {
  __m512i rows[kTileRows];
  const __mmask32 existing = columns >= kBlockColumns ? 0xffffffffu : (1u << columns) - 1;
  for (int row = 0; row < kTileRows; ++row) {
    rows[row] = row < valid ? _mm512_maskz_loadu_epi16(existing, from[row] + first) : _mm512_setzero_si512();
  }
  transpose_dwords(rows);
  const __mmask16 stored = static_cast<__mmask16>((1u << width) - 1);
  for (int pair = 0; pair < kTileRows; ++pair) _mm512_mask_storeu_epi32(out + pair * 4 * width, stored, rows[pair]);
}

// A unit is [block][16 pairs of k][row]. One row alone stays as it is.
void pack_x(const std::uint16_t* x, std::int64_t columns, const std::int32_t* row_index, std::int64_t rows,
            std::int64_t blocks, std::int64_t unit, void* packed) {
  const std::int64_t width = rows_of_unit(rows);
  std::uint8_t* out = static_cast<std::uint8_t*>(packed) + unit * blocks * width * 64;
  const std::uint16_t* from[kTileRows];
  const std::int64_t valid = smaller(width, rows - unit * kTileRows);
  for (std::int64_t t = 0; t < valid; ++t) {
    const std::int64_t row = unit * kTileRows + t;
    from[t] = x + (row_index == nullptr ? row : row_index[row]) * columns;
  }
  if (width == 1) {
    __builtin_memcpy(out, from[0], static_cast<std::size_t>(columns) * 2);
    __builtin_memset(out + columns * 2, 0, static_cast<std::size_t>(blocks * kBlockColumns - columns) * 2);
    return;
  }
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t first = block * kBlockColumns;
    pack_x_block(from, static_cast<int>(valid), static_cast<int>(width), first, columns - first,
                 out + block * width * 64);
  }
}

// --- tiles -----------------------------------------------------------------------------------------------------------

struct alignas(64) TileConfig {
  std::uint8_t palette, start_row, reserved[14];
  std::uint16_t row_bytes[16];
  std::uint8_t rows[16];
};

// Tiles 0 to 3 hold sums, 4, 5 and 7 weights, 6 x.
void configure_tiles(std::int64_t width) {
  TileConfig config;
  __builtin_memset(&config, 0, sizeof config);
  config.palette = 1;
  for (int tile = 0; tile < 8; ++tile) {
    const bool weights = tile == 4 || tile == 5 || tile == 7;
    config.row_bytes[tile] = static_cast<std::uint16_t>(weights ? 64 : 4 * width);
    config.rows[tile] = kTileRows;
  }
  _tile_loadconfig(&config);
}

// The tile intrinsics don't tell the compiler which memory they read.
TF_INLINE void order_memory() {
  asm volatile("" ::: "memory");
}

template <int kPanel>
TF_INLINE void multiply_panel(const std::uint8_t* tile) {
  if constexpr (kPanel == 0) {
    _tile_loadd(4, tile, 64);
    _tile_dpbf16ps(0, 4, 6);
  } else if constexpr (kPanel == 1) {
    _tile_loadd(5, tile, 64);
    _tile_dpbf16ps(1, 5, 6);
  } else if constexpr (kPanel == 2) {
    _tile_loadd(7, tile, 64);
    _tile_dpbf16ps(2, 7, 6);
  } else {
    _tile_loadd(4, tile, 64);
    _tile_dpbf16ps(3, 4, 6);
  }
}

template <int kPanels>
TF_INLINE void zero_sums() {
  _tile_zero(0);
  if constexpr (kPanels > 1) _tile_zero(1);
  if constexpr (kPanels > 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
}

template <int kPanels>
TF_INLINE void load_sums(const float* sums, std::int64_t row_bytes) {
  _tile_loadd(0, sums, row_bytes);
  if constexpr (kPanels > 1) _tile_loadd(1, sums + kTileFloats, row_bytes);
  if constexpr (kPanels > 2) {
    _tile_loadd(2, sums + 2 * kTileFloats, row_bytes);
    _tile_loadd(3, sums + 3 * kTileFloats, row_bytes);
  }
}

template <int kPanels>
TF_INLINE void store_sums(float* sums, std::int64_t row_bytes) {
  _tile_stored(0, sums, row_bytes);
  if constexpr (kPanels > 1) _tile_stored(1, sums + kTileFloats, row_bytes);
  if constexpr (kPanels > 2) {
    _tile_stored(2, sums + 2 * kTileFloats, row_bytes);
    _tile_stored(3, sums + 3 * kTileFloats, row_bytes);
  }
}

// One to four panels against units of x.
struct TileJob {
  const LinearTask* task;
  int first_panel;
  std::int64_t width;     // rows of x in a unit
  const std::uint8_t* x;  // the task's first unit
  std::int64_t x_unit_bytes;
  std::uint8_t* decoded;
  float* sums;  // [unit][kPanels][16][width, or 16 with more than one]
};

// Fetches what the products will need kPrefetchBlocks later, on to the panel that follows in this place: four streams
// at once, each a few KB long, are more than the processor's own prefetching keeps up with (measured: half the time;
// farther ahead gains nothing).
template <int kPanels, int kBlocks>
TF_INLINE void prefetch(const TileJob& job, int panel, std::int64_t block) {
  const PanelLayout& layout = job.task->layout;
  panel += job.first_panel;
  block += kPrefetchBlocks;
  if (block >= layout.blocks) {
    block -= layout.blocks;
    panel += kPanels;
  }
  const Panel source = panel_of(*job.task, panel);
  const std::uint8_t* codes = source.codes + block * 64 * layout.bits;
  for (int line = 0; line < layout.bits * kBlocks; ++line) __builtin_prefetch(codes + 64 * line);
  if (layout.scale_kind == ScaleKind::kNone) return;
  __builtin_prefetch(source.scales +
                     (block >> __builtin_ctz(static_cast<unsigned>(layout.group_blocks))) * layout.group_bytes);
}

TF_INLINE void decode(const TileJob& job, DecodeStep decode_step, int panel, std::int64_t block, std::uint8_t* tiles,
                      std::int64_t tile_step) {
  const LinearTask& task = *job.task;
  const FloatMode mode = task.decode_in_default_mode ? enter_default_mode() : FloatMode{};
  decode_step(task.layout, panel_of(task, job.first_panel + panel), block, tiles, tile_step);
  if (task.decode_in_default_mode) restore_mode(mode);
  order_memory();
}

// y of the unit's rows: sums are outputs by rows, y is rows by outputs.
template <int kPanels>
void finish_unit(const TileJob& job, float* sums, std::int64_t first_row, std::int64_t rows) {
  for (int panel = 0; panel < kPanels; ++panel, sums += kTileFloats) {
    if (job.width > 1) {
      __m512i tile[16];
      for (int i = 0; i < 16; ++i) tile[i] = _mm512_loadu_si512(sums + 16 * i);
      transpose_dwords(tile);
      for (int i = 0; i < 16; ++i) _mm512_storeu_si512(sums + 16 * i, tile[i]);
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      finish_row(*job.task, job.first_panel + panel, sums + row * kPanelRows, first_row + row);
    }
  }
}

TF_INLINE std::int64_t sum_row_bytes(std::int64_t width) {
  return width == 1 ? 4 : 64;
}

// --- one unit: sums stay in tiles, decoding and products take turns --------------------------------------------------

// Products kFirst to kFirst + kCount of a step, in the order of blocks, then panels.
template <int kPanels, int kFirst, int kCount>
TF_INLINE void multiply_some(const std::uint8_t* tiles, const std::uint8_t* x, std::int64_t width) {
  unroll<kFirst, kFirst + kCount>([&](auto i) TF_INLINE_LAMBDA {
    if constexpr (i.value % kPanels == 0) _tile_loadd(6, x + i.value / kPanels * (64 * width), 4 * width);
    multiply_panel<i.value % kPanels>(tiles + i.value * kTileBytes);
  });
}

// A step is the kBlocks blocks that share a scale group.
template <int kPanels, int kBlocks>
void multiply_decoded_unit(const TileJob& job, DecodeStep decode_step) {
  constexpr int kStepBytes = kPanels * kBlocks * kTileBytes;
  constexpr std::int64_t kLead = kPanels * kBlocks < kLeadTiles ? kLeadTiles / (kPanels * kBlocks) : 1;
  constexpr std::int64_t kSlots = 2 * kLead;
  static_assert(kSlots * kStepBytes <= kDecodedBytes);
  const std::int64_t steps = job.task->layout.blocks / kBlocks;
  const std::int64_t lead = smaller(kLead, steps);
  for (std::int64_t step = 0; step < lead; ++step) {
    for (int panel = 0; panel < kPanels; ++panel) {
      decode(job, decode_step, panel, step * kBlocks, job.decoded + step * kStepBytes + panel * kTileBytes,
             kPanels * kTileBytes);
    }
  }
  for (std::int64_t step = 0; step < steps; ++step) {
    const std::int64_t next = step + kLead;
    const std::uint8_t* tiles = job.decoded + step % kSlots * kStepBytes;
    const std::uint8_t* x = job.x + step * kBlocks * 64 * job.width;
    unroll<0, kPanels>([&](auto panel) TF_INLINE_LAMBDA {
      if (next < steps) {
        prefetch<kPanels, kBlocks>(job, panel.value, next * kBlocks);
        decode(job, decode_step, panel.value, next * kBlocks,
               job.decoded + next % kSlots * kStepBytes + panel.value * kTileBytes, kPanels * kTileBytes);
      }
      multiply_some<kPanels, panel.value * kBlocks, kBlocks>(tiles, x, job.width);
    });
  }
}

template <int kPanels>
void multiply_plain_unit(const TileJob& job) {
  const std::uint8_t* tiles[kPanels];
  for (int panel = 0; panel < kPanels; ++panel) tiles[panel] = panel_of(*job.task, job.first_panel + panel).codes;
  for (std::int64_t block = 0; block < job.task->layout.blocks; ++block) {
    _tile_loadd(6, job.x + block * 64 * job.width, 4 * job.width);
    unroll<0, kPanels>([&](auto panel)
                           TF_INLINE_LAMBDA { multiply_panel<panel.value>(tiles[panel.value] + block * kTileBytes); });
  }
}

template <int kPanels>
void run_one_unit(const TileJob& job) {
  const LinearTask& task = *job.task;
  zero_sums<kPanels>();
  const bool grouped = task.layout.scale_kind == ScaleKind::kPairF32 || task.layout.scale_kind == ScaleKind::kPairF16 ||
                       task.layout.scale_kind == ScaleKind::kPairBf16;
  if (task.layout.bits == kBf16Bits) {
    multiply_plain_unit<kPanels>(job);
  } else if (grouped && task.layout.group_blocks == 2) {
    multiply_decoded_unit<kPanels, 2>(job, decode_step_of<2>(task.layout.bits));
  } else if (grouped && task.layout.group_blocks == 4) {
    multiply_decoded_unit<kPanels, 4>(job, decode_step_of<4>(task.layout.bits));
  } else {
    multiply_decoded_unit<kPanels, 1>(job, decode_step_of<1>(task.layout.bits));
  }
  store_sums<kPanels>(job.sums, sum_row_bytes(job.width));
  order_memory();
  finish_unit<kPanels>(job, job.sums, 0, task.rows);
}

// --- more units: a chunk of k is decoded once for all of them, sums wait in scratch between chunks -------------------

template <int kPanels>
void multiply_chunk(const std::uint8_t* const* tiles, std::int64_t tile_step, const std::uint8_t* x,
                    std::int64_t blocks) {
  for (std::int64_t block = 0; block < blocks; ++block) {
    _tile_loadd(6, x + block * kTileBytes, 64);
    unroll<0, kPanels>([&](auto panel)
                           TF_INLINE_LAMBDA { multiply_panel<panel.value>(tiles[panel.value] + block * tile_step); });
  }
}

template <int kPanels>
void run_units(const TileJob& job) {
  const LinearTask& task = *job.task;
  const DecodeStep decode_step = decode_step_of<1>(task.layout.bits);
  for (std::int64_t first = 0; first < task.layout.blocks; first += kChunkBlocks) {
    const std::int64_t count = smaller(kChunkBlocks, task.layout.blocks - first);
    const std::uint8_t* tiles[kPanels];
    for (int panel = 0; panel < kPanels; ++panel) {
      if (decode_step == nullptr) {
        tiles[panel] = panel_of(task, job.first_panel + panel).codes + first * kTileBytes;
        continue;
      }
      std::uint8_t* decoded = job.decoded + panel * kChunkBlocks * kTileBytes;
      tiles[panel] = decoded;
      for (std::int64_t block = 0; block < count; ++block) {
        decode(job, decode_step, panel, first + block, decoded + block * kTileBytes, 0);
      }
    }
    for (std::int64_t unit = 0; unit < task.unit_count; ++unit) {
      float* sums = job.sums + unit * kPanels * kTileFloats;
      if (first == 0) {
        zero_sums<kPanels>();
      } else {
        load_sums<kPanels>(sums, 64);
      }
      multiply_chunk<kPanels>(tiles, kTileBytes, job.x + unit * job.x_unit_bytes + first * kTileBytes, count);
      store_sums<kPanels>(sums, 64);
    }
  }
  order_memory();
  for (std::int64_t unit = 0; unit < task.unit_count; ++unit) {
    const std::int64_t first_row = (task.first_unit + unit) * kTileRows;
    finish_unit<kPanels>(job, job.sums + unit * kPanels * kTileFloats, first_row,
                         smaller(kTileRows, task.rows - first_row));
  }
}

template <int kPanels>
void run_panels(const TileJob& job) {
  if (job.task->rows <= kTileRows) {
    run_one_unit<kPanels>(job);
  } else {
    run_units<kPanels>(job);
  }
}

void run(const LinearTask& task) {
  TileJob job;
  job.task = &task;
  job.width = rows_of_unit(task.rows);
  job.x_unit_bytes = task.layout.blocks * 64 * job.width;
  job.x = static_cast<const std::uint8_t*>(task.x) + task.first_unit * job.x_unit_bytes;
  job.decoded = reinterpret_cast<std::uint8_t*>(task.scratch);
  job.sums = reinterpret_cast<float*>(task.scratch + kDecodedBytes);
  configure_tiles(job.width);
  for (job.first_panel = 0; job.first_panel < task.panel_count;) {
    const int left = task.panel_count - job.first_panel;
    if (left >= 4) {
      run_panels<4>(job);
      job.first_panel += 4;
    } else if (left >= 2) {
      run_panels<2>(job);
      job.first_panel += 2;
    } else {
      run_panels<1>(job);
      job.first_panel += 1;
    }
  }
  _tile_release();
}
