#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace tensorfold {
namespace {

constexpr double kFactorMax = 1e6;

void apply_llama3(std::vector<double>& frequencies, const ConfigReader& parameters) {
  const double factor = parameters.number("factor", 1e-3, kFactorMax);
  const double low = parameters.number_or("low_freq_factor", 1.0, 1e-6, kFactorMax);
  const double high = parameters.number_or("high_freq_factor", 4.0, 1e-6, kFactorMax);
  const double original = static_cast<double>(
      parameters.integer_or("original_max_position_embeddings", 8192, 1, limits::kContextTokensMax));
  if (!(high > low)) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: high_freq_factor {} must exceed low_freq_factor {}", parameters.where(),
         high, low);
  }
  for (double& frequency : frequencies) {
    const double wavelength = 2.0 * std::numbers::pi / frequency;
    if (wavelength < original / high) continue;
    if (wavelength > original / low) {
      frequency /= factor;
      continue;
    }
    const double smooth = (original / wavelength - low) / (high - low);
    frequency = frequency * ((1.0 - smooth) / factor + smooth);
  }
}

// The index of the pair that turns `rotations` times over the original context.
double yarn_correction(double rotations, double dims, double theta, double original) {
  return dims * std::log(original / (rotations * 2.0 * std::numbers::pi)) / (2.0 * std::log(theta));
}

double yarn_scale(double factor, double multiplier) {
  return factor <= 1.0 ? 1.0 : 0.1 * multiplier * std::log(factor) + 1.0;
}

void apply_yarn(RopeDescription& rope, double theta, const ConfigReader& parameters, std::int64_t context_max) {
  auto& frequencies = rope.inverse_frequencies;
  const double dims = static_cast<double>(frequencies.size()) * 2.0;
  const double original = static_cast<double>(
      parameters.integer_or("original_max_position_embeddings", context_max, 1, limits::kContextTokensMax));
  const double factor = parameters.has("factor") ? parameters.number("factor", 1e-3, kFactorMax)
                                                 : static_cast<double>(context_max) / original;
  const double fast = parameters.number_or("beta_fast", 32.0, 1e-6, kFactorMax);
  const double slow = parameters.number_or("beta_slow", 1.0, 1e-6, kFactorMax);
  double low = yarn_correction(fast, dims, theta, original);
  double high = yarn_correction(slow, dims, theta, original);
  if (parameters.boolean_or("truncate", true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1.0);
  if (low == high) high += 0.001;  // the reference's guard against a zero-width ramp
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / factor * ramp + frequencies[i] * (1.0 - ramp);
  }
  const double mscale = parameters.number_or("mscale", 0.0, 0.0, kFactorMax);
  const double mscale_all = parameters.number_or("mscale_all_dim", 0.0, 0.0, kFactorMax);
  const double inferred = mscale != 0.0 && mscale_all != 0.0
                              ? yarn_scale(factor, mscale) / yarn_scale(factor, mscale_all)
                              : yarn_scale(factor, 1.0);
  rope.attention_factor = parameters.number_or("attention_factor", inferred, 0.0, kFactorMax);
}

}  // namespace

RopeDescription make_rope(double theta, std::int32_t rotary_dims, const std::optional<ConfigReader>& parameters,
                          std::int64_t context_max) {
  RopeDescription rope;
  for (std::int32_t i = 0; i < rotary_dims / 2; ++i) {
    rope.inverse_frequencies.push_back(1.0 / std::pow(theta, 2.0 * i / static_cast<double>(rotary_dims)));
  }
  if (!parameters) return rope;
  const std::string kind = parameters->text_or("rope_type", parameters->text_or("type", "default"));
  if (kind == "default" || kind == "mrope") return rope;
  if (kind == "linear") {
    const double factor = parameters->number("factor", 1e-3, kFactorMax);
    for (double& frequency : rope.inverse_frequencies) frequency /= factor;
  } else if (kind == "llama3") {
    apply_llama3(rope.inverse_frequencies, *parameters);
  } else if (kind == "yarn") {
    apply_yarn(rope, theta, *parameters, context_max);
  } else if (kind == "dynamic" || kind == "longrope" || kind == "su") {
    fail(ErrorCode::kUnsupported,
         "{}: RoPE scaling \"{}\" makes a token's result depend on the total length and is not served; remove it or "
         "choose linear, llama3 or yarn scaling",
         parameters->where(), kind);
  } else {
    fail(ErrorCode::kUnsupported, "{}: unknown RoPE scaling \"{}\"", parameters->where(), kind);
  }
  return rope;
}

std::vector<float> make_rope_table(const RopeDescription& rope, std::int32_t positions) {
  const std::size_t pairs = rope.inverse_frequencies.size();
  std::vector<float> table(static_cast<std::size_t>(positions) * pairs * 2);
  for (std::int32_t position = 0; position < positions; ++position) {
    for (std::size_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(position) * rope.inverse_frequencies[i];
      float* entry = &table[(static_cast<std::size_t>(position) * pairs + i) * 2];
      entry[0] = static_cast<float>(std::cos(angle) * rope.attention_factor);
      entry[1] = static_cast<float>(std::sin(angle) * rope.attention_factor);
    }
  }
  return table;
}

}  // namespace tensorfold
