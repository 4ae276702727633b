// See pack_tile.h.
#include "ops/cuda/linear/pack_tile.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "base/error.h"
#include "base/stored_numbers.h"
#include "ops/linear_source.h"

namespace tensorfold::ops::cuda {
namespace {

constexpr float kLargestPackedScale = 0x1p100f;
constexpr float kSmallestPackedScale = 0x1p-100f;
constexpr float kSmallScale = 0.5f;

template <typename Value>
Value load(const void* from) {
  Value value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename Value>
void store(std::uint8_t* to, Value value) {
  std::memcpy(to, &value, sizeof value);
}

int scale_bytes(WeightFormat format) {
  return format == WeightFormat::kF32 ? 4 : 2;
}

float scale_at(const WeightView& view, const std::byte* values, std::int64_t index) {
  const std::byte* at = values + index * scale_bytes(view.scale_format);
  if (view.scale_format == WeightFormat::kF32) return load<float>(at);
  const auto bits = load<std::uint16_t>(at);
  return view.scale_format == WeightFormat::kF16 ? half_to_float(bits) : to_float(Bf16{bits});
}

// --- codes -----------------------------------------------------------------------------------------------------------

using Words = std::uint32_t __attribute__((vector_size(16)));        // of the lanes t = 0..3 of one g
using HalfWords = std::uint16_t __attribute__((vector_size(8)));

// Two neighbouring codes of each of four lanes, the even k in the low half-word.
Words code_pairs(const std::uint8_t* codes, std::uint32_t shift, std::uint32_t mask) {
  const Words pairs = __builtin_convertvector(load<HalfWords>(codes), Words) >> shift;
  return (pairs & mask) | ((pairs & (mask << 8)) << 8);
}

// One half of a plane of width 1, 2 or 4: bits [shift, shift + width) of the codes, which begin at the half's first column.
template <int width>
void pack_nibble_plane(const std::uint8_t* codes, std::int64_t stride, int shift, std::uint8_t* out) {
  constexpr int kStepsPerWord = 4 / width;
  constexpr std::uint32_t kMask = (1u << width) - 1;
  for (int g = 0; g < 8; ++g) {
    const std::uint8_t* low = codes + g * stride;
    const std::uint8_t* high = low + 8 * stride;
    for (int word = 0; word < width; ++word) {
      Words words = {};
      for (int o = 0; o < kStepsPerWord; ++o) {
        const int k = 16 * (word * kStepsPerWord + o);
        const auto bits = static_cast<std::uint32_t>(shift);
        words |= (code_pairs(low + k, bits, kMask) | code_pairs(high + k, bits, kMask) << 4 |
                  code_pairs(low + k + 8, bits, kMask) << 8 | code_pairs(high + k + 8, bits, kMask) << 12)
                 << (width * o);
      }
      for (int t = 0; t < 4; ++t) store<std::uint32_t>(out + ((4 * g + t) * width + word) * 4, words[t]);
    }
  }
}

void pack_byte_plane(const std::uint8_t* codes, std::int64_t stride, std::uint8_t* out) {
  for (int g = 0; g < 8; ++g) {
    for (int step = 0; step < 4; ++step) {
      for (int first = 0; first < 2; ++first) {
        const std::uint8_t* row = codes + (g + 8 * first) * stride + 16 * step;
        const int word = 2 * step + first;
        const Words words = code_pairs(row, 0, 0xff) | code_pairs(row + 8, 0, 0xff) << 8;
        for (int t = 0; t < 4; ++t) store<std::uint32_t>(out + word / 4 * 512 + (4 * g + t) * 16 + word % 4 * 4, words[t]);
      }
    }
  }
}

void pack_block_codes(std::int32_t bits, const std::uint8_t* codes, std::int64_t stride, std::uint8_t* out) {
  for (int half = 0; half < 2; ++half, codes += 64) {
    switch (bits) {
      case 2:
        pack_nibble_plane<2>(codes, stride, 0, out + half * 256);
        break;
      case 3:
        pack_nibble_plane<2>(codes, stride, 0, out + half * 256);
        pack_nibble_plane<1>(codes, stride, 2, out + 512 + half * 128);
        break;
      case 4:
        pack_nibble_plane<4>(codes, stride, 0, out + half * 512);
        break;
      case 5:
        pack_nibble_plane<4>(codes, stride, 0, out + half * 512);
        pack_nibble_plane<1>(codes, stride, 4, out + 1024 + half * 128);
        break;
      case 6:
        pack_nibble_plane<4>(codes, stride, 0, out + half * 512);
        pack_nibble_plane<2>(codes, stride, 4, out + 1024 + half * 256);
        break;
      default:
        pack_byte_plane(codes, stride, out + half * 1024);
    }
  }
}

void pack_block_values(const std::uint16_t* values, std::int64_t stride, std::uint8_t* out) {
  for (int step = 0; step < 8; ++step) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int p = 0; p < 4; ++p) {
        const std::uint16_t* pair = values + (lane / 4 + 8 * (p & 1)) * stride + 16 * step + 2 * (lane % 4) + 8 * (p >> 1);
        std::memcpy(out + step * 512 + lane * 16 + p * 4, pair, 4);
      }
    }
  }
}

// --- scales ----------------------------------------------------------------------------------------------------------

std::uint16_t scaled_bf16(std::uint16_t bits, std::int32_t exponent) {
  // In two steps, each of which fp32 holds; products are bf16 numbers again, so the low half is zero.
  const float value = to_float(Bf16{bits}) * std::ldexp(1.0f, exponent / 2) * std::ldexp(1.0f, exponent - exponent / 2);
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}

// `scales`: the tile's first block's scale area. `row` is the row of the tile.
void pack_affine_scales(const PackedPart& part, const TileRow& from, int row, std::uint8_t* scales) {
  const WeightView& view = *from.view;
  const std::int64_t groups = view.columns / view.group_size;
  const int groups_per_block = kBlockColumns / view.group_size;
  const int size = scale_bytes(view.scale_format);
  const std::byte* scale = view.scales + from.stored_row * groups * size;
  const std::byte* bias = view.biases + from.stored_row * groups * size;
  const std::int32_t exponent = scale_exponent(part.bits, part.small_scales != 0, row >= 8);
  std::uint8_t* const lane = scales + row % 8 * (groups_per_block * 4 * size) + row / 8 * (2 * size);
  for (std::int64_t group = 0; group < groups; ++group, scale += size, bias += size) {
    std::uint8_t* to = lane + group / groups_per_block * part.block_bytes + group % groups_per_block * (4 * size);
    if (part.scale_kind == ScaleKind::kBf16Pair) {
      store<std::uint16_t>(to, scaled_bf16(load<std::uint16_t>(scale), exponent));
    } else {
      std::memcpy(to, scale, static_cast<std::size_t>(size));
    }
    std::memcpy(to + size, bias, static_cast<std::size_t>(size));
  }
}

// Of one row of a GGUF format, whose blocks begin at `stored`.
void pack_gguf_scales(const PackedPart& part, WeightFormat format, const std::uint8_t* stored, std::int64_t columns, int row,
                      std::uint8_t* scales) {
  const BlockShape shape = weight_format_block(format);
  const int g = row % 8, high = row / 8;
  for (std::int64_t k = 0; k < columns; k += shape.elements, stored += shape.bytes) {
    std::uint8_t* block = scales + k / kBlockColumns * part.block_bytes;
    const auto group = static_cast<int>(k % kBlockColumns / 32);
    switch (format) {
      case WeightFormat::kQ4_1:
      case WeightFormat::kQ5_1:
        std::memcpy(block + g * 32 + group * 8 + high * 4, stored, 4);
        break;
      case WeightFormat::kQ4_K:
      case WeightFormat::kQ5_K:
        for (int sub = 0; sub < 8; ++sub) {
          std::uint32_t scale = 0, minimum = 0;
          load_k_scale(stored + 4, sub, &scale, &minimum);
          std::uint8_t* to = block + sub / 4 * part.block_bytes + g * 16 + sub % 4 * 4 + high * 2;
          to[0] = static_cast<std::uint8_t>(scale);
          to[1] = static_cast<std::uint8_t>(minimum);
        }
        for (int half = 0; half < 2; ++half) {
          std::memcpy(block + half * part.block_bytes + 128 + g * 8 + high * 4, stored, 4);
        }
        break;
      case WeightFormat::kQ6_K:
        for (int sub = 0; sub < 16; ++sub) {
          block[sub / 8 * part.block_bytes + g * 16 + sub % 8 * 2 + high] = stored[192 + sub];
        }
        for (int half = 0; half < 2; ++half) {
          std::memcpy(block + half * part.block_bytes + 128 + g * 4 + high * 2, stored + 208, 2);
        }
        break;
      default:  // Q4_0, Q5_0, Q8_0
        std::memcpy(block + g * 16 + group * 4 + high * 2, stored, 2);
    }
  }
}

// --- values ----------------------------------------------------------------------------------------------------------

// bf16(q·scale + bias), rounded once. The product is exact in double; where the sum isn't, its last bit is made odd, so that
// rounding it again can't meet a tie that isn't one.
std::uint16_t fused_bf16(std::uint32_t code, float scale, float bias) {
  const double product = static_cast<double>(code) * static_cast<double>(scale);
  const double addend = static_cast<double>(bias);
  double sum = product + addend;
  if (std::isfinite(sum)) {
    const double virtual_addend = sum - product;
    const double error = (product - (sum - virtual_addend)) + (addend - virtual_addend);
    auto bits = std::bit_cast<std::uint64_t>(sum);
    if (error != 0.0 && (bits & 1) == 0) {
      bits += (error > 0.0) == (sum > 0.0) ? 1 : -1ull;
      sum = std::bit_cast<double>(bits);
    }
  }
  if (std::isnan(sum)) return 0x7fff;
  // Round to bf16, subnormals included: eight significant bits, or the grid of 2^-133.
  const double magnitude = std::fabs(sum);
  std::uint32_t result = 0;
  if (magnitude < 0x1p-126) {
    result = static_cast<std::uint32_t>(std::nearbyint(magnitude * 0x1p133));
  } else if (magnitude >= 0x1p128) {
    result = 0x7f80;
  } else {
    const int exponent = std::ilogb(magnitude);
    // A mantissa that rounds up to the next binade carries into the exponent field.
    const auto mantissa = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(magnitude, 7 - exponent)));
    result = (static_cast<std::uint32_t>(exponent + 127) << 7) + (mantissa - 128);
  }
  return static_cast<std::uint16_t>(result | (std::signbit(sum) ? 0x8000u : 0u));
}

}  // namespace

PackedStorage packed_storage(const WeightView& view) {
  switch (view.format) {
    case WeightFormat::kAffine: {
      const ScaleKind kind = view.scale_format == WeightFormat::kF32   ? ScaleKind::kFloatPair
                             : view.scale_format == WeightFormat::kF16 ? ScaleKind::kHalfPair
                                                                       : ScaleKind::kBf16Pair;
      return {view.bits, kind, view.group_size, 0};
    }
    case WeightFormat::kQ4_0:
      return {4, ScaleKind::kHalf, 32, 8};
    case WeightFormat::kQ4_1:
      return {4, ScaleKind::kHalfPair, 32, 0};
    case WeightFormat::kQ5_0:
      return {5, ScaleKind::kHalf, 32, 16};
    case WeightFormat::kQ5_1:
      return {5, ScaleKind::kHalfPair, 32, 0};
    case WeightFormat::kQ8_0:
      return {8, ScaleKind::kHalf, 32, 128};
    case WeightFormat::kQ4_K:
      return {4, ScaleKind::kScaleMin, 32, 0};
    case WeightFormat::kQ5_K:
      return {5, ScaleKind::kScaleMin, 32, 0};
    case WeightFormat::kQ6_K:
      return {6, ScaleKind::kScale, 16, 0};
    default:
      return {16, ScaleKind::kNone, kBlockColumns, 0};
  }
}

std::int32_t packed_block_bytes(const PackedStorage& storage) {
  const std::int32_t codes = 256 * storage.bits;
  const std::int32_t groups = kBlockColumns / storage.group_size;
  switch (storage.scale_kind) {
    case ScaleKind::kNone:
      return codes;
    case ScaleKind::kBf16Pair:
    case ScaleKind::kHalfPair:
      return codes + groups * kTileRows * 4;
    case ScaleKind::kFloatPair:
      return codes + groups * kTileRows * 8;
    case ScaleKind::kHalf:
      return codes + groups * kTileRows * 2;
    case ScaleKind::kScaleMin:
      return codes + groups * kTileRows * 2 + kTileRows * 4;
    case ScaleKind::kScale:
      return codes + groups * kTileRows + kTileRows * 2;
  }
  return codes;
}

ScaleRange scale_range(const WeightView& view, std::int64_t first_row, std::int64_t row_count) {
  ScaleRange range;
  if (view.format != WeightFormat::kAffine) return range;
  const std::int64_t groups = view.columns / view.group_size;
  const bool full_range = view.scale_format == WeightFormat::kF32;
  float largest = 0.0f, smallest = kLargestPackedScale;
  for (std::int64_t i = first_row * groups; i < (first_row + row_count) * groups; ++i) {
    const float scale = std::fabs(scale_at(view, view.scales, i));
    if (!(scale < kSmallScale)) range.small = false;  // or not a number
    if (std::isfinite(scale)) largest = std::max(largest, scale);
    if (!full_range) continue;
    const float bias = std::fabs(scale_at(view, view.biases, i));
    if (scale > 0.0f) smallest = std::min(smallest, scale);
    if (bias > 0.0f) smallest = std::min(smallest, bias);
  }
  range.extreme = largest > kLargestPackedScale || smallest < kSmallestPackedScale;
  return range;
}

void packed_row_values(const WeightView& view, std::int64_t expert, std::int64_t row, std::uint16_t* values) {
  const bool one_rounding = view.format == WeightFormat::kAffine && view.scale_format == WeightFormat::kBF16;
  if (!one_rounding) {
    std::vector<float> decoded(static_cast<std::size_t>(view.columns));
    decode_row(view, expert, row, decoded.data());
    for (std::int64_t k = 0; k < view.columns; ++k) values[k] = to_bf16(decoded[static_cast<std::size_t>(k)]).bits;
    return;
  }
  const std::int64_t stored = expert * view.rows + row;
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(view.columns));
  read_codes(view, view.data + stored * stored_row_bytes(view), codes.data());
  for (std::int64_t k = 0; k < view.columns; ++k) {
    const std::int64_t group = (stored * view.columns + k) / view.group_size;
    values[k] = fused_bf16(codes[static_cast<std::size_t>(k)], scale_at(view, view.scales, group),
                           scale_at(view, view.biases, group));
  }
}

void TilePacker::pack(const PackedPart& part, const std::array<TileRow, kTileRows>& rows, std::uint8_t* out) {
  if (part.bits == 16) {
    pack_values(part, rows, out);
  } else {
    pack_codes(part, rows, out);
  }
}

void TilePacker::pack_values(const PackedPart& part, const std::array<TileRow, kTileRows>& rows, std::uint8_t* out) {
  const std::int64_t stride = static_cast<std::int64_t>(part.k_blocks) * kBlockColumns;
  values_.resize(static_cast<std::size_t>(kTileRows * stride));
  for (int row = 0; row < kTileRows; ++row) {
    std::uint16_t* to = values_.data() + row * stride;
    const TileRow& from = rows[static_cast<std::size_t>(row)];
    const std::int64_t filled = from.view != nullptr ? part.columns : 0;
    std::fill(to + filled, to + stride, std::uint16_t{0});
    if (from.view == nullptr) continue;
    const WeightView& view = *from.view;
    if (view.format == WeightFormat::kF32 || view.format == WeightFormat::kF16 || view.format == WeightFormat::kBF16) {
      read_bf16(view, view.data + from.stored_row * stored_row_bytes(view), to);
    } else {
      packed_row_values(view, from.stored_row / view.rows, from.stored_row % view.rows, to);
    }
  }
  for (std::int32_t block = 0; block < part.k_blocks; ++block) {
    pack_block_values(values_.data() + block * kBlockColumns, stride, out + static_cast<std::int64_t>(block) * part.block_bytes);
  }
}

void TilePacker::pack_codes(const PackedPart& part, const std::array<TileRow, kTileRows>& rows, std::uint8_t* out) {
  const std::int64_t stride = static_cast<std::int64_t>(part.k_blocks) * kBlockColumns;
  codes_.resize(static_cast<std::size_t>(kTileRows * stride));
  const bool padded = stride != part.columns || rows.back().view == nullptr;
  if (padded) {
    std::fill(codes_.begin(), codes_.end(), std::uint8_t{0});
    std::memset(out, 0, static_cast<std::size_t>(part.k_blocks) * static_cast<std::size_t>(part.block_bytes));
  }
  std::uint8_t* scales = out + 256 * part.bits;
  for (int row = 0; row < kTileRows; ++row) {
    const TileRow& from = rows[static_cast<std::size_t>(row)];
    if (from.view == nullptr) continue;
    const WeightView& view = *from.view;
    const std::byte* stored = view.data + from.stored_row * stored_row_bytes(view);
    read_codes(view, stored, codes_.data() + row * stride);
    if (view.format == WeightFormat::kAffine) {
      pack_affine_scales(part, from, row, scales);
    } else {
      pack_gguf_scales(part, view.format, reinterpret_cast<const std::uint8_t*>(stored), view.columns, row, scales);
    }
  }
  for (std::int32_t block = 0; block < part.k_blocks; ++block) {
    pack_block_codes(part.bits, codes_.data() + block * kBlockColumns, stride,
                     out + static_cast<std::int64_t>(block) * part.block_bytes);
  }
}

}  // namespace tensorfold::ops::cuda
