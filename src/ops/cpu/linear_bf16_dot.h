// The linear layer's two chains by VDPBF16PS. Included inside the instruction set's unnamed namespace, after
// linear_kernels.h; linear_rows.h cuts the work.
//
// VDPBF16PS adds two products of bf16 to an fp32 sum, one after the other, each by a fused multiply-add that rounds to
// nearest even and flushes denormals: the upper halves' product first. That is two steps of one of linear.h's chains when a
// pair holds k and k + 2 instead of neighbours: k in the upper half, k + 2 in the lower. So the chain over the even k of a
// block, and the one over the odd k, are eight instructions each for sixteen outputs, half of what fp32 takes.

// Up to so many rows go straight from the codes; formats of odd widths of codes, which are rare, only when alone.
inline constexpr int kDirectTokens = 4;
template <int kBits>
inline constexpr int kDirectTokensOf = kBits == 4 || kBits == 6 || kBits == 8 || kBits == kBf16Bits ? kDirectTokens : 1;

inline constexpr int kChunkBlocks = 12;
inline constexpr int kChainPairs = kBlockColumns / 4;  // of a block
inline constexpr int kBlockWeights = 2 * kChainPairs * kPanelRows;  // dwords of a decoded block: [chain][pair][16]
inline constexpr int kBlockInputs = 2 * kChainPairs;                // dwords of a block of one row of x
inline constexpr int kChunkFloats = kChunkBlocks * kBlockWeights;

TF_INLINE F32x16 add_product(F32x16 sum, __m512i weights, __m512i input) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(weights), reinterpret_cast<__m512bh>(input));
}

// A step of a chain: a pair, which is two steps of linear.h's.
inline constexpr int kChainSteps = kChainPairs;
TF_INLINE int chain_element(int odd, int step) {
  return odd * kChainPairs + step;
}
TF_INLINE __m512i load_weights(const float* p) {
  return _mm512_loadu_si512(p);
}
TF_INLINE __m512i spread_input(const float* p) {
  return _mm512_castps_si512(set1(*p));
}

// Rounds to bf16 like to_bf16: nearest even, denormals to zero, whatever the mode.
TF_INLINE __m512i pair_of(F32x16 earlier, F32x16 later) {
  const __m512i words = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(earlier, later));
  const __m512i interleaved =
      _mm512_setr_epi32(0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005, 0x160006, 0x170007, 0x180008,
                        0x190009, 0x1a000a, 0x1b000b, 0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f);
  return _mm512_permutexvar_epi16(interleaved, words);
}

TF_INLINE __m512i upper_of_first(__m512i first, __m512i second) {
  constexpr int kSelect = 0xca;  // a ? b : c
  return _mm512_ternarylogic_epi32(_mm512_set1_epi32(static_cast<int>(0xffff0000u)), first, second, kSelect);
}

// Calls sink(Constant<chain>, Constant<pair>, weights) for all pairs of the block; a chain's pairs ascend.
template <int kBits, bool kTinyScales, typename Sink>
TF_INLINE void decode_pairs(const PanelLayout& layout, const Panel& panel, std::int64_t block, const Sink& sink) {
  if constexpr (kBits == kBf16Bits) {
    const std::uint8_t* neighbours = panel.codes + block * (64 * kBits);
    unroll<0, kChainPairs>([&](auto pair) TF_INLINE_LAMBDA {
      const __m512i first = load_u32(neighbours + pair.value * 128).bits;
      const __m512i second = load_u32(neighbours + pair.value * 128 + 64).bits;
      sink(Constant<0>{}, pair, upper_of_first(_mm512_slli_epi32(first, 16), second));
      sink(Constant<1>{}, pair, upper_of_first(first, _mm512_srli_epi32(second, 16)));
    });
  } else {
    F32x16 earlier[2];
    decode_block<kBits, kTinyScales>(layout, panel, block, [&](auto k, F32x16 weight) TF_INLINE_LAMBDA {
      constexpr int kChain = k.value % 2;
      if constexpr (k.value % 4 < 2) {
        earlier[kChain] = weight;
      } else {
        sink(Constant<kChain>{}, Constant<k.value / 4>{}, pair_of(earlier[kChain], weight));
      }
    });
  }
}

// What lies some panels ahead is asked for bit by bit, so that it is there when its turn comes: a panel's codes and scales are
// two short streams, which end before the processor's own prefetching has got going. Longer panels are left to it but for
// the next page.
TF_INLINE const std::uint8_t* ahead_of(const PanelLayout& layout, const Panel& panel, int panels) {
  constexpr std::int64_t kFarthest = 32768, kNextPage = 4096;
  const std::int64_t distance = panels * layout.panel_bytes;
  return panel.codes + (distance <= kFarthest ? distance : kNextPage);
}

// A few rows of x, a block of them: the weights never leave the registers, and while one port multiplies, others decode.
// sums [token][16].
template <int kBits, int kTokens>
void dot_panel(const PanelLayout& layout, const Panel& panel, const float* x, float* sums) {
  F32x16 sum[kTokens];
  unroll<0, kTokens>([&](auto t) TF_INLINE_LAMBDA { sum[t.value] = zero(); });
  const std::uint8_t* ahead = ahead_of(layout, panel, 1);
  const std::int64_t lines = (layout.panel_bytes / layout.blocks + 63) / 64;
  for (std::int64_t block = 0; block < layout.blocks; ++block) {
    for (std::int64_t line = 0; line < lines; ++line, ahead += 64) __builtin_prefetch(ahead);
    F32x16 chain[2][kTokens];
    unroll<0, kTokens>([&](auto t) TF_INLINE_LAMBDA { chain[0][t.value] = chain[1][t.value] = zero(); });
    const float* inputs = x + block * (kBlockInputs * kTokens);
    decode_pairs<kBits, false>(layout, panel, block, [&](auto odd, auto pair, __m512i weights) TF_INLINE_LAMBDA {
      unroll<0, kTokens>([&](auto t) TF_INLINE_LAMBDA {
        const float* input = inputs + chain_element(odd.value, pair.value) * kTokens + t.value;
        chain[odd.value][t.value] = add_product(chain[odd.value][t.value], weights, spread_input(input));
      });
    });
    unroll<0, kTokens>([&](auto t) TF_INLINE_LAMBDA {
      sum[t.value] = add(sum[t.value], add(chain[0][t.value], chain[1][t.value]));
    });
  }
  unroll<0, kTokens>([&](auto t) TF_INLINE_LAMBDA { store(sums + t.value * kPanelRows, sum[t.value]); });
}

// Blocks [first, first + count) as pairs. Panels are decoded two by two, so it is the one after next that comes.
template <int kBits, bool kTinyScales>
void decode_panel(const PanelLayout& layout, const Panel& panel, std::int64_t first, std::int64_t count, float* out) {
  const std::int64_t lines = (layout.panel_bytes / layout.blocks + 63) / 64;
  const std::uint8_t* ahead = ahead_of(layout, panel, 2) + first * lines * 64;
  for (std::int64_t block = 0; block < count; ++block) {
    for (std::int64_t line = 0; line < lines; ++line, ahead += 64) __builtin_prefetch(ahead);
    float* to = out + block * kBlockWeights;
    decode_pairs<kBits, kTinyScales>(layout, panel, first + block, [&](auto odd, auto pair, __m512i weights) TF_INLINE_LAMBDA {
      _mm512_storeu_si512(to + (odd.value * kChainPairs + pair.value) * kPanelRows, weights);
    });
  }
}

// A block of t rows of x: [chain][pair][t]. k beyond `columns` is zero and never read.
TF_INLINE void pack_input_row(const std::uint16_t* from, std::int64_t columns, std::int64_t blocks, std::int64_t t,
                              std::int64_t width, float* packed) {
  // Word 2 i + 1 of the result (the upper half of pair i) is k, word 2 i is k + 2.
  const __m512i order = _mm512_setr_epi32(0x000002, 0x040006, 0x08000a, 0x0c000e, 0x100012, 0x140016, 0x18001a, 0x1c001e,
                                          0x010003, 0x050007, 0x09000b, 0x0d000f, 0x110013, 0x150017, 0x19001b, 0x1d001f);
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t left = columns - block * kBlockColumns;
    const __mmask32 existing = left >= kBlockColumns ? 0xffffffffu : left <= 0 ? 0u : (1u << left) - 1;
    const __m512i words = _mm512_maskz_loadu_epi16(existing, from + block * kBlockColumns);
    const __m512i pairs = _mm512_permutexvar_epi16(order, words);
    float* out = packed + block * kBlockInputs * width + t;
    if (width == 1) {
      _mm512_storeu_si512(out, pairs);
      continue;
    }
    alignas(64) float dwords[kBlockInputs];
    _mm512_store_si512(dwords, pairs);
    for (int i = 0; i < kBlockInputs; ++i) __builtin_memcpy(out + i * width, dwords + i, sizeof(float));
  }
}
