// The sampler's loops (see sampler_loops.h). Included by one .cpp per instruction set, inside an anonymous namespace of
// its own, so that no copy compiled for a newer machine can be picked by the linker for an older one.
#include <algorithm>
#include <cstring>
#include <limits>

#include "ops/sampler.h"
#include "engine/sampler_loops.h"

namespace tensorfold::sampling {
namespace {

bool scan(const float* logits, std::int32_t count, float* block_max) {
  std::int32_t bad = 0;
  for (std::int32_t first = 0, block = 0; first < count; first += kSamplerBlock, ++block) {
    const std::int32_t length = count - first < kSamplerBlock ? count - first : kSamplerBlock;
    const float* values = logits + first;
    float lanes[16];
    for (int lane = 0; lane < 16; ++lane) lanes[lane] = -std::numeric_limits<float>::infinity();
    std::int32_t i = 0;
    for (; i + 16 <= length; i += 16) {
      for (int lane = 0; lane < 16; ++lane) {
        const float value = values[i + lane];
        bad |= !(value <= std::numeric_limits<float>::max());
        lanes[lane] = value > lanes[lane] ? value : lanes[lane];
      }
    }
    for (; i < length; ++i) {
      bad |= !(values[i] <= std::numeric_limits<float>::max());
      lanes[0] = values[i] > lanes[0] ? values[i] : lanes[0];
    }
    float max = lanes[0];
    for (int lane = 1; lane < 16; ++lane) max = lanes[lane] > max ? lanes[lane] : max;
    block_max[block] = max;
  }
  return bad == 0;
}

void mask(const float* logits, std::int32_t count, const std::uint32_t* allowed_bits, float* masked) {
  for (std::int32_t i = 0; i < count; ++i) {
    const std::uint32_t allowed = allowed_bits[i >> 5] >> (i & 31) & 1u;
    masked[i] = allowed ? logits[i] : -std::numeric_limits<float>::infinity();
  }
}

std::uint64_t masses(const float* logits, std::int32_t count, double first_scaled, double temperature, double* masses) {
  constexpr std::int32_t kRun = 4096;  // masses are at most 2^40: a run's sum stays an exact double
  std::uint64_t total = 0;
  for (std::int32_t first = 0; first < count; first += kRun) {
    const std::int32_t length = count - first < kRun ? count - first : kRun;
    const float* values = logits + first;
    double* out = masses + first;
    for (std::int32_t i = 0; i < length; ++i) out[i] = nucleus_mass(scaled(values[i], temperature) - first_scaled);
    double sums[8] = {};
    std::int32_t i = 0;
    for (; i + 8 <= length; i += 8) {
      for (int lane = 0; lane < 8; ++lane) sums[lane] += out[i + lane];
    }
    for (; i < length; ++i) sums[0] += out[i];
    for (const double sum : sums) total += static_cast<std::uint64_t>(sum);
  }
  return total;
}

std::uint64_t noise_max(std::uint64_t row, std::int32_t first, std::int32_t count) {
  std::int64_t lanes[8] = {};
  std::int32_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int lane = 0; lane < 8; ++lane) {
      const std::int64_t noise = static_cast<std::int64_t>(noise_bits(row, first + i + lane));
      lanes[lane] = noise > lanes[lane] ? noise : lanes[lane];
    }
  }
  for (; i < count; ++i) {
    const std::int64_t noise = static_cast<std::int64_t>(noise_bits(row, first + i));
    lanes[0] = noise > lanes[0] ? noise : lanes[0];
  }
  std::int64_t max = lanes[0];
  for (int lane = 1; lane < 8; ++lane) max = lanes[lane] > max ? lanes[lane] : max;
  return static_cast<std::uint64_t>(max);
}

double exp_sum(const float* logits, std::int32_t count, float max) {
  double sums[16] = {};
  std::int32_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (int lane = 0; lane < 16; ++lane) {
      const double below = static_cast<double>(logits[i + lane]) - static_cast<double>(max);
      const double value = exp_exact_bounded(below > -700.0 ? below : -700.0);
      sums[lane] += below > -700.0 ? value : 0.0;
    }
  }
  for (; i < count; ++i) {
    const double below = static_cast<double>(logits[i]) - static_cast<double>(max);
    if (below > -700.0) sums[i & 15] += exp_exact_bounded(below);
  }
  double sum = 0.0;
  for (const double part : sums) sum += part;
  return sum;
}

constexpr SamplerLoops kLoops = {scan, mask, masses, noise_max, exp_sum};

}  // namespace
}  // namespace tensorfold::sampling
