#include "linear_spec.h"

#include <bit>
#include <cmath>

#include "ops/cpu/isa.h"

namespace tensorfold::ops::cpu {
namespace {

class FlushingScope {
 public:
  FlushingScope() { set_compute_thread_mode(); }

 private:
  DefaultModeScope restore_;  // its destructor puts back the mode from before
};

#if defined(__x86_64__)
#define TF_SPEC_TARGET __attribute__((target("fma")))
#else
#define TF_SPEC_TARGET
#endif

TF_SPEC_TARGET float ordered_dot(const std::vector<Bf16>& weights, const Bf16* x) {
  const std::size_t columns = weights.size();
  float sum = 0.0f;
  for (std::size_t block = 0; block < columns; block += 32) {
    float even = 0.0f;
    float odd = 0.0f;
    for (std::size_t k = block; k < block + 32; k += 2) {
      // K is padded with zeros: their products add +0 to chains that start at +0.
      const float w0 = k < columns ? to_float(weights[k]) : 0.0f;
      const float x0 = k < columns ? to_float(x[k]) : 0.0f;
      const float w1 = k + 1 < columns ? to_float(weights[k + 1]) : 0.0f;
      const float x1 = k + 1 < columns ? to_float(x[k + 1]) : 0.0f;
      even = __builtin_fmaf(w0, x0, even);
      odd = __builtin_fmaf(w1, x1, odd);
    }
    sum = sum + (even + odd);
  }
  return sum;
}

}  // namespace

std::vector<Bf16> spec_weight_row(const WeightView& view, std::int64_t expert, std::int64_t row) {
  const DefaultModeScope scope;  // a pool's calling thread stays in the flushing mode
  std::vector<float> values(static_cast<std::size_t>(view.columns));
  decode_row(view, expert, row, values.data());
  std::vector<Bf16> result;
  result.reserve(values.size());
  for (const float value : values) result.push_back(to_bf16(value));
  return result;
}

float spec_dot(const std::vector<Bf16>& weights, const Bf16* x) {
  const FlushingScope scope;
  return ordered_dot(weights, x);
}

bool same_value(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

}  // namespace tensorfold::ops::cpu
