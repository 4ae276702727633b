// How a task's rows and panels are cut, whatever multiplies them (linear_fma.h, linear_bf16_dot.h). Included inside an
// instruction set's unnamed namespace, after one of these, which define the decoded form of weights and x, and run_chain.
//
// Up to kDirectTokens rows: dot_panel, straight from the codes. More: a chunk of k of a few panels is decoded once into the
// level-1 cache and multiplied with blocks of up to kMicroTokens rows; the running sums of all rows stay in scratch between chunks, in fp32, so that
// cutting k into chunks changes nothing.

inline constexpr int kTaskPanels = 2;
// Up to so many rows run panel by panel in long tasks, which keep prefetching going.
inline constexpr std::int64_t kFewRows = kDirectTokens > 1 ? 16 : 1;

// Rows are cut into blocks of nearly equal size, so that no block is too narrow to hide the latency of its chains.
struct TokenBlocks {
  std::int64_t count, small, larger_blocks;
};
TF_INLINE TokenBlocks token_blocks(std::int64_t rows) {
  const std::int64_t count = (rows + kMicroTokens - 1) / kMicroTokens;
  return {count, rows / count, rows % count};
}
TF_INLINE std::int64_t block_start(const TokenBlocks& blocks, std::int64_t index) {
  return index * blocks.small + (index < blocks.larger_blocks ? index : blocks.larger_blocks);
}

std::size_t scratch_bytes(std::int64_t rows) {
  const std::size_t weights = static_cast<std::size_t>(kTaskPanels) * kChunkFloats;
  const std::size_t sums = static_cast<std::size_t>(rows) * kTaskPanels * kPanelRows;
  return (weights + sums) * sizeof(float);
}

std::size_t packed_x_bytes(std::int64_t rows, std::int64_t blocks) {
  return static_cast<std::size_t>(rows * blocks) * kBlockInputs * sizeof(float);
}

std::int64_t x_units(std::int64_t rows) {
  return token_blocks(rows).count;
}

void pack_x(const std::uint16_t* x, std::int64_t columns, const std::int32_t* row_index, std::int64_t rows,
            std::int64_t blocks, std::int64_t unit, void* packed) {
  const TokenBlocks tokens = token_blocks(rows);
  const std::int64_t first = block_start(tokens, unit);
  const std::int64_t width = block_start(tokens, unit + 1) - first;
  float* out = static_cast<float*>(packed) + first * blocks * kBlockInputs;
  for (std::int64_t t = 0; t < width; ++t) {
    const std::int64_t row = row_index == nullptr ? first + t : row_index[first + t];
    pack_input_row(x + row * columns, columns, blocks, t, width, out);
  }
}

template <int kPanels, int kTokens>
TF_INLINE void clear(F32x16 (&chain)[kPanels][kTokens]) {
  unroll<0, kPanels>([&](auto p) TF_INLINE_LAMBDA {
    unroll<0, kTokens>([&](auto t) TF_INLINE_LAMBDA { chain[p.value][t.value] = zero(); });
  });
}

// A step of one of the two chains of every (panel, row) of the tile.
template <int kPanels, int kTokens>
TF_INLINE void run_step(const float* weights, const float* x, int element, F32x16 (&chain)[kPanels][kTokens]) {
  decltype(load_weights(weights)) weight[kPanels];
  unroll<0, kPanels>([&](auto p) TF_INLINE_LAMBDA {
    weight[p.value] = load_weights(weights + p.value * kChunkFloats + element * kPanelRows);
  });
  unroll<0, kTokens>([&](auto t) TF_INLINE_LAMBDA {
    const auto input = spread_input(x + element * kTokens + t.value);
    unroll<0, kPanels>([&](auto p) TF_INLINE_LAMBDA {
      chain[p.value][t.value] = add_product(chain[p.value][t.value], weight[p.value], input);
    });
  });
}

// A tile whose chains and sums all fit into the registers.
template <int kPanels, int kTokens>
TF_INLINE void multiply_tile_in_registers(const float* weights, const float* x, std::int64_t blocks, float* sums) {
  constexpr int kRowFloats = kTaskPanels * kPanelRows;
  F32x16 sum[kPanels][kTokens];
  unroll<0, kPanels>([&](auto p) TF_INLINE_LAMBDA {
    unroll<0, kTokens>([&](auto t) TF_INLINE_LAMBDA {
      sum[p.value][t.value] = load(sums + t.value * kRowFloats + p.value * kPanelRows);
    });
  });
  for (std::int64_t block = 0; block < blocks; ++block) {
    F32x16 even[kPanels][kTokens], odd[kPanels][kTokens];
    clear(even);
    clear(odd);
    for (int step = 0; step < kChainSteps; ++step) {
      run_step(weights, x, chain_element(0, step), even);
      run_step(weights, x, chain_element(1, step), odd);
    }
    unroll<0, kPanels>([&](auto p) TF_INLINE_LAMBDA {
      unroll<0, kTokens>([&](auto t) TF_INLINE_LAMBDA {
        sum[p.value][t.value] =
            add(sum[p.value][t.value], add(even[p.value][t.value], odd[p.value][t.value]));
      });
    });
    weights += kBlockWeights;
    x += kBlockInputs * kTokens;
  }
  unroll<0, kPanels>([&](auto p) TF_INLINE_LAMBDA {
    unroll<0, kTokens>([&](auto t) TF_INLINE_LAMBDA {
      store(sums + t.value * kRowFloats + p.value * kPanelRows, sum[p.value][t.value]);
    });
  });
}

// With fewer registers: the even chains wait in memory for the odd ones.
template <int kPanels, int kTokens>
TF_INLINE void multiply_tile_by_halves(const float* weights, const float* x, std::int64_t blocks, float* sums) {
  constexpr int kRowFloats = kTaskPanels * kPanelRows;
  alignas(64) float evens[kPanels * kTokens * kPanelRows];
  for (std::int64_t block = 0; block < blocks; ++block) {
    F32x16 chain[kPanels][kTokens];
    clear(chain);
#pragma GCC unroll 2
    for (int step = 0; step < kChainSteps; ++step) run_step(weights, x, chain_element(0, step), chain);
    unroll<0, kPanels>([&](auto p) TF_INLINE_LAMBDA {
      unroll<0, kTokens>([&](auto t) TF_INLINE_LAMBDA {
        store(evens + (p.value * kTokens + t.value) * kPanelRows, chain[p.value][t.value]);
      });
    });
    clear(chain);
#pragma GCC unroll 2
    for (int step = 0; step < kChainSteps; ++step) run_step(weights, x, chain_element(1, step), chain);
    unroll<0, kPanels>([&](auto p) TF_INLINE_LAMBDA {
      unroll<0, kTokens>([&](auto t) TF_INLINE_LAMBDA {
        float* sum = sums + t.value * kRowFloats + p.value * kPanelRows;
        const F32x16 even = load(evens + (p.value * kTokens + t.value) * kPanelRows);
        store(sum, add(load(sum), add(even, chain[p.value][t.value])));
      });
    });
    weights += kBlockWeights;
    x += kBlockInputs * kTokens;
  }
}

// sums [token][kTaskPanels][16] += this chunk's blocks.
template <int kPanels, int kTokens>
void multiply_tile(const float* weights, const float* x, std::int64_t blocks, float* sums) {
  if constexpr (kTilesInRegisters) {
    multiply_tile_in_registers<kPanels, kTokens>(weights, x, blocks, sums);
  } else {
    multiply_tile_by_halves<kPanels, kTokens>(weights, x, blocks, sums);
  }
}

using MultiplyTile = void (*)(const float*, const float*, std::int64_t, float*);

template <int kPanels>
MultiplyTile multiply_tile_of(std::int64_t tokens) {
  MultiplyTile result = nullptr;
  unroll<1, kMicroTokens + 1>([&](auto t) TF_INLINE_LAMBDA {
    if (tokens == t.value) result = &multiply_tile<kPanels, t.value>;
  });
  return result;
}

// The task's rows against blocks [first, first + count), whose weights are decoded.
void multiply_chunk(const LinearTask& task, const float* weights, std::int64_t first, std::int64_t count, float* sums) {
  const TokenBlocks tokens = token_blocks(task.rows);
  const std::int64_t row_floats = task.layout.blocks * kBlockInputs;
  const std::int64_t first_row = block_start(tokens, task.first_unit);
  for (std::int64_t block = task.first_unit; block < task.first_unit + task.unit_count; ++block) {
    const std::int64_t row = block_start(tokens, block);
    const std::int64_t width = block_start(tokens, block + 1) - row;
    const float* x = static_cast<const float*>(task.x) + row * row_floats + first * kBlockInputs * width;
    float* row_sums = sums + (row - first_row) * (kTaskPanels * kPanelRows);
    int panel = 0;
    if constexpr (kMicroPanels == 2) {
      if (task.panel_count == 2) {
        multiply_tile_of<2>(width)(weights, x, count, row_sums);
        panel = 2;
      }
    }
    for (; panel < task.panel_count; ++panel) {
      multiply_tile_of<1>(width)(weights + panel * kChunkFloats, x, count, row_sums + panel * kPanelRows);
    }
  }
}

void decode_chunk(const LinearTask& task, std::int64_t first, std::int64_t count, float* weights) {
#define TF_DECODE(bits) \
  decode_panel<bits, false>(task.layout, panel_of(task, panel), first, count, weights + panel * kChunkFloats)
#define TF_DECODE_TINY(bits) \
  decode_panel<bits, true>(task.layout, panel_of(task, panel), first, count, weights + panel * kChunkFloats)
  if (task.decode_in_default_mode) {
    const FloatMode mode = enter_default_mode();
    for (int panel = 0; panel < task.panel_count; ++panel) {
      TF_DISPATCH_BITS(task.layout.bits, TF_DECODE_TINY)
    }
    restore_mode(mode);
  } else {
    for (int panel = 0; panel < task.panel_count; ++panel) {
      TF_DISPATCH_BITS(task.layout.bits, TF_DECODE)
    }
  }
#undef TF_DECODE
#undef TF_DECODE_TINY
}

using DotPanel = void (*)(const PanelLayout&, const Panel&, const float*, float*);

// Null where so many rows don't go straight from the codes.
template <int kBits>
DotPanel dot_panel_of(std::int64_t tokens) {
  DotPanel result = nullptr;
  unroll<1, kDirectTokensOf<kBits> + 1>([&](auto t) TF_INLINE_LAMBDA {
    if (tokens == t.value) result = &dot_panel<kBits, t.value>;
  });
  return result;
}

TF_INLINE DotPanel dot_panel_of(int bits, std::int64_t tokens) {
#define TF_DOT(kBits) return dot_panel_of<kBits>(tokens)
  TF_DISPATCH_BITS(bits, TF_DOT)
#undef TF_DOT
  return nullptr;
}

// Few enough rows are one block.
static_assert(kDirectTokens <= kMicroTokens);

void run_direct(const LinearTask& task, DotPanel dot) {
  for (int panel = 0; panel < task.panel_count; ++panel) {
    alignas(64) float sums[kDirectTokens * kPanelRows];
    dot(task.layout, panel_of(task, panel), static_cast<const float*>(task.x), sums);
    for (std::int64_t t = 0; t < task.rows; ++t) finish_row(task, panel, sums + t * kPanelRows, t);
  }
}

void run_rows(const LinearTask& task) {
  float* weights = reinterpret_cast<float*>(task.scratch);
  float* sums = weights + kTaskPanels * kChunkFloats;
  const TokenBlocks tokens = token_blocks(task.rows);
  const std::int64_t first_row = block_start(tokens, task.first_unit);
  const std::int64_t rows = block_start(tokens, task.first_unit + task.unit_count) - first_row;
  const std::int64_t sum_floats = rows * kTaskPanels * kPanelRows;
  for (std::int64_t i = 0; i < sum_floats; i += kPanelRows) store(sums + i, zero());
  // Chunks of nearly equal size: what a chunk costs beyond its blocks shouldn't be paid for a remainder.
  const std::int64_t blocks = task.layout.blocks, chunks = (blocks + kChunkBlocks - 1) / kChunkBlocks;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const std::int64_t first = blocks * chunk / chunks;
    const std::int64_t count = blocks * (chunk + 1) / chunks - first;
    decode_chunk(task, first, count, weights);
    multiply_chunk(task, weights, first, count, sums);
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    for (int panel = 0; panel < task.panel_count; ++panel) {
      finish_row(task, panel, sums + (row * kTaskPanels + panel) * kPanelRows, first_row + row);
    }
  }
}

void run(const LinearTask& task) {
  if (!task.decode_in_default_mode) {
    if (const DotPanel dot = dot_panel_of(task.layout.bits, task.rows); dot != nullptr) {
      run_direct(task, dot);
      return;
    }
  }
  // A few rows may bring any number of panels.
  LinearTask part = task;
  for (int panel = 0; panel < task.panel_count; panel += kTaskPanels) {
    const int left = task.panel_count - panel;
    part.panel_count = left < kTaskPanels ? left : kTaskPanels;
    part.last_panel_rows = panel + part.panel_count == task.panel_count ? task.last_panel_rows : kPanelRows;
    part.panels = task.panels + panel * task.layout.panel_bytes;
    part.y = task.y + panel * kPanelRows;
    part.bias = task.bias == nullptr ? nullptr : task.bias + panel * kPanelRows;
    run_rows(part);
  }
}
