// Embedding lookups: rows of a packed table, decoded by plain code. A lookup touches a few rows a pass, so it reads the
// panels as they are and has no kernel of its own.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "base/error.h"
#include "base/stored_numbers.h"
#include "ops/cpu/linear.h"
#include "ops/cpu/pack_panel.h"

namespace tensorfold::ops::cpu {
namespace {

float f16_at(const std::uint8_t* values, int lane) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, values + 2 * lane, sizeof bits);
  return half_to_float(bits);
}

struct ScaleBias {
  float scale, bias;
};

ScaleBias pair_at(ScaleKind kind, const std::uint8_t* group, int lane) {
  if (kind == ScaleKind::kPairF16) return {f16_at(group, lane), f16_at(group + 32, lane)};
  const std::size_t size = kind == ScaleKind::kPairF32 ? 4 : 2;
  float result[2];
  for (std::size_t i = 0; i < 2; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, group + (16 * i + static_cast<std::size_t>(lane)) * size, size);
    result[i] = std::bit_cast<float>(size == 2 ? bits << 16 : bits);
  }
  return {result[0], result[1]};
}

ScaleBias super4_at(const std::uint8_t* group, int sub, int lane) {
  std::uint8_t packed[12];
  for (int i = 0; i < 3; ++i) std::memcpy(packed + 4 * i, group + 64 + 64 * i + 4 * lane, 4);
  std::uint32_t scale = 0, min = 0;
  load_k_scale(packed, sub, &scale, &min);
  return {f16_at(group, lane) * static_cast<float>(scale), -(f16_at(group + 32, lane) * static_cast<float>(min))};
}

// Scale and bias of 16 consecutive k, `half` being 16 k.
ScaleBias scales_at(const PanelLayout& layout, const std::uint8_t* scales, std::int64_t half, int lane) {
  const std::int64_t block = half / 2;
  const std::int64_t group = block / layout.group_blocks;
  switch (layout.scale_kind) {
    case ScaleKind::kPairF32:
      return pair_at(layout.scale_kind, scales + group * 128, lane);
    case ScaleKind::kPairF16:
    case ScaleKind::kPairBf16:
      return pair_at(layout.scale_kind, scales + group * 64, lane);
    case ScaleKind::kOffset: {
      const float d = f16_at(scales + block * 32, lane);
      return {d, -layout.offset * d};
    }
    case ScaleKind::kSuper4:
      return super4_at(scales + group * 256, static_cast<int>(block & 7), lane);
    case ScaleKind::kSuper6: {
      const std::uint8_t* at = scales + group * 288;
      const auto sub = static_cast<std::int8_t>(at[32 + 16 * (half & 15) + lane]);
      const float scale = f16_at(at, lane) * static_cast<float>(sub);
      return {scale, -32.0f * scale};
    }
    case ScaleKind::kNone:
      break;
  }
  return {0.0f, 0.0f};
}

void decode_plain_lane(const PanelLayout& layout, const std::uint8_t* panel, int lane, std::int64_t columns,
                       float* out) {
  for (std::int64_t first = 0; first < columns; first += kBlockColumns) {
    std::uint16_t values[kBlockColumns];
    read_block_bf16(layout, panel, first / kBlockColumns, lane, values);
    const std::int64_t count = std::min<std::int64_t>(kBlockColumns, columns - first);
    for (std::int64_t k = 0; k < count; ++k) out[first + k] = to_float(Bf16{values[k]});
  }
}

void decode_lane(const PanelLayout& layout, const std::uint8_t* panel, int lane, std::int64_t columns, float* out) {
  if (layout.bits == kBf16Bits) return decode_plain_lane(layout, panel, lane, columns, out);
  const DefaultModeScope scope;
  const bool signed_bytes = layout.scale_kind == ScaleKind::kOffset && layout.bits == 8;
  // Columns of quantised formats are a multiple of a block.
  for (std::int64_t first = 0; first < columns; first += kBlockColumns) {
    std::uint8_t codes[kBlockColumns];
    read_block_codes(layout, panel, first / kBlockColumns, lane, codes);
    ScaleBias group{};
    for (int k = 0; k < kBlockColumns; ++k) {
      if (k % 16 == 0) group = scales_at(layout, panel + layout.codes_bytes, (first + k) / 16, lane);
      const auto code = static_cast<float>(codes[k]);
      // decode_row multiplies Q8_0's signed value, which keeps the sign of a zero.
      out[first + k] = signed_bytes ? (code - layout.offset) * group.scale : std::fmaf(code, group.scale, group.bias);
    }
  }
}

}  // namespace

void decode_packed_row(const CpuLinear& weight, std::int64_t expert, std::int64_t row, float* out) {
  TF_ASSERT(expert >= 0 && expert < weight.experts() && row >= 0 && row < weight.rows());
  for (const PackedPart& part : weight.parts()) {
    const std::int64_t in_part = row - part.first_row;
    if (in_part >= part.rows) continue;
    const std::int64_t panel = expert * part.panels + in_part / kPanelRows;
    decode_lane(part.layout, part.data() + panel * part.layout.panel_bytes,
                static_cast<int>(in_part % kPanelRows), weight.columns(), out);
    return;
  }
}

void embed(ThreadPool& pool, const EmbedParams& params) {
  TF_ASSERT(params.rows == 0 || (params.table != nullptr && params.tokens != nullptr && params.out != nullptr));
  pool.parallel_for(params.rows, [&](std::int64_t row, int) {
    const auto& table = static_cast<const CpuLinear&>(*params.table);
    float* out = params.out + row * table.columns();
    decode_packed_row(table, 0, params.tokens[row], out);
    for (std::int64_t k = 0; k < table.columns(); ++k) out[k] = to_float(to_bf16(out[k])) * params.scale;
  });
}

}  // namespace tensorfold::ops::cpu
