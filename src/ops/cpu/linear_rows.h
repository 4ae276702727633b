// How a task's rows and panels are cut, whatever multiplies them (linear_fma.h, linear_bf16_dot.h). Included inside an
// instruction set's unnamed namespace, after one of these, which define the decoded form of weights and x, and run_chain.
//
// One row: dot_panel. More rows: a chunk of k of a few panels is decoded once into the level-1 cache and multiplied
// with blocks of up to kMicroTokens rows; the running sums of all rows stay in scratch between chunks, in fp32, so that
// cutting k into chunks changes nothing.

inline constexpr int kTaskPanels = 2;

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

// sums [token][kTaskPanels][16] += this chunk's blocks.
template <int kPanels, int kTokens>
void multiply_tile(const float* weights, const float* x, std::int64_t blocks, float* sums) {
  constexpr int kRowFloats = kTaskPanels * kPanelRows;
  alignas(64) float evens[kPanels * kTokens * kPanelRows];
  for (std::int64_t block = 0; block < blocks; ++block) {
    const float* block_weights = weights + block * kBlockWeights;
    const float* block_x = x + block * (kBlockInputs * kTokens);
    F32x16 chain[kPanels][kTokens];
    run_chain<kPanels, kTokens, 0>(block_weights, block_x, chain);
    unroll<0, kPanels>([&](auto p) TF_INLINE_LAMBDA {
      unroll<0, kTokens>([&](auto t) TF_INLINE_LAMBDA {
        store(evens + (p.value * kTokens + t.value) * kPanelRows, chain[p.value][t.value]);
      });
    });
    run_chain<kPanels, kTokens, 1>(block_weights, block_x, chain);
    unroll<0, kPanels>([&](auto p) TF_INLINE_LAMBDA {
      unroll<0, kTokens>([&](auto t) TF_INLINE_LAMBDA {
        float* sum = sums + t.value * kRowFloats + p.value * kPanelRows;
        const F32x16 even = load(evens + (p.value * kTokens + t.value) * kPanelRows);
        store(sum, add(load(sum), add(even, chain[p.value][t.value])));
      });
    });
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
  const FloatMode mode = task.decode_in_default_mode ? enter_default_mode() : FloatMode{};
  for (int panel = 0; panel < task.panel_count; ++panel) {
#define TF_DECODE(bits) \
  decode_panel<bits>(task.layout, panel_of(task, panel), first, count, weights + panel * kChunkFloats)
    TF_DISPATCH_BITS(task.layout.bits, TF_DECODE)
#undef TF_DECODE
  }
  if (task.decode_in_default_mode) restore_mode(mode);
}

void run_one_row(const LinearTask& task) {
  for (int panel = 0; panel < task.panel_count; ++panel) {
    alignas(64) float sums[kPanelRows];
#define TF_DOT(bits) dot_panel<bits>(task.layout, panel_of(task, panel), static_cast<const float*>(task.x), sums)
    TF_DISPATCH_BITS(task.layout.bits, TF_DOT)
#undef TF_DOT
    finish_row(task, panel, sums, 0);
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
  for (std::int64_t first = 0; first < task.layout.blocks; first += kChunkBlocks) {
    const std::int64_t left = task.layout.blocks - first;
    const std::int64_t count = left < kChunkBlocks ? left : kChunkBlocks;
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
  if (task.rows == 1 && !task.decode_in_default_mode) {
    run_one_row(task);
    return;
  }
  // One row may bring any number of panels.
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
