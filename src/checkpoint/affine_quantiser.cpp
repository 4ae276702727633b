// See affine_quantiser.h.
#include "checkpoint/affine_quantiser.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "base/error.h"

namespace tensorfold {
namespace {

constexpr float kScaleMin = 1e-7f;             // mlx's
constexpr float kRoundingMagic = 12582912.0f;  // 1.5 · 2²³: adding and taking it away rounds half to even
constexpr float kRoundingRange = 4194304.0f;   // up to where that works

float round_to_even(float value) {
  if (!(std::fabs(value) < kRoundingRange)) return std::nearbyintf(value);
  return (value + kRoundingMagic) - kRoundingMagic;
}

// Nearest even by integers, so that no thread's rounding or denormal mode matters.
std::uint16_t to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // rounds to 65536 or beyond
  if (magnitude >= 0x38800000u) {
    const std::uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
    return sign | static_cast<std::uint16_t>(rounded >> 13);
  }
  if (magnitude < 0x33000000u) return sign;
  const std::uint32_t shift = 126u - (magnitude >> 23);  // subnormal halves: steps of 2^-24
  const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const std::uint32_t half = 1u << (shift - 1), kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1u);
  return sign | static_cast<std::uint16_t>(kept + (rest > half || (rest == half && (kept & 1u)) ? 1u : 0u));
}

std::size_t scalar_bytes(WeightFormat format) {
  return static_cast<std::size_t>(weight_format_block(format).bytes);
}

float load_scalar(WeightFormat format, const std::byte* data) {
  WeightView view;
  view.format = format;
  view.rows = view.columns = 1;
  view.data = data;
  view.data_bytes = scalar_bytes(format);
  float value = 0.0f;
  decode_row(view, 0, 0, &value);
  return value;
}

// A row is one little-endian bit stream.
void pack(const std::vector<std::uint8_t>& codes, int bits, std::byte* out) {
  std::uint64_t window = 0;
  int filled = 0;
  for (const std::uint8_t code : codes) {
    window |= static_cast<std::uint64_t>(code) << filled;
    filled += bits;
    for (; filled >= 8; filled -= 8, window >>= 8) *out++ = static_cast<std::byte>(window & 0xffu);
  }
  TF_ASSERT(filled == 0);
}

}  // namespace

bool affine_setting_exists(const AffineSetting& setting) {
  const bool bits = setting.bits >= 2 && setting.bits <= 8 && setting.bits != 7;
  return bits && (setting.group_size == 32 || setting.group_size == 64 || setting.group_size == 128);
}

void store_scalar(WeightFormat format, float value, std::byte* out) {
  if (format == WeightFormat::kF32) {
    std::memcpy(out, &value, sizeof(value));
    return;
  }
  TF_ASSERT(format == WeightFormat::kBF16 || format == WeightFormat::kF16);
  const std::uint16_t bits = format == WeightFormat::kBF16 ? to_bf16(value).bits : to_half(value);
  std::memcpy(out, &bits, sizeof(bits));
}

AffineQuantiser::AffineQuantiser(const AffineSetting& setting, WeightFormat scale_format, std::int64_t columns)
    : setting_(setting), scale_format_(scale_format), columns_(columns), scalar_bytes_(scalar_bytes(scale_format)) {
  TF_ASSERT(affine_setting_exists(setting) && columns > 0 && columns % setting.group_size == 0);
  code_bytes_ = static_cast<std::size_t>(columns) * static_cast<std::size_t>(setting.bits) / 8;
  scale_bytes_ = static_cast<std::size_t>(columns / setting.group_size) * scalar_bytes_;
  row_codes_.resize(static_cast<std::size_t>(columns));
}

void AffineQuantiser::encode(const float* values, std::byte* codes, std::byte* scales, std::byte* biases,
                             float* decoded) {
  const std::int64_t groups = columns_ / setting_.group_size;
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::int64_t first = group * setting_.group_size;
    const auto at = static_cast<std::size_t>(group) * scalar_bytes_;
    encode_group(values + first, scales + at, biases + at, decoded + first, row_codes_.data() + first);
  }
  pack(row_codes_, setting_.bits, codes);
}

void AffineQuantiser::encode_group(const float* values, std::byte* scale_out, std::byte* bias_out, float* decoded,
                                   std::uint8_t* codes) const {
  const float levels = static_cast<float>((1 << setting_.bits) - 1);
  const auto [lowest, highest] = std::minmax_element(values, values + setting_.group_size);
  const float low = *lowest, high = *highest;
  const bool from_low = std::fabs(low) > std::fabs(high);
  float scale = std::max((high - low) / levels, kScaleMin);
  if (!from_low) scale = -scale;
  const float edge = from_low ? low : high;
  const float steps = round_to_even(edge / scale);
  float bias = 0.0f;
  if (steps != 0.0f) {
    scale = edge / steps;
    bias = edge;
  }
  store_scalar(scale_format_, scale, scale_out);
  store_scalar(scale_format_, bias, bias_out);
  const float seen_scale = load_scalar(scale_format_, scale_out), seen_bias = load_scalar(scale_format_, bias_out);
  for (int i = 0; i < setting_.group_size; ++i) {
    const float code = std::clamp(round_to_even((values[i] - bias) / scale), 0.0f, levels);
    codes[i] = static_cast<std::uint8_t>(code);
    decoded[i] = std::fmaf(code, seen_scale, seen_bias);
  }
}

}  // namespace tensorfold
