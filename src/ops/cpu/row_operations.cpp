// Norms and element-wise steps: how their rows are shared out over threads. The arithmetic is in kernels_rows.inl.
#include <algorithm>

#include "base/error.h"
#include "ops/cpu/cpu_operations.h"

namespace tensorfold::ops::cpu {
namespace {

constexpr std::int64_t kSpan = 4096;  // elements of one item of an element-wise step, a multiple of 16

/// Blocks of rows, a few for each thread.
template <typename Row>
void for_each_row(CpuContext& context, std::int64_t rows, std::int64_t work_per_row, const Row& row_body) {
  const std::int64_t blocks = std::min<std::int64_t>(rows, 4ll * context.pool.thread_count());
  run_items(context, blocks, rows * work_per_row, [&](std::int64_t block, int) {
    for (std::int64_t row = rows * block / blocks; row < rows * (block + 1) / blocks; ++row) row_body(row);
  });
}

}  // namespace

void rms_norm(CpuContext& context, const RmsNormParams& p) {
  TF_ASSERT(p.width > 0);
  for_each_row(context, p.rows, p.width / 4, [&](std::int64_t row) {
    const std::int64_t source = p.row_index != nullptr ? p.row_index[row] : row;
    context.kernels.rms_norm_row(p.x + source * p.x_stride, p.weight, p.epsilon, p.width,
                                 bf16_of(p.out) + row * p.width);
  });
}

void rms_norm_add(CpuContext& context, const RmsNormAddParams& p) {
  TF_ASSERT(p.width > 0);
  for_each_row(context, p.rows, p.width / 4, [&](std::int64_t row) {
    context.kernels.rms_norm_add_row(p.x + row * p.width, p.weight, p.epsilon, p.width, p.residual + row * p.width);
  });
}

void gated_activation(CpuContext& context, const GatedActivationParams& p) {
  TF_ASSERT(p.width > 0);
  const auto kernel = p.kind == ActivationKind::kSilu ? context.kernels.gated_silu : context.kernels.gated_gelu;
  const std::int64_t spans = (p.width + kSpan - 1) / kSpan;
  run_items(context, p.rows * spans, p.rows * p.width * 2, [&](std::int64_t item, int) {
    const std::int64_t row = item / spans, begin = item % spans * kSpan;
    const float* gate = p.gate_up + row * 2 * p.width + begin;
    kernel(gate, gate + p.width, std::min(kSpan, p.width - begin), bf16_of(p.out) + row * p.width + begin);
  });
}

void soft_cap(CpuContext& context, const SoftCapParams& p) {
  TF_ASSERT(p.cap > 0.0f);
  run_items(context, (p.count + kSpan - 1) / kSpan, p.count * 2, [&](std::int64_t item, int) {
    context.kernels.soft_cap(p.values + item * kSpan, std::min(kSpan, p.count - item * kSpan), p.cap);
  });
}

}  // namespace tensorfold::ops::cpu
