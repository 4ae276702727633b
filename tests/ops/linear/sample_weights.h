// Random matrices in every stored format, for the tests and the benchmark of linear layers.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/weight_format.h"

namespace tensorfold::ops::cpu {

struct SampleFormat {
  WeightFormat format = WeightFormat::kBF16;
  int bits = 0;
  int group_size = 0;
  WeightFormat scale_format = WeightFormat::kBF16;
};

std::string sample_format_name(const SampleFormat& format);

/// Every GGUF and plain format, and every affine width with groups and scale types mixed.
std::vector<SampleFormat> all_sample_formats();

/// What K must be a multiple of.
int sample_column_multiple(const SampleFormat& format);

/// A matrix that owns its bytes; `view` points into them.
struct SampleMatrix {
  std::vector<std::byte> data, scales, biases;
  WeightView view;
};

/// kSmall: the smallest scales that are decoded in the flushing mode. kTiny: those that are not, denormals included.
enum class ScaleRange { kOrdinary, kSmall, kTiny };

/// Codes are random bits; scales ordinary (about 2^-10 to 2^-2, both signs, some zero, some half denormals) or tiny
/// (fp32 denormals among them, affine with F32 or BF16 scales only).
SampleMatrix make_sample(const SampleFormat& format, std::int64_t experts, std::int64_t rows, std::int64_t columns,
                         std::mt19937& random, ScaleRange range = ScaleRange::kOrdinary);

}  // namespace tensorfold::ops::cpu
