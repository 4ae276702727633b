// See quantise.h.
#include "model/quantise.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/bf16.h"
#include "base/error.h"

namespace tensorfold {
namespace {

constexpr float kRoundingMagic = 12582912.0f;  // 1.5 · 2²³: adding and taking it away rounds half to even

/// One group's codes, two a byte, low nibble first.
void quantise_group(const float* values, std::byte* codes, Bf16& scale, Bf16& bias) {
  const auto [low, high] = std::minmax_element(values, values + kQuantisedGroup);
  scale = to_bf16(std::max((*high - *low) / 15.0f, 1e-8f));
  bias = to_bf16(*low);
  const float step = to_float(scale), origin = to_float(bias);
  std::uint8_t code[kQuantisedGroup];
  for (int i = 0; i < kQuantisedGroup; ++i) {
    const float rounded = ((values[i] - origin) / step + kRoundingMagic) - kRoundingMagic;
    code[i] = static_cast<std::uint8_t>(std::clamp(rounded, 0.0f, 15.0f));
  }
  for (int i = 0; i < kQuantisedGroup; i += 2) {
    codes[i / 2] = static_cast<std::byte>(code[i] | (code[i + 1] << 4));
  }
}

}  // namespace

WeightView quantise_4bit(const WeightView& view, GatheredStack& stack) {
  TF_ASSERT(weight_format_block(view.format).elements == 1 && view.experts == 1);
  TF_ASSERT(view.columns % kQuantisedGroup == 0);
  const auto rows = static_cast<std::size_t>(view.rows);
  const auto columns = static_cast<std::size_t>(view.columns), groups = columns / kQuantisedGroup;
  stack.data.resize(rows * columns / 2);
  stack.scales.resize(rows * groups * sizeof(Bf16));
  stack.biases.resize(rows * groups * sizeof(Bf16));
  std::vector<float> values(columns);
  for (std::size_t row = 0; row < rows; ++row) {
    decode_row(view, 0, static_cast<std::int64_t>(row), values.data());
    for (std::size_t group = 0; group < groups; ++group) {
      Bf16 scale, bias;
      const std::size_t at = row * groups + group;
      quantise_group(values.data() + group * kQuantisedGroup, stack.data.data() + at * kQuantisedGroup / 2, scale,
                     bias);
      std::memcpy(stack.scales.data() + at * sizeof(Bf16), &scale, sizeof(Bf16));
      std::memcpy(stack.biases.data() + at * sizeof(Bf16), &bias, sizeof(Bf16));
    }
  }
  WeightView result = view;
  result.format = WeightFormat::kAffine;
  result.bits = 4;
  result.group_size = kQuantisedGroup;
  result.data = stack.data.data();
  result.data_bytes = stack.data.size();
  result.scales = stack.scales.data();
  result.biases = stack.biases.data();
  result.scale_format = WeightFormat::kBF16;
  return result;
}

}  // namespace tensorfold
