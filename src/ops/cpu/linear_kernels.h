// The linear layer's arithmetic, written once over sixteen lanes (= output rows) and compiled once for each instruction
// set. Included inside that set's unnamed namespace, after its primitives (linear_simd_*.h), so that no symbol of it
// can meet another set's. The order of operations is linear.h's; nothing else in the backend multiplies a weight.

template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

template <int kFrom, int kTo, typename Body>
TF_INLINE void unroll(const Body& body) {
  if constexpr (kFrom < kTo) {
    body(Constant<kFrom>{});
    unroll<kFrom + 1, kTo>(body);
  }
}

struct Panel {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
};

TF_INLINE Panel panel_of(const LinearTask& task, int index) {
  const std::uint8_t* codes = task.panels + index * task.layout.panel_bytes;
  return {codes, codes + task.layout.codes_bytes};
}

struct ScaleBias {
  F32x16 scale, bias;
};

// The eight 6-bit scales and mins of a K-quant super-block, as ggml packs them, for sub-block `sub` of every lane.
TF_INLINE ScaleBias super4_scales(const std::uint8_t* group, int sub) {
  const U32x16 first = load_u32(group + 64);    // bytes 0..3 of the lane's twelve
  const U32x16 second = load_u32(group + 128);  // bytes 4..7
  U32x16 scale, min;
  if (sub < 4) {
    scale = mask(shift_right_by(first, 8 * sub), 63);
    min = mask(shift_right_by(second, 8 * sub), 63);
  } else {
    const int shift = 8 * (sub - 4);
    const U32x16 third = shift_right_by(load_u32(group + 192), shift);  // bytes 8..11
    scale = either(mask(third, 15), mask(shift_right<2>(shift_right_by(first, shift)), 0x30));
    min = either(mask(shift_right<4>(third), 15), mask(shift_right<2>(shift_right_by(second, shift)), 0x30));
  }
  return {mul(load_f16(group), to_float(scale)), negate(mul(load_f16(group + 32), to_float(min)))};
}

TF_INLINE ScaleBias super6_scales(const std::uint8_t* group, int sub) {
  const F32x16 scale = mul(load_f16(group), load_i8(group + 32 + 16 * sub));
  return {scale, mul(scale, set1(-32.0f))};
}

// Scale and bias of a block's 32 k (of its first 16 for kSuper6).
TF_INLINE ScaleBias scales_of(const PanelLayout& layout, const std::uint8_t* scales, std::int64_t block) {
  // Groups are 1, 2, 4 or 8 blocks; a division would take longer than the rest.
  const std::int64_t group = block >> __builtin_ctz(static_cast<unsigned>(layout.group_blocks));
  switch (layout.scale_kind) {
    case ScaleKind::kPairF32: {
      const float* values = reinterpret_cast<const float*>(scales + group * 128);
      return {load(values), load(values + 16)};
    }
    case ScaleKind::kPairF16:
      return {load_f16(scales + group * 64), load_f16(scales + group * 64 + 32)};
    case ScaleKind::kPairBf16:
      return {load_bf16(scales + group * 64), load_bf16(scales + group * 64 + 32)};
    case ScaleKind::kOffset: {
      const F32x16 scale = load_f16(scales + block * 32);
      return {scale, mul(scale, set1(-layout.offset))};
    }
    case ScaleKind::kSuper4:
      return super4_scales(scales + group * 256, static_cast<int>(block & 7));
    case ScaleKind::kSuper6:
      return super6_scales(scales + group * 288, static_cast<int>(block & 7) * 2);
    case ScaleKind::kNone:
      break;
  }
  return {zero(), zero()};
}

// The code of element k of the block (k is a compile-time index), as fp32.
template <int kBits, int kK>
TF_INLINE F32x16 code_of(const std::uint8_t* codes) {
  constexpr int kLowBits = kBits == 3 ? 2 : (kBits == 5 || kBits == 6) ? 4 : kBits;
  constexpr int kHighBits = kBits - kLowBits;
  constexpr int kPerDword = 32 / kLowBits;
  const U32x16 low = shift_right<(kK % kPerDword) * kLowBits>(load_u32(codes + (kK / kPerDword) * 64));
  if constexpr (kHighBits == 0) {
    if constexpr (kBits <= 4) return low_code_to_float<kBits>(low);
    return to_float(mask(low, (1u << kBits) - 1));
  } else {
    constexpr int kHighPerDword = 32 / kHighBits;
    constexpr int kHighShift = (kK % kHighPerDword) * kHighBits;
    U32x16 high = load_u32(codes + kLowBits * 64 + (kK / kHighPerDword) * 64);
    if constexpr (kHighShift >= kLowBits) {
      high = shift_right<kHighShift - kLowBits>(high);
    } else {
      high = shift_left<kLowBits - kHighShift>(high);
    }
    return to_float(either(mask(low, (1u << kLowBits) - 1), mask(high, ((1u << kHighBits) - 1) << kLowBits)));
  }
}

// Codes of four and eight bits may stay where they are in their dword: code · 2^at is as exact as the code, and so is
// scale · 2^-at, because parts with
// scales that it could make denormal are marked when they are packed (kSmallestPlainScale). It saves
// the shifts, which share their ports with the lookups and shuffles.
template <int kBits>
inline constexpr bool kCodesStay = kHasUnsignedToFloat && (kBits == 4 || kBits == 8);

template <int kBits, int kK>
TF_INLINE F32x16 code_in_place(const std::uint8_t* codes) {
  constexpr int kPerDword = 32 / kBits;
  constexpr std::uint32_t kMask = ((1u << kBits) - 1) << (kK % kPerDword * kBits);
  return unsigned_to_float(mask(load_u32(codes + kK / kPerDword * 64), kMask));
}

template <int kBits, typename Sink>
TF_INLINE void decode_block_in_place(const PanelLayout& layout, const Panel& panel, std::int64_t block,
                                     const Sink& sink) {
  constexpr int kPerDword = 32 / kBits;
  const std::uint8_t* codes = panel.codes + block * (64 * kBits);
  const ScaleBias group = scales_of(layout, panel.scales, block);
  F32x16 scale[kPerDword];
  unroll<0, kPerDword>([&](auto at) TF_INLINE_LAMBDA {
    scale[at.value] = mul(group.scale, set1(1.0f / static_cast<float>(1u << (at.value * kBits))));
  });
  unroll<0, kBlockColumns>([&](auto k) TF_INLINE_LAMBDA {
    sink(k, fma(code_in_place<kBits, k.value>(codes), scale[k.value % kPerDword], group.bias));
  });
}

// Calls sink(Constant<k>, weight) for the block's k in ascending order with the weight before its rounding to bf16,
// which is the sink's. Unquantised weights are already bf16. kTinyScales: the default denormal mode is on for their sake.
template <int kBits, bool kTinyScales, typename Sink>
TF_INLINE void decode_block(const PanelLayout& layout, const Panel& panel, std::int64_t block, const Sink& sink) {
  const std::uint8_t* codes = panel.codes + block * (64 * kBits);
  if constexpr (kBits == kBf16Bits) {
    unroll<0, kBlockColumns>([&](auto k) TF_INLINE_LAMBDA {
      const U32x16 pair = load_u32(codes + (k.value / 2) * 64);
      sink(k, as_float(k.value % 2 == 0 ? shift_left<16>(pair) : mask(pair, 0xffff0000u)));
    });
  } else if constexpr (kCodesStay<kBits> && !kTinyScales) {
    decode_block_in_place<kBits>(layout, panel, block, sink);
  } else {
    ScaleBias group = scales_of(layout, panel.scales, block);
    unroll<0, kBlockColumns / 2>(
        [&](auto k) TF_INLINE_LAMBDA { sink(k, fma(code_of<kBits, k.value>(codes), group.scale, group.bias)); });
    if constexpr (kBits == 6) {
      if (layout.scale_kind == ScaleKind::kSuper6) {
        group = super6_scales(panel.scales + block / 8 * 288, static_cast<int>(block & 7) * 2 + 1);
      }
    }
    unroll<kBlockColumns / 2, kBlockColumns>(
        [&](auto k) TF_INLINE_LAMBDA { sink(k, fma(code_of<kBits, k.value>(codes), group.scale, group.bias)); });
  }
}

#define TF_DISPATCH_BITS(bits, call) \
  switch (bits) {                    \
    case 2:                          \
      call(2);                       \
      break;                         \
    case 3:                          \
      call(3);                       \
      break;                         \
    case 4:                          \
      call(4);                       \
      break;                         \
    case 5:                          \
      call(5);                       \
      break;                         \
    case 6:                          \
      call(6);                       \
      break;                         \
    case 8:                          \
      call(8);                       \
      break;                         \
    default:                         \
      call(kBf16Bits);               \
      break;                         \
  }

// y for one panel and row: bias, then accumulation, in linear.h's order.
TF_INLINE void finish_row(const LinearTask& task, int panel, const float* sums, std::int64_t row) {
  const int valid = panel + 1 == task.panel_count ? task.last_panel_rows : kPanelRows;
  float* y = task.y + row * task.y_stride + panel * kPanelRows;
  const float* bias = task.bias == nullptr ? nullptr : task.bias + panel * kPanelRows;
  if (valid == kPanelRows) {
    F32x16 value = load(sums);
    if (bias != nullptr) value = add(value, load(bias));
    if (task.accumulate) value = add(load(y), value);
    store(y, value);
    return;
  }
  for (int lane = 0; lane < valid; ++lane) {
    float value = sums[lane];
    if (bias != nullptr) value = value + bias[lane];
    if (task.accumulate) value = y[lane] + value;
    y[lane] = value;
  }
}
