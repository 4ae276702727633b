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

void ReferenceBackend::round_rows(const RoundRowsParams& params) {
  for (std::int64_t row = 0; row < params.rows; ++row) {
    const float* x = params.x + (params.row_index != nullptr ? params.row_index[row] : row) * params.x_stride;
    float* out = values_of(params.out) + row * params.out_stride;
    for (std::int64_t i = 0; i < params.width; ++i) out[i] = round_point(static_cast<double>(x[i]));
  }
}

void ReferenceBackend::block_convolution(const BlockConvolutionParams& params) {
  const std::int64_t groups = params.width / params.group_size;
  for (std::int32_t block = 0; block < params.block_count; ++block) {
    const std::int64_t first = params.block_starts[block];
    const std::int64_t end = block + 1 < params.block_count ? params.block_starts[block + 1] : params.rows;
    for (std::int64_t row = first; row < end; ++row) {
      for (std::int64_t c = 0; c < params.width; ++c) {
        double sum = 0.0;
        for (std::int64_t tap = 0; tap < 2 && row - tap >= first; ++tap) {
          const float* dynamic = params.dynamic + row * params.dynamic_stride + tap * groups;
          sum += (static_cast<double>(params.base[tap * params.width + c]) +
                  static_cast<double>(dynamic[c / params.group_size])) *
                 static_cast<double>(params.y[(row - tap) * params.width + c]);
        }
        const std::int64_t at = row * params.width + c;
        if (params.residual != nullptr) {
          params.residual[at] = static_cast<float>(static_cast<double>(params.residual[at]) + sum);
        } else {
          values_of(params.out)[at] = round_point(sum);
        }
      }
    }
  }
}

}  // namespace tensorfold::ops
