// From a packed block (packed_linear.h) to the A fragments of mma.m16n8k16 and wgmma, in registers. Every kernel that reads
// weights goes through here, so that a weight has the same bits wherever it is used; how codes are taken apart is known
// here and in the packer alone.
//
// A block is read by halves of 64 columns (four k16 steps), so that few registers are live at once:
//
//     visit_format(part, [&]<typename F>() { launch(context, "...", kernel<F>, shape, part, ...); });        // host
//
//     const HalfCodes<F> codes = load_codes<F>(SharedBlock{address}, half, lane);                            // device
//     const HalfScales<F> scales = load_scales<F>(SharedBlock{address}, part, half, lane);
//     std::uint32_t a[4];
//     fragment<F, 0>(codes, scales, a);   // k = 64 · half .. + 15 of the block; steps 1, 2, 3 alike
//
// How codes become numbers:
//   bf16 scales   Two codes, masked out of a word, *are* a pair of bf16 numbers in units of 2^-133 (subnormal; eight bits end
//                 in the first binade, where the scale goes on), nibbles of the upper half of a byte in units of 2^-129. With
//                 scale · 2^129 stored, one fma.rn.bf16x2 gives bf16(q·scale + bias), rounded once; otherwise the pair is
//                 multiplied by 2^127 first (exact). Few of these instructions need the integer pipe, which is the one that
//                 four-bit weights keep busiest. Scale and bias stay in one register: the fma takes either half of it twice.
//   other scales  The same two codes are a pair of fp16 numbers in units of 2^-24 (subnormal), nibbles of the upper half of a byte
//                 in units of 2^-20, and fp16 becomes fp32 in one instruction that takes either half of a register. With the scale
//                 times 2^24 (2^20), which is exact, fma in fp32 and cvt.rn.bf16x2 follow. (q − zero) · scale is
//                 fma(q, scale, −zero·scale): equal, but for the sign of a zero, which no sum that starts at +0 shows.
#pragma once

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#endif

#include <cstdint>
#include <type_traits>

#include "base/assert.h"
#if defined(__CUDACC__)
#include "ops/cuda/activation.cuh"
#include "ops/cuda/instructions.cuh"
#endif
#include "ops/cuda/linear/packed_linear.h"

namespace tensorfold::ops::cuda {

enum class WeightArithmetic {
  kValues,  // bf16 as stored
  kBf16,    // one fma in bf16
  kFloat,   // fma in fp32, rounded to bf16
};

/// What kernels are instantiated for. kScaleSets: scales of a row in half a block, 1 (groups of 64), 2 (of 32 and more) or 4
/// (of 16). kKind: how scales are stored, in groups of 32; kNone: that, like everything else about a part, is read at run time.
template <int bits, WeightArithmetic arithmetic, int scale_sets, bool small_scales, ScaleKind kind = ScaleKind::kNone>
struct PackedFormat {
  static constexpr int kBits = bits;
  static constexpr WeightArithmetic kArithmetic = arithmetic;
  static constexpr int kScaleSets = scale_sets;
  static constexpr bool kSmallScales = small_scales;
  static constexpr ScaleKind kKind = kind;
  static constexpr bool kNibbles = bits <= 4;               // a step's codes as one word of nibbles, else two of bytes
  static constexpr int kWordsPerHalf = bits;                // registers of HalfCodes
};

/// Calls `visit.template operator()<F>()` with the format of `part`.
template <typename Visitor>
void visit_format(const PackedPart& part, Visitor&& visit) {
  using enum WeightArithmetic;
  if (part.bits == 16) return visit.template operator()<PackedFormat<16, kValues, 1, false>>();
  if (part.scale_kind == ScaleKind::kScale) {
    TF_ASSERT(part.bits == 6);
    return visit.template operator()<PackedFormat<6, kFloat, 4, false>>();
  }
  if (part.scale_kind == ScaleKind::kBf16Pair) {
    if (part.small_scales) {
      TF_ASSERT(part.bits == 4 && part.group_size == 64);
      return visit.template operator()<PackedFormat<4, kBf16, 1, true>>();
    }
    switch (part.bits) {
      case 2:
        return visit.template operator()<PackedFormat<2, kBf16, 2, false>>();
      case 3:
        return visit.template operator()<PackedFormat<3, kBf16, 2, false>>();
      case 4:
        return visit.template operator()<PackedFormat<4, kBf16, 2, false>>();
      case 5:
        return visit.template operator()<PackedFormat<5, kBf16, 2, false>>();
      case 6:
        return visit.template operator()<PackedFormat<6, kBf16, 2, false>>();
      default:
        TF_ASSERT(part.bits == 8);
        return visit.template operator()<PackedFormat<8, kBf16, 2, false>>();
    }
  }
  switch (part.bits) {
    case 2:
      return visit.template operator()<PackedFormat<2, kFloat, 2, false>>();
    case 3:
      return visit.template operator()<PackedFormat<3, kFloat, 2, false>>();
    case 4:
      return visit.template operator()<PackedFormat<4, kFloat, 2, false>>();
    case 5:
      return visit.template operator()<PackedFormat<5, kFloat, 2, false>>();
    case 6:
      return visit.template operator()<PackedFormat<6, kFloat, 2, false>>();
    default:
      TF_ASSERT(part.bits == 8);
      return visit.template operator()<PackedFormat<8, kFloat, 2, false>>();
  }
}

/// The same with GGUF's formats in groups of 32 apart from each other: for kernels that are bound by instructions.
template <typename Visitor>
void visit_narrow_format(const PackedPart& part, Visitor&& visit) {
  using enum WeightArithmetic;
  using enum ScaleKind;
  if (part.group_size != 32) return visit_format(part, visit);
  if (part.scale_kind == kHalfPair && part.bits == 4) return visit.template operator()<PackedFormat<4, kFloat, 2, false, kHalfPair>>();
  if (part.scale_kind == kHalfPair && part.bits == 5) return visit.template operator()<PackedFormat<5, kFloat, 2, false, kHalfPair>>();
  if (part.scale_kind == kHalf && part.bits == 4) return visit.template operator()<PackedFormat<4, kFloat, 2, false, kHalf>>();
  if (part.scale_kind == kHalf && part.bits == 5) return visit.template operator()<PackedFormat<5, kFloat, 2, false, kHalf>>();
  if (part.scale_kind == kHalf && part.bits == 8) return visit.template operator()<PackedFormat<8, kFloat, 2, false, kHalf>>();
  if (part.scale_kind == kScaleMin && part.bits == 4) return visit.template operator()<PackedFormat<4, kFloat, 2, false, kScaleMin>>();
  if (part.scale_kind == kScaleMin && part.bits == 5) return visit.template operator()<PackedFormat<5, kFloat, 2, false, kScaleMin>>();
  visit_format(part, visit);
}

/// Bytes of a block where the format has but one size; else 0.
template <typename F>
constexpr int fixed_block_bytes() {
  if (F::kBits == 16) return 4096;
  if (F::kScaleSets == 1) return 1152;
  if (F::kScaleSets == 4) return 1696;
  constexpr int kGroups = kBlockColumns / 32;
  switch (F::kKind) {
    case ScaleKind::kHalfPair:
      return 256 * F::kBits + kGroups * kTileRows * 4;
    case ScaleKind::kHalf:
      return 256 * F::kBits + kGroups * kTileRows * 2;
    case ScaleKind::kScaleMin:
      return 256 * F::kBits + kGroups * kTileRows * 2 + kTileRows * 4;
    default:
      return 0;
  }
}

#if defined(__CUDACC__)

// --- where a block lies ----------------------------------------------------------------------------------------------

/// In shared memory, by its 32-bit address. The loads are ordered by barriers alone (volatile, with a memory clobber).
struct SharedBlock {
  std::uint32_t address;
  __device__ __forceinline__ std::uint32_t load1(int offset) const {
    std::uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address + offset) : "memory");
    return v;
  }
  __device__ __forceinline__ uint2 load2(int offset) const {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address + offset) : "memory");
    return v;
  }
  __device__ __forceinline__ uint4 load4(int offset) const {
    return load_shared_16(address + offset);
  }
};

/// In global memory that nothing writes.
struct GlobalBlock {
  const std::uint8_t* data;
  __device__ __forceinline__ std::uint32_t load1(int offset) const {
    return __ldg(reinterpret_cast<const std::uint32_t*>(data + offset));
  }
  __device__ __forceinline__ uint2 load2(int offset) const {
    return __ldg(reinterpret_cast<const uint2*>(data + offset));
  }
  __device__ __forceinline__ uint4 load4(int offset) const {
    return __ldg(reinterpret_cast<const uint4*>(data + offset));
  }
};

// --- codes -----------------------------------------------------------------------------------------------------------

/// One lane's codes of half a block, plane after plane.
template <typename F>
struct HalfCodes {
  std::uint32_t words[F::kWordsPerHalf];
};

namespace detail {

// The lane's words of one plane of width `width`, from `words` on.
template <int width, typename Block>
__device__ __forceinline__ void load_plane(Block block, int offset, int half, int lane, std::uint32_t* words) {
  offset += half * (128 * width);
  if constexpr (width == 1) {
    words[0] = block.load1(offset + lane * 4);
  } else if constexpr (width == 2) {
    const uint2 v = block.load2(offset + lane * 8);
    words[0] = v.x, words[1] = v.y;
  } else {
#pragma unroll
    for (int run = 0; run < width / 4; ++run) {
      const uint4 v = block.load4(offset + run * 512 + lane * 16);
      words[4 * run] = v.x, words[4 * run + 1] = v.y, words[4 * run + 2] = v.z, words[4 * run + 3] = v.w;
    }
  }
}

}  // namespace detail

template <typename F, typename Block>
__device__ __forceinline__ HalfCodes<F> load_codes(Block block, int half, int lane) {
  HalfCodes<F> codes;
  constexpr int kFirst = F::kBits == 3 ? 2 : F::kBits == 5 || F::kBits == 6 ? 4 : F::kBits;
  detail::load_plane<kFirst>(block, 0, half, lane, codes.words);
  if constexpr (kFirst != F::kBits) {
    detail::load_plane<F::kBits - kFirst>(block, 256 * kFirst, half, lane, codes.words + kFirst);
  }
  return codes;
}

// --- scales ----------------------------------------------------------------------------------------------------------

/// Scales and biases of the lane's rows g (index 0) and g + 8 (index 1) in half a block. With fp32 arithmetic the scale is in units
/// of what a row's codes are read as (detail::code_units).
template <typename F, WeightArithmetic = F::kArithmetic>
struct HalfScales {};

template <typename F>
struct HalfScales<F, WeightArithmetic::kBf16> {
  std::uint32_t pairs[F::kScaleSets][2];  // scale in the low half, bias in the high one
};

template <typename F>
struct HalfScales<F, WeightArithmetic::kFloat> {
  static constexpr bool kWithBias = F::kScaleSets != 4;  // with four sets the bias is −32 times the scale
  float scale[F::kScaleSets][2];
  float bias[kWithBias ? F::kScaleSets : 1][2];
};

/// The same with scale and bias twice in a register of their own each. Slower by four instructions in half a block; but where
/// registers are short, ptxas doesn't overlap wgmma with an fma that takes halves of one (C7512).
template <typename F>
struct SpreadScales {
  std::uint32_t scale[F::kScaleSets][2];
  std::uint32_t bias[F::kScaleSets][2];
  __device__ __forceinline__ explicit SpreadScales(const HalfScales<F, WeightArithmetic::kBf16>& from) {
#pragma unroll
    for (int set = 0; set < F::kScaleSets; ++set) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        scale[set][row] = __byte_perm(from.pairs[set][row], 0, 0x1010);
        bias[set][row] = __byte_perm(from.pairs[set][row], 0, 0x3232);
      }
    }
  }
};

namespace detail {

__device__ __forceinline__ float half_to_float(std::uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// The halves of `pair` as fp16 numbers. Small integers there are read as subnormals, in units of 2^-24.
__device__ __forceinline__ float2 halves_to_floats(std::uint32_t pair) {
  float2 values;
  asm("{\n .reg .b16 low, high;\n mov.b32 {low, high}, %2;\n cvt.f32.f16 %0, low;\n cvt.f32.f16 %1, high;\n}"
      : "=f"(values.x), "=f"(values.y)
      : "r"(pair));
  return values;
}
constexpr float kIntegerUnits = 0x1p24f;

/// One over the unit that a row's codes come in (code_floats): a power of two, so multiplying by it is exact.
template <typename F>
__device__ constexpr float code_units(int row) {
  return F::kNibbles && row == 1 ? 0x1p20f : kIntegerUnits;
}

template <typename F>
__device__ __forceinline__ void set_pair(HalfScales<F>& scales, int set, int row, float scale, float bias) {
  scales.scale[set][row] = scale * code_units<F>(row);
  scales.bias[set][row] = bias;
}

// Bytes of one group's (row g, row g + 8) in the scale area.
__device__ __forceinline__ int group_scale_bytes(ScaleKind kind) {
  return kind == ScaleKind::kFloatPair ? 16 : kind == ScaleKind::kHalf || kind == ScaleKind::kScaleMin ? 4 : 8;
}

template <typename F, typename Block>
__device__ __forceinline__ void load_float_scales(Block block, const PackedPart& part, int half, int g,
                                                  HalfScales<F>& scales) {
  const ScaleKind kind = F::kKind == ScaleKind::kNone ? part.scale_kind : F::kKind;
  const int group_shift = F::kKind == ScaleKind::kNone ? part.group_shift : 5;
  const int group_bytes = group_scale_bytes(kind);
  const int at = 256 * F::kBits + g * ((kBlockColumns >> group_shift) * group_bytes);
  int places[2];
#pragma unroll
  for (int set = 0; set < 2; ++set) places[set] = at + ((64 * half + 32 * set) >> group_shift) * group_bytes;
  if (kind == ScaleKind::kHalfPair) {
#pragma unroll
    for (int set = 0; set < 2; ++set) {
      const uint2 rows = block.load2(places[set]);
      set_pair(scales, set, 0, half_to_float(rows.x & 0xffff), half_to_float(rows.x >> 16));
      set_pair(scales, set, 1, half_to_float(rows.y & 0xffff), half_to_float(rows.y >> 16));
    }
  } else if (kind == ScaleKind::kScaleMin) {
    const uint2 blocks = block.load2(256 * F::kBits + 128 + g * 8);
    const float2 low = halves_to_floats(blocks.x), high = halves_to_floats(blocks.y);  // (d, dmin) of a row each
    const float d[2] = {low.x * (code_units<F>(0) * kIntegerUnits), high.x * (code_units<F>(1) * kIntegerUnits)};
    const float d_minimum[2] = {low.y * -kIntegerUnits, high.y * -kIntegerUnits};
#pragma unroll
    for (int set = 0; set < 2; ++set) {
      const std::uint32_t bytes = block.load1(places[set]);
      const float2 scale = halves_to_floats(bytes & 0x00ff00ffu), minimum = halves_to_floats(bytes >> 8 & 0x00ff00ffu);
      scales.scale[set][0] = d[0] * scale.x;
      scales.scale[set][1] = d[1] * scale.y;
      scales.bias[set][0] = d_minimum[0] * minimum.x;
      scales.bias[set][1] = d_minimum[1] * minimum.y;
    }
  } else if (kind == ScaleKind::kHalf) {
    const float zero = static_cast<float>(-part.zero_point);
#pragma unroll
    for (int set = 0; set < 2; ++set) {
      const std::uint32_t rows = block.load1(places[set]);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float scale = half_to_float(row == 0 ? rows & 0xffff : rows >> 16);
        set_pair(scales, set, row, scale, zero * scale);
      }
    }
  } else {
#pragma unroll
    for (int set = 0; set < 2; ++set) {
      const uint4 rows = block.load4(places[set]);
      set_pair(scales, set, 0, __uint_as_float(rows.x), __uint_as_float(rows.y));
      set_pair(scales, set, 1, __uint_as_float(rows.z), __uint_as_float(rows.w));
    }
  }
}

}  // namespace detail

template <typename F, typename Block>
__device__ __forceinline__ HalfScales<F> load_scales(Block block, const PackedPart& part, int half, int lane) {
  HalfScales<F> scales;
  const int g = lane >> 2;
  if constexpr (F::kArithmetic == WeightArithmetic::kBf16 && F::kScaleSets == 1) {
    const uint2 rows = block.load2(256 * F::kBits + g * 16 + half * 8);
    scales.pairs[0][0] = rows.x, scales.pairs[0][1] = rows.y;
  } else if constexpr (F::kArithmetic == WeightArithmetic::kBf16) {
    const int at = 256 * F::kBits + g * (1024 >> part.group_shift);
#pragma unroll
    for (int set = 0; set < F::kScaleSets; ++set) {
      const int column = 64 * half + 32 * set;
      const uint2 rows = block.load2(at + (column >> part.group_shift) * 8);
      scales.pairs[set][0] = rows.x, scales.pairs[set][1] = rows.y;
    }
  } else if constexpr (F::kArithmetic == WeightArithmetic::kFloat && F::kScaleSets == 4) {
    const uint2 bytes = block.load2(256 * F::kBits + g * 16 + half * 8);
    const float2 blocks = detail::halves_to_floats(block.load1(256 * F::kBits + 128 + g * 4));  // d of a row each
    constexpr float kZero = 128.0f / detail::kIntegerUnits;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float d = (row == 0 ? blocks.x : blocks.y) * (detail::code_units<F>(row) * detail::kIntegerUnits);
#pragma unroll
      for (int word = 0; word < 2; ++word) {
        // Signed bytes: flipping the top bit adds 128.
        const float2 sets = detail::halves_to_floats(((word == 0 ? bytes.x : bytes.y) >> 8 * row & 0x00ff00ffu) ^ 0x00800080u);
        scales.scale[2 * word][row] = d * (sets.x - kZero);
        scales.scale[2 * word + 1][row] = d * (sets.y - kZero);
      }
    }
  } else if constexpr (F::kArithmetic == WeightArithmetic::kFloat) {
    detail::load_float_scales(block, part, half, g, scales);
  }
  return scales;
}

// --- fragments -------------------------------------------------------------------------------------------------------

namespace detail {

__device__ __forceinline__ std::uint32_t fma_bf16x2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

/// Both halves of `codes` times the low half of a pair plus its high half. Written so that the halves are chosen by the fma
/// itself.
template <typename F>
__device__ __forceinline__ std::uint32_t scale_pair(std::uint32_t codes, const HalfScales<F>& scales, int set, int row) {
  const std::uint32_t pair = scales.pairs[set][row];
  std::uint32_t d;
  asm("{\n .reg .b16 scale, bias;\n .reg .b32 scales, biases;\n mov.b32 {scale, bias}, %2;\n"
      " mov.b32 scales, {scale, scale};\n mov.b32 biases, {bias, bias};\n fma.rn.bf16x2 %0, %1, scales, biases;\n}"
      : "=r"(d)
      : "r"(codes), "r"(pair));
  return d;
}

template <typename F>
__device__ __forceinline__ std::uint32_t scale_pair(std::uint32_t codes, const SpreadScales<F>& scales, int set, int row) {
  return fma_bf16x2(codes, scales.scale[set][row], scales.bias[set][row]);
}

template <int amount>
__device__ __forceinline__ std::uint32_t rotate_left(std::uint32_t word) {
  constexpr int kAmount = amount & 31;
  return kAmount == 0 ? word : __funnelshift_l(word, word, kAmount);
}

// A step's codes of up to four bits as eight nibbles: nibble p the even k of register p, 4 + p the odd. Two-bit codes have
// others' bits above them.
template <typename F, int step>
__device__ __forceinline__ std::uint32_t nibble_word(const HalfCodes<F>& codes) {
  if constexpr (F::kBits == 4) {
    return codes.words[step];
  } else {
    const std::uint32_t low = codes.words[step / 2] >> (2 * (step % 2));
    if constexpr (F::kBits == 2) return low;
    return (low & 0x33333333u) | (rotate_left<2 - step>(codes.words[2]) & 0x44444444u);
  }
}

// A step's wider codes as bytes (even k of `first`, of first + 2, odd k of `first`, of first + 2), `first` being register 0
// or 1.
template <typename F, int step, int first>
__device__ __forceinline__ std::uint32_t byte_word(const HalfCodes<F>& codes) {
  if constexpr (F::kBits == 8) {
    return codes.words[2 * step + first];
  } else {
    const std::uint32_t low = codes.words[step] >> (4 * first);
    const std::uint32_t high = F::kBits == 5 ? rotate_left<4 - 4 * first - step>(codes.words[4])
                                             : rotate_left<4 - 4 * first - 2 * (step % 2)>(codes.words[4 + step / 2]);
    constexpr std::uint32_t kHigh = F::kBits == 5 ? 0x10101010u : 0x30303030u;
    return (low & 0x0f0f0f0fu) | (high & kHigh);
  }
}

// Two codes of register p as they are: bf16 numbers in units of 2^-133, nibbles of odd registers of 2^-129; fp16 numbers in units
// of 2^-24 and 2^-20.
template <typename F, int step, int p>
__device__ __forceinline__ std::uint32_t code_pair(const HalfCodes<F>& codes) {
  constexpr std::uint32_t kField = (1u << F::kBits) - 1;
  if constexpr (F::kNibbles) {
    return (nibble_word<F, step>(codes) >> (p / 2 * 8)) & (kField * (p % 2 == 0 ? 0x00010001u : 0x00100010u));
  } else {
    return (byte_word<F, step, p % 2>(codes) >> (p / 2 * 8)) & (kField * 0x00010001u);
  }
}

// The even and the odd k's code of register p, in units of 2^-24, nibbles of odd registers of 2^-20.
template <typename F, int step, int p>
__device__ __forceinline__ float2 code_floats(const HalfCodes<F>& codes) {
  return halves_to_floats(code_pair<F, step, p>(codes));
}

template <typename F, int step, int p, typename Scales>
__device__ __forceinline__ std::uint32_t fragment_register(const HalfCodes<F>& codes, const Scales& scales) {
  constexpr int kSet = step * F::kScaleSets / 4;
  constexpr int kRow = p % 2;
  if constexpr (F::kArithmetic == WeightArithmetic::kValues) {
    return codes.words[4 * step + p];
  } else if constexpr (F::kArithmetic == WeightArithmetic::kBf16) {
    std::uint32_t pair = code_pair<F, step, p>(codes);
    if constexpr (!F::kSmallScales || kRow == 0) pair = fma_bf16x2(pair, 0x7f007f00u, 0x80008000u);  // · 2^127 + −0
    return scale_pair(pair, scales, kSet, kRow);
  } else {
    const float2 q = code_floats<F, step, p>(codes);
    const float scale = scales.scale[kSet][kRow];
    float bias;
    if constexpr (HalfScales<F>::kWithBias) {
      bias = scales.bias[kSet][kRow];
    } else {
      bias = -32.0f / code_units<F>(kRow) * scale;
    }
    return bf16_pair(__fmaf_rn(q.x, scale, bias), __fmaf_rn(q.y, scale, bias));
  }
}

}  // namespace detail

/// The lane's A fragment of step `step` (0..3) of the half; scales as HalfScales or SpreadScales.
template <typename F, int step, typename Scales>
__device__ __forceinline__ void fragment(const HalfCodes<F>& codes, const Scales& scales, std::uint32_t (&a)[4]) {
  static_assert(step >= 0 && step < 4);
  a[0] = detail::fragment_register<F, step, 0>(codes, scales);
  a[1] = detail::fragment_register<F, step, 1>(codes, scales);
  a[2] = detail::fragment_register<F, step, 2>(codes, scales);
  a[3] = detail::fragment_register<F, step, 3>(codes, scales);
}

#endif  // __CUDACC__

}  // namespace tensorfold::ops::cuda
