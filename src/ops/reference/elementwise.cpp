// Element-wise steps between linear layers.
#include "ops/reference/reference_operations.h"

namespace tensorfold::ops {

double activate(ActivationKind kind, double x) {
  if (kind == ActivationKind::kSilu) return x * sigmoid(x);
  constexpr double kRootTwoOverPi = 0.79788456080286535588;
  return 0.5 * x * (1.0 + std::tanh(kRootTwoOverPi * (x + 0.044715 * x * x * x)));
}

void ReferenceBackend::gated_activation(const GatedActivationParams& params) {
  const std::int64_t width = params.width;
  pool_.parallel_for(params.rows, [&](std::int64_t row, int) {
    const float* gate = params.gate_up + row * 2 * width;
    const float* up = gate + width;
    float* out = values_of(params.out) + row * width;
    for (std::int64_t i = 0; i < width; ++i) {
      out[i] = round_point(activate(params.kind, static_cast<double>(gate[i])) * static_cast<double>(up[i]));
    }
  });
}

void ReferenceBackend::soft_cap(const SoftCapParams& params) {
  const double cap = static_cast<double>(params.cap);
  for (std::int64_t i = 0; i < params.count; ++i) {
    params.values[i] = static_cast<float>(cap * std::tanh(static_cast<double>(params.values[i]) / cap));
  }
}

}  // namespace tensorfold::ops
