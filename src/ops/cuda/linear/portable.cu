// Launching the kernels of portable_kernel.cuh.
#include <cstdint>

#include "ops/cuda/aligned.cuh"
#include "ops/cuda/linear/portable_kernel.cuh"

namespace tensorfold::ops::cuda {
namespace {

// Above this, x goes through shared memory: each warp of the narrow kernel reads it for itself.
constexpr std::int32_t kNarrowRowsMax = 32;

unsigned divide_up(std::int32_t a, std::int32_t b) {
  return static_cast<unsigned>((a + b - 1) / b);
}

}  // namespace

void portable_linear(CudaContext& context, const PackedPart& part, const LinearCall& call) {
  PortableArguments arguments{};
  arguments.part = part;
  arguments.x = static_cast<const __nv_bfloat16*>(call.x);
  arguments.row_index = call.row_index;
  arguments.pairs_aligned = part.columns % 2 == 0 && is_aligned(call.x, 4);
  arguments.runs_aligned = part.columns % 8 == 0 && is_aligned(call.x, 16);
  arguments.out = linear_output(call);
  visit_format(part, [&]<typename F>() {
    LaunchShape shape;
    if (call.rows <= kNarrowRowsMax) {
      shape.block = dim3(static_cast<unsigned>(32 * part.segments));
      const std::int32_t tokens = call.rows <= 8 ? 8 : 16;
      shape.grid = dim3(static_cast<unsigned>(part.tiles), divide_up(call.rows, tokens));
      launch(context, "a linear layer", tokens == 8 ? narrow_linear_kernel<F, 1> : narrow_linear_kernel<F, 2>, shape, arguments);
      return;
    }
    shape.block = dim3(32 * kWideWarps);
    shape.grid = dim3(divide_up(part.tiles, kWideWarps), divide_up(call.rows, kWideTokens));
    launch(context, "a linear layer", wide_linear_kernel<F>, shape, arguments);
  });
}

}  // namespace tensorfold::ops::cuda
