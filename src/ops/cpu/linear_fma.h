// The linear layer's two chains by fused multiply-add in fp32, for every instruction set that has one. Included inside the
// set's unnamed namespace, after linear_kernels.h; linear_rows.h cuts the work.

// Rows that go straight from the codes.
inline constexpr int kDirectTokens = 1;
template <int kBits>
inline constexpr int kDirectTokensOf = 1;

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
template <int kBits, int kTokens>
void dot_panel(const PanelLayout& layout, const Panel& panel, const float* x, float* out) {
  static_assert(kTokens == 1);
  F32x16 sum = zero();
  for (std::int64_t block = 0; block < layout.blocks; ++block) {
    F32x16 even = zero();
    F32x16 odd = zero();
    const float* inputs = x + block * kBlockColumns;
    decode_block<kBits, false>(layout, panel, block, [&](auto k, F32x16 weight) TF_INLINE_LAMBDA {
      F32x16& chain = k.value % 2 == 0 ? even : odd;
      chain = fma(rounded<kBits>(weight), set1(inputs[k.value]), chain);
    });
    sum = add(sum, add(even, odd));
  }
  store(out, sum);
}

// Blocks [first, first + count) as fp32 [k][16].
template <int kBits, bool kTinyScales>
void decode_panel(const PanelLayout& layout, const Panel& panel, std::int64_t first, std::int64_t count, float* out) {
  for (std::int64_t block = 0; block < count; ++block) {
    float* to = out + block * (kBlockColumns * kPanelRows);
    decode_block<kBits, kTinyScales>(layout, panel, first + block, [&](auto k, F32x16 weight) TF_INLINE_LAMBDA {
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

// One step of a chain: element k of a block's 32.
inline constexpr int kChainSteps = kBlockColumns / 2;
TF_INLINE int chain_element(int odd, int step) {
  return 2 * step + odd;
}
TF_INLINE F32x16 load_weights(const float* p) {
  return load(p);
}
TF_INLINE F32x16 spread_input(const float* p) {
  return set1(*p);
}
TF_INLINE F32x16 add_product(F32x16 sum, F32x16 weights, F32x16 input) {
  return fma(weights, input, sum);
}
