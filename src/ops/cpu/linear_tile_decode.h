// Decoding a panel's codes into AMX tiles: for each block of 32 k, 16 rows of 32 bf16 weights in k order. Included
// inside the AMX unnamed namespace, after linear_kernels.h, whose scales_of it uses.
//
// Up to five bits, a row's weights are looked up: fma gives to_bf16's argument for every code once a scale group, one
// conversion rounds them to a table in a register, and a permutation of it by a row's indices gives 32 weights at once.
// Six and eight bits are computed in fp32. Both are to_bf16(fma(code, scale, bias)): the conversion rounds to nearest
// even and flushes denormals whatever the mode.

// Scale and bias of the panel's rows, for the first and the second 16 k of a block (they differ for kSuper6 only).
struct alignas(64) RowScales {
  float scale[2][kPanelRows];
  float bias[2][kPanelRows];
};

template <int kBits>
TF_INLINE void expand_scales(const PanelLayout& layout, const std::uint8_t* scales, std::int64_t block,
                             RowScales& rows) {
  const ScaleBias first = scales_of(layout, scales, block);
  store(rows.scale[0], first.scale);
  store(rows.bias[0], first.bias);
  if constexpr (kBits == 6) {
    ScaleBias second = first;
    if (layout.scale_kind == ScaleKind::kSuper6) {
      second = super6_scales(scales + block / 8 * 288, static_cast<int>(block & 7) * 2 + 1);
    }
    store(rows.scale[1], second.scale);
    store(rows.bias[1], second.bias);
  }
  // Through memory: broadcasts cost a load there, and in registers the port that the lookups need.
  asm volatile("" : "+m"(rows));
}

TF_INLINE __m512i round_to_tile_row(F32x16 first, F32x16 second) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
}

TF_INLINE __m512i words_of(int value) {
  return _mm512_set1_epi16(static_cast<short>(value));
}

// A group's words, shifted right or, when negative, left.
template <int kShift>
TF_INLINE __m512i load_shifted(const std::uint8_t* group) {
  const __m512i words = _mm512_loadu_si512(group);
  if constexpr (kShift > 0) return _mm512_srli_epi16(words, kShift);
  if constexpr (kShift < 0) return _mm512_slli_epi16(words, -kShift);
  return words;
}

// The row's codes in a block, one a word; bits above the code are anything.
template <int kBits, int kRow>
TF_INLINE __m512i code_words(const std::uint8_t* codes) {
  constexpr int kLowBits = kBits == 3 ? 2 : kBits > 4 ? 4 : kBits;
  constexpr int kHighBits = kBits - kLowBits;
  constexpr int kPerWord = 16 / kLowBits;
  const __m512i low = load_shifted<kRow % kPerWord * kLowBits>(codes + kRow / kPerWord * 64);
  if constexpr (kHighBits == 0) {
    return low;
  } else {
    constexpr int kHighPerWord = 16 / kHighBits;
    const std::uint8_t* group = codes + 64 * kLowBits + kRow / kHighPerWord * 64;
    const __m512i high = load_shifted<kRow % kHighPerWord * kHighBits - kLowBits>(group);
    constexpr int kSelect = 0xca;  // a ? b : c
    return _mm512_ternarylogic_epi32(words_of((1 << kLowBits) - 1), low, high, kSelect);
  }
}

// Whether code_words leaves nothing above the code.
template <int kBits, int kRow>
inline constexpr bool kCodesAreClean = (kBits == 2 || kBits == 4) && kRow % (16 / kBits) == 16 / kBits - 1;

TF_INLINE F32x16 counting_from(float first) {
  const __m512 count = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return add(count, set1(first));
}

TF_INLINE F32x16 fma_row(F32x16 codes, const RowScales& rows, int half, int row) {
  return fma(codes, set1(rows.scale[half][row]), set1(rows.bias[half][row]));
}

// 2, 3 or 4 bits: two rows share a register of tables, the even row's in its upper half, so that the top row of a word
// (which is odd, and needs no mask) takes the lower.
template <int kBits, int kBlocks, int kRow>
TF_INLINE void decode_two_rows(const std::uint8_t* codes, const RowScales& rows, F32x16 count, std::uint8_t* tiles,
                               std::int64_t tile_step) {
  const __m512i mask_of_code = words_of((1 << kBits) - 1);
  const __m512i table = round_to_tile_row(fma_row(count, rows, 0, kRow + 1), fma_row(count, rows, 0, kRow));
  unroll<0, kBlocks>([&](auto block) TF_INLINE_LAMBDA {
    const std::uint8_t* from = codes + block.value * (64 * kBits);
    std::uint8_t* to = tiles + block.value * tile_step + kRow * 64;
    constexpr int kMaskThenSet = 0xea;  // (a and b) or c
    const __m512i even_codes = code_words<kBits, kRow>(from);  // (clang's intrinsic is a macro: no commas inside)
    const __m512i even = _mm512_ternarylogic_epi32(even_codes, mask_of_code, words_of(16), kMaskThenSet);
    __m512i odd = code_words<kBits, kRow + 1>(from);
    if constexpr (!kCodesAreClean<kBits, kRow + 1>) odd = _mm512_and_si512(odd, mask_of_code);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(even, table));
    _mm512_storeu_si512(to + 64, _mm512_permutexvar_epi16(odd, table));
  });
}

// 5 bits: a register is one row's table, and the lookup ignores what is above the index.
template <int kBlocks, int kRow>
TF_INLINE void decode_row_of_five_bits(const std::uint8_t* codes, const RowScales& rows, F32x16 count, F32x16 count16,
                                       std::uint8_t* tiles, std::int64_t tile_step) {
  const __m512i table = round_to_tile_row(fma_row(count, rows, 0, kRow), fma_row(count16, rows, 0, kRow));
  unroll<0, kBlocks>([&](auto block) TF_INLINE_LAMBDA {
    const __m512i index = code_words<5, kRow>(codes + block.value * (64 * 5));
    _mm512_storeu_si512(tiles + block.value * tile_step + kRow * 64, _mm512_permutexvar_epi16(index, table));
  });
}

template <int kBits, int kRow>
TF_INLINE void wide_codes(const std::uint8_t* codes, F32x16& first, F32x16& second) {
  if constexpr (kBits == 8) {
    const auto* bytes = reinterpret_cast<const __m128i*>(codes + kRow * kBlockColumns);
    first = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(bytes)));
    second = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(bytes + 1)));
  } else {
    const U32x16 words = {code_words<kBits, kRow>(codes)};
    first = to_float(mask(words, (1 << kBits) - 1));
    second = to_float(mask(shift_right<16>(words), (1 << kBits) - 1));
  }
}

template <int kBits, int kBlocks, int kRow>
TF_INLINE void decode_wide_row(const std::uint8_t* codes, const RowScales& rows, std::uint8_t* tiles,
                               std::int64_t tile_step) {
  constexpr int kSecondHalf = kBits == 6 ? 1 : 0;
  unroll<0, kBlocks>([&](auto block) TF_INLINE_LAMBDA {
    F32x16 first, second;
    wide_codes<kBits, kRow>(codes + block.value * (64 * kBits), first, second);
    _mm512_storeu_si512(tiles + block.value * tile_step + kRow * 64,
                        round_to_tile_row(fma_row(first, rows, 0, kRow), fma_row(second, rows, kSecondHalf, kRow)));
  });
}

// Blocks [block, block + kBlocks) of a panel, which share a scale group, to tiles `tile_step` bytes apart.
template <int kBits, int kBlocks>
[[gnu::noinline]] void decode_step(const PanelLayout& layout, const Panel& panel, std::int64_t block,
                                   std::uint8_t* tiles, std::int64_t tile_step) {
  RowScales rows;
  expand_scales<kBits>(layout, panel.scales, block, rows);
  const std::uint8_t* codes = panel.codes + block * (64 * kBits);
  if constexpr (kBits <= 4) {
    const F32x16 count = counting_from(0.0f);
    unroll<0, kPanelRows / 2>([&](auto pair) TF_INLINE_LAMBDA {
      decode_two_rows<kBits, kBlocks, 2 * pair.value>(codes, rows, count, tiles, tile_step);
    });
  } else if constexpr (kBits == 5) {
    const F32x16 count = counting_from(0.0f);
    const F32x16 count16 = counting_from(16.0f);
    unroll<0, kPanelRows>([&](auto row) TF_INLINE_LAMBDA {
      decode_row_of_five_bits<kBlocks, row.value>(codes, rows, count, count16, tiles, tile_step);
    });
  } else {
    unroll<0, kPanelRows>(
        [&](auto row) TF_INLINE_LAMBDA { decode_wide_row<kBits, kBlocks, row.value>(codes, rows, tiles, tile_step); });
  }
}

using DecodeStep = void (*)(const PanelLayout&, const Panel&, std::int64_t, std::uint8_t*, std::int64_t);

// Null for unquantised weights, whose panels are tiles already.
template <int kBlocks>
DecodeStep decode_step_of(int bits) {
  switch (bits) {
    case 2:
      return decode_step<2, kBlocks>;
    case 3:
      return decode_step<3, kBlocks>;
    case 4:
      return decode_step<4, kBlocks>;
    case 5:
      return decode_step<5, kBlocks>;
    case 6:
      return decode_step<6, kBlocks>;
    case 8:
      return decode_step<8, kBlocks>;
    default:
      return nullptr;
  }
}
