// Linear layers on AVX-512 with its bf16 products (AVX512_BF16: Zen 4, Cooper Lake, and AMX machines that may not use their
// tiles). Compiled with its own flags (isa.cmake).
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "ops/cpu/linear_layout.h"

#define TF_INLINE [[gnu::always_inline]] inline
#define TF_INLINE_LAMBDA __attribute__((always_inline))

namespace tensorfold::ops::cpu::avx512_bf16 {
namespace {
// Each builds on the one before.
// clang-format off
#include "ops/cpu/linear_mode_x86.h"
#include "ops/cpu/linear_simd_avx512.h"
#include "ops/cpu/linear_kernels.h"
#include "ops/cpu/linear_bf16_dot.h"
#include "ops/cpu/linear_rows.h"
// clang-format on
}  // namespace

const LinearKernels kLinearKernels = {kTaskPanels, kFewRows, 0, scratch_bytes, packed_x_bytes, x_units, pack_x, run};

}  // namespace tensorfold::ops::cpu::avx512_bf16
