#include "sample_weights.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "base/error.h"

namespace tensorfold::ops::cpu {
namespace {

void put(std::byte* to, const void* from, std::size_t size) {
  std::memcpy(to, from, size);
}

std::uint16_t random_half(std::mt19937& random) {
  const std::uint32_t draw = random();
  const std::uint32_t sign = (draw & 1) << 15;
  const std::uint32_t mantissa = (draw >> 1) & 0x3ff;
  const std::uint32_t kind = (draw >> 11) & 31;
  if (kind == 0) return static_cast<std::uint16_t>(sign);             // a signed zero
  if (kind == 1) return static_cast<std::uint16_t>(sign | mantissa);  // denormal
  const std::uint32_t exponent = 5 + ((draw >> 16) & 7);
  return static_cast<std::uint16_t>(sign | (exponent << 10) | mantissa);
}

float random_scale(std::mt19937& random, ScaleRange range) {
  const std::uint32_t draw = random();
  const std::uint32_t sign = (draw & 1) << 31;
  const std::uint32_t mantissa = random() & 0x7fffff;
  const std::uint32_t kind = (draw >> 1) & 31;
  if (kind == 0) return std::bit_cast<float>(sign);
  std::uint32_t exponent = 117 + ((draw >> 6) & 7);
  if (range == ScaleRange::kSmall) exponent = 31 + ((draw >> 6) & 3);
  if (range == ScaleRange::kTiny) exponent = (draw >> 6) & 7;  // exponent 0: denormal
  return std::bit_cast<float>(sign | (exponent << 23) | mantissa);
}

void put_scale(std::byte* to, WeightFormat format, std::mt19937& random, ScaleRange range) {
  const float value = random_scale(random, range);
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint16_t top = static_cast<std::uint16_t>(bits >> 16);
  const std::uint16_t half = random_half(random);
  if (format == WeightFormat::kF32) put(to, &bits, 4);
  if (format == WeightFormat::kBF16) put(to, &top, 2);
  if (format == WeightFormat::kF16) put(to, &half, 2);
}

// Overwrites a block's f16 fields: random bytes would make infinities.
void fix_halves(WeightFormat format, std::byte* block, std::mt19937& random) {
  const std::uint16_t first = random_half(random);
  const std::uint16_t second = random_half(random);
  const bool two = format == WeightFormat::kQ4_1 || format == WeightFormat::kQ5_1 || format == WeightFormat::kQ4_K ||
                   format == WeightFormat::kQ5_K;
  put(block + (format == WeightFormat::kQ6_K ? 208 : 0), &first, 2);
  if (two) put(block + 2, &second, 2);
}

void fill_plain(SampleMatrix& sample, std::mt19937& random) {
  const std::size_t size = static_cast<std::size_t>(weight_format_block(sample.view.format).bytes);
  std::normal_distribution<float> normal(0.0f, 0.05f);
  for (std::size_t at = 0; at < sample.data.size(); at += size) {
    const float value = random() % 64 == 0 ? 0x1p-130f : normal(random);
    const std::uint16_t half = random_half(random);
    const std::uint16_t top = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
    if (sample.view.format == WeightFormat::kF32) put(&sample.data[at], &value, 4);
    if (sample.view.format == WeightFormat::kF16) put(&sample.data[at], &half, 2);
    if (sample.view.format == WeightFormat::kBF16) put(&sample.data[at], &top, 2);
  }
}

}  // namespace

std::string sample_format_name(const SampleFormat& format) {
  if (format.format != WeightFormat::kAffine) return weight_format_name(format.format);
  return "affine" + std::to_string(format.bits) + "_g" + std::to_string(format.group_size) + "_" +
         weight_format_name(format.scale_format);
}

std::vector<SampleFormat> all_sample_formats() {
  using enum WeightFormat;
  std::vector<SampleFormat> formats;
  for (const WeightFormat format : {kF32, kF16, kBF16, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K}) {
    formats.push_back({format});
  }
  constexpr int kGroups[] = {64, 32, 128};
  constexpr WeightFormat kScales[] = {kBF16, kF16, kF32};
  int next = 0;
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (int i = 0; i < 3; ++i) formats.push_back({kAffine, bits, kGroups[i], kScales[(i + next) % 3]});
    ++next;
  }
  return formats;
}

int sample_column_multiple(const SampleFormat& format) {
  return format.format == WeightFormat::kAffine ? format.group_size : weight_format_block(format.format).elements;
}

SampleMatrix make_sample(const SampleFormat& format, std::int64_t experts, std::int64_t rows, std::int64_t columns,
                         std::mt19937& random, ScaleRange range) {
  TF_ASSERT(columns % sample_column_multiple(format) == 0);
  SampleMatrix sample;
  WeightView& view = sample.view;
  view.name = sample_format_name(format);
  view.format = format.format;
  view.experts = experts;
  view.rows = rows;
  view.columns = columns;
  const std::size_t all_rows = static_cast<std::size_t>(experts * rows);
  if (format.format == WeightFormat::kAffine) {
    view.bits = format.bits;
    view.group_size = format.group_size;
    view.scale_format = format.scale_format;
    sample.data.resize(all_rows * static_cast<std::size_t>(columns * format.bits / 8));
    const std::size_t scale_size = static_cast<std::size_t>(weight_format_block(format.scale_format).bytes);
    sample.scales.resize(all_rows * static_cast<std::size_t>(columns / format.group_size) * scale_size);
    sample.biases.resize(sample.scales.size());
    for (std::size_t at = 0; at < sample.scales.size(); at += scale_size) {
      put_scale(&sample.scales[at], format.scale_format, random, range);
      put_scale(&sample.biases[at], format.scale_format, random, range);
    }
    view.scales = sample.scales.data();
    view.biases = sample.biases.data();
  } else {
    const BlockShape shape = weight_format_block(format.format);
    sample.data.resize(all_rows * static_cast<std::size_t>(columns / shape.elements * shape.bytes));
  }
  for (std::byte& byte : sample.data) byte = static_cast<std::byte>(random());
  if (format.format != WeightFormat::kAffine) {
    const BlockShape shape = weight_format_block(format.format);
    if (shape.elements == 1) {
      fill_plain(sample, random);
    } else {
      for (std::size_t at = 0; at < sample.data.size(); at += static_cast<std::size_t>(shape.bytes)) {
        fix_halves(format.format, &sample.data[at], random);
      }
    }
  }
  view.data = sample.data.data();
  view.data_bytes = sample.data.size();
  return sample;
}

}  // namespace tensorfold::ops::cpu
