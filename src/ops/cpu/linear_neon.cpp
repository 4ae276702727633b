// Linear layers on AArch64 NEON, which every ARM64 CPU has.
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "ops/cpu/linear_layout.h"

#define TF_INLINE [[gnu::always_inline]] inline
#define TF_INLINE_LAMBDA __attribute__((always_inline))

namespace tensorfold::ops::cpu::neon {
namespace {
// Each builds on the one before.
// clang-format off
#include "ops/cpu/linear_mode_neon.h"
#include "ops/cpu/linear_simd_neon.h"
#include "ops/cpu/linear_kernels.h"
#include "ops/cpu/linear_fma.h"
#include "ops/cpu/linear_rows.h"
// clang-format on
}  // namespace

const LinearKernels kLinearKernels = {kTaskPanels, 1, 0, scratch_bytes, packed_x_bytes, x_units, pack_x, run};

}  // namespace tensorfold::ops::cpu::neon
