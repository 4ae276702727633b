// One weight of a packed part, found by the layout's formulas (packed_linear.h) and computed by the rule, number by number:
// for embedding lookups. Apart from dequantise.cuh, whose unit is a warp's fragments.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "ops/cuda/linear/packed_linear.h"

namespace tensorfold::ops::cuda {

namespace detail {

/// Where a weight lies within its block.
struct WeightPlace {
  int g, high;            // row: g + 8 · high
  int column;             // of the block
  int lane, step, p, odd;  // whose fragment register it is in
};

__device__ inline WeightPlace weight_place(int row, int column) {
  WeightPlace place;
  place.g = row % 8;
  place.high = row / 8;
  place.column = column;
  place.step = column / 16;
  const int k = column % 16;
  place.lane = 4 * place.g + k % 8 / 2;
  place.p = place.high + 2 * (k / 8);
  place.odd = k % 2;
  return place;
}

__device__ inline std::uint32_t word_at(const std::uint8_t* data) {
  return *reinterpret_cast<const std::uint32_t*>(data);
}

__device__ inline std::uint32_t plane_bits(const std::uint8_t* plane, int width, const WeightPlace& at) {
  const int half = at.step / 4, step = at.step % 4;
  if (width == 8) {
    const int word = 2 * step + at.p % 2;
    const std::uint8_t* from = plane + half * 1024 + word / 4 * 512 + at.lane * 16 + word % 4 * 4;
    return from[at.p / 2 + 2 * at.odd];
  }
  const int steps_per_word = 4 / width;
  const std::uint32_t word = word_at(plane + half * 128 * width + (at.lane * width + step / steps_per_word) * 4);
  return word >> (4 * at.p + 16 * at.odd + width * (step % steps_per_word)) & ((1u << width) - 1);
}

__device__ inline std::uint32_t code_bits(const std::uint8_t* block, int bits, const WeightPlace& at) {
  const int first = bits == 3 ? 2 : bits == 5 || bits == 6 ? 4 : bits;
  std::uint32_t code = plane_bits(block, first, at);
  if (first != bits) code |= plane_bits(block + 256 * first, bits - first, at) << first;
  return code;
}

__device__ inline float half_at(const std::uint8_t* data) {
  return __half2float(*reinterpret_cast<const __half*>(data));
}

__device__ inline __nv_bfloat16 bf16_at(const std::uint8_t* data) {
  return *reinterpret_cast<const __nv_bfloat16*>(data);
}

}  // namespace detail

/// Row `row` of tile `tile`, column `column`, as the bf16 that the product sees.
__device__ inline __nv_bfloat16 packed_value(const PackedPart& part, int tile, int row, int column) {
  const std::int64_t index = static_cast<std::int64_t>(tile) * part.k_blocks + column / kBlockColumns;
  const std::uint8_t* block = part.blocks + index * part.block_bytes;
  const detail::WeightPlace at = detail::weight_place(row, column % kBlockColumns);
  if (part.bits == 16) return detail::bf16_at(block + at.step * 512 + at.lane * 16 + at.p * 4 + at.odd * 2);
  const auto q = static_cast<float>(detail::code_bits(block, part.bits, at));
  const std::uint8_t* scales = block + 256 * part.bits;
  const int group = at.column / part.group_size, groups = kBlockColumns / part.group_size;
  const int pair = (at.g * groups + group) * 2 + at.high;
  switch (part.scale_kind) {
    case ScaleKind::kBf16Pair: {
      const int exponent = scale_exponent(part.bits, part.small_scales != 0, at.high != 0);
      const float stored = __bfloat162float(detail::bf16_at(scales + pair * 4));
      const __nv_bfloat16 scale = __float2bfloat16_rn(ldexpf(stored, -exponent));
      return __hfma(__float2bfloat16_rn(q), scale, detail::bf16_at(scales + pair * 4 + 2));
    }
    case ScaleKind::kHalfPair:
      return __float2bfloat16_rn(__fmaf_rn(q, detail::half_at(scales + pair * 4), detail::half_at(scales + pair * 4 + 2)));
    case ScaleKind::kFloatPair: {
      const auto* values = reinterpret_cast<const float*>(scales + pair * 8);
      return __float2bfloat16_rn(__fmaf_rn(q, values[0], values[1]));
    }
    case ScaleKind::kHalf: {
      const float scale = detail::half_at(scales + pair * 2);
      // Q8_0 multiplies the signed value, which keeps the sign of a zero.
      if (part.bits == 8) return __float2bfloat16_rn((q - static_cast<float>(part.zero_point)) * scale);
      return __float2bfloat16_rn(__fmaf_rn(q, scale, static_cast<float>(-part.zero_point) * scale));
    }
    case ScaleKind::kScaleMin: {
      const std::uint8_t* d = scales + 128 + at.g * 8 + at.high * 4;
      const float scale = detail::half_at(d) * static_cast<float>(scales[pair * 2]);
      const float minimum = detail::half_at(d + 2) * static_cast<float>(scales[pair * 2 + 1]);
      return __float2bfloat16_rn(__fmaf_rn(q, scale, -minimum));
    }
    default: {
      const float d = detail::half_at(scales + 128 + at.g * 4 + at.high * 2);
      const float scale = d * static_cast<float>(static_cast<std::int8_t>(scales[pair]));
      return __float2bfloat16_rn(__fmaf_rn(q, scale, -32.0f * scale));
    }
  }
}

}  // namespace tensorfold::ops::cuda
