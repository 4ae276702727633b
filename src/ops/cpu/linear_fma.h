// The linear layer's two chains by fused multiply-add in fp32, for every instruction set that has one. Included inside the
// set's unnamed namespace, after linear_kernels.h; linear_rows.h cuts the work.

inline constexpr int kChunkBlocks = 4;
inline constexpr int kBlockWeights = kBlockColumns * kPanelRows;  // floats of a decoded block of a panel: [k][16]
inline constexpr int kBlockInputs = kBlockColumns;                // floats of a block of one row of x
inline constexpr int kChunkFloats = kChunkBlocks * kBlockWeights;

template <int kBits>
TF_INLINE F32x16 rounded(F32x16 weight) {
  if constexpr (kBits == kBf16Bits) return weight;
  return round_to_bf16(weight);
}

// One row of x: the weights never leave the registers.
template <int kBits>
void dot_panel(const PanelLayout& layout, const Panel& panel, const float* x, float* out) {
  F32x16 sum = zero();
  for (std::int64_t block = 0; block < layout.blocks; ++block) {
    F32x16 even = zero();
    F32x16 odd = zero();
    const float* inputs = x + block * kBlockColumns;
    decode_block<kBits>(layout, panel, block, [&](auto k, F32x16 weight) TF_INLINE_LAMBDA {
      F32x16& chain = k.value % 2 == 0 ? even : odd;
      chain = fma(rounded<kBits>(weight), set1(inputs[k.value]), chain);
    });
    sum = add(sum, add(even, odd));
  }
  store(out, sum);
}

// Blocks [first, first + count) as fp32 [k][16].
template <int kBits>
void decode_panel(const PanelLayout& layout, const Panel& panel, std::int64_t first, std::int64_t count, float* out) {
  for (std::int64_t block = 0; block < count; ++block) {
    float* to = out + block * (kBlockColumns * kPanelRows);
    decode_block<kBits>(layout, panel, first + block, [&](auto k, F32x16 weight) TF_INLINE_LAMBDA {
      store(to + k.value * kPanelRows, rounded<kBits>(weight));
    });
  }
}

// A block of t rows of x: [k][t] in fp32. k beyond `columns` is zero and never read.
TF_INLINE void pack_input_row(const std::uint16_t* from, std::int64_t columns, std::int64_t blocks, std::int64_t t,
                              std::int64_t width, float* packed) {
  std::uint32_t* out = reinterpret_cast<std::uint32_t*>(packed) + t;
  for (std::int64_t k = 0; k < columns; ++k) out[k * width] = static_cast<std::uint32_t>(from[k]) << 16;
  for (std::int64_t k = columns; k < blocks * kBlockColumns; ++k) out[k * width] = 0;
}

// One of the two chains of every (panel, row) of the tile: fma over the even (kOdd = 0) or odd elements of a block.
template <int kPanels, int kTokens, int kOdd>
TF_INLINE void run_chain(const float* weights, const float* x, F32x16 (&chain)[kPanels][kTokens]) {
  unroll<0, kPanels>([&](auto p) TF_INLINE_LAMBDA {
    unroll<0, kTokens>([&](auto t) TF_INLINE_LAMBDA { chain[p.value][t.value] = zero(); });
  });
#pragma GCC unroll 2
  for (int pair = 0; pair < kBlockColumns / 2; ++pair) {
    const int k = 2 * pair + kOdd;
    F32x16 weight[kPanels];
    unroll<0, kPanels>(
        [&](auto p) TF_INLINE_LAMBDA { weight[p.value] = load(weights + p.value * kChunkFloats + k * kPanelRows); });
    unroll<0, kTokens>([&](auto t) TF_INLINE_LAMBDA {
      const F32x16 input = set1(x[k * kTokens + t.value]);
      unroll<0, kPanels>([&](auto p) TF_INLINE_LAMBDA {
        chain[p.value][t.value] = fma(weight[p.value], input, chain[p.value][t.value]);
      });
    });
  }
}
