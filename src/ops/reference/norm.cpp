// Root-mean-square norms.
#include "ops/reference/reference_operations.h"

namespace tensorfold::ops {

void ReferenceBackend::normalise(const float* x, const float* weight, float epsilon, std::int64_t width, double* out) {
  const double mean_square = dot(x, x, width) / static_cast<double>(width);
  const double inverse_root = 1.0 / std::sqrt(mean_square + static_cast<double>(epsilon));
  for (std::int64_t i = 0; i < width; ++i) {
    const double normalised = static_cast<double>(x[i]) * inverse_root;
    out[i] = weight != nullptr ? normalised * static_cast<double>(weight[i]) : normalised;
  }
}

void ReferenceBackend::rms_norm(const RmsNormParams& params) {
  const std::int64_t width = params.width;
  pool_.parallel_for(params.rows, [&](std::int64_t row, int) {
    const std::int64_t source_row = params.row_index != nullptr ? params.row_index[row] : row;
    std::vector<double> values(static_cast<std::size_t>(width));
    normalise(params.x + source_row * params.x_stride, params.weight, params.epsilon, width, values.data());
    if (params.out != nullptr) {
      float* out = values_of(params.out) + row * (params.out_stride > 0 ? params.out_stride : width);
      for (std::int64_t i = 0; i < width; ++i) out[i] = round_point(values[static_cast<std::size_t>(i)]);
    }
    if (params.out_float == nullptr) return;
    for (std::int64_t i = 0; i < width; ++i) {
      params.out_float[row * width + i] = static_cast<float>(values[static_cast<std::size_t>(i)]);
    }
  });
}

void ReferenceBackend::rms_norm_add(const RmsNormAddParams& params) {
  const std::int64_t width = params.width;
  pool_.parallel_for(params.rows, [&](std::int64_t row, int) {
    std::vector<double> values(static_cast<std::size_t>(width));
    normalise(params.x + row * width, params.weight, params.epsilon, width, values.data());
    float* residual = params.residual + row * width;
    for (std::int64_t i = 0; i < width; ++i) residual[i] += round_point(values[static_cast<std::size_t>(i)]);
  });
}

}  // namespace tensorfold::ops
