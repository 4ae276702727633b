// Norms and element-wise steps: how their rows are shared out over threads. The arithmetic is in kernels_rows.inl.
#include <algorithm>
#include <vector>

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
  const std::int64_t stride = p.out_stride > 0 ? p.out_stride : p.width;
  for_each_row(context, p.rows, p.width / 4, [&](std::int64_t row) {
    const std::int64_t source = p.row_index != nullptr ? p.row_index[row] : row;
    const float* x = p.x + source * p.x_stride;
    if (p.out != nullptr) {
      context.kernels.rms_norm_row(x, p.weight, p.epsilon, p.width, bf16_of(p.out) + row * stride);
    }
    if (p.out_float != nullptr) {
      context.kernels.rms_norm_row_float(x, p.weight, p.epsilon, p.width, p.out_float + row * p.width);
    }
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

void round_rows(CpuContext& context, const RoundRowsParams& p) {
  TF_ASSERT(p.width > 0 && p.out_stride >= p.width);
  for_each_row(context, p.rows, p.width / 8, [&](std::int64_t row) {
    const std::int64_t source = p.row_index != nullptr ? p.row_index[row] : row;
    context.kernels.round_bf16(p.x + source * p.x_stride, p.width, bf16_of(p.out) + row * p.out_stride);
  });
}

void block_convolution(CpuContext& context, const BlockConvolutionParams& p) {
  TF_ASSERT(p.group_size > 0 && p.width > 0 && p.width % p.group_size == 0);
  std::vector<bool> starts(static_cast<std::size_t>(p.rows), false);
  for (std::int32_t block = 0; block < p.block_count; ++block) {
    starts[static_cast<std::size_t>(p.block_starts[block])] = true;
  }
  for_each_row(context, p.rows, p.width / 2, [&](std::int64_t row) {
    BlockConvolveRow each;
    each.y = p.y + row * p.width;
    each.previous = starts[static_cast<std::size_t>(row)] ? nullptr : each.y - p.width;
    for (int tap = 0; tap < 2; ++tap) {
      each.base[tap] = p.base + tap * p.width;
      each.dynamic[tap] = p.dynamic + row * p.dynamic_stride + tap * (p.width / p.group_size);
    }
    each.width = p.width;
    each.group_size = p.group_size;
    if (p.residual != nullptr) {
      each.residual = p.residual + row * p.width;
    } else {
      each.out = bf16_of(p.out) + row * p.width;
    }
    context.kernels.block_convolve(each);
  });
}

}  // namespace tensorfold::ops::cpu
