// Linear layers on AMX tiles, decoding with AVX-512 and its bf16 conversion. Compiled with its own flags (isa.cmake).
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "ops/cpu/linear_layout.h"

#define TF_INLINE [[gnu::always_inline]] inline
#define TF_INLINE_LAMBDA __attribute__((always_inline))

namespace tensorfold::ops::cpu::amx {
namespace {
// clang-format off: each builds on the one before
#include "ops/cpu/linear_mode_x86.h"
#include "ops/cpu/linear_simd_avx512.h"
#include "ops/cpu/linear_kernels.h"
// clang-format on

// to_bf16 of sixteen pairs, interleaved. The conversion rounds to nearest even and flushes denormals whatever the mode.
TF_INLINE __m512i round_pair(F32x16 even, F32x16 odd) {
  const __m512i halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even));
  const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                              6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(interleave, halves);
}

#include "ops/cpu/linear_tiles.h"
}  // namespace

const LinearKernels kLinearKernels = {kTaskPanels, scratch_bytes, packed_x_bytes, x_units, pack_x, run};

}  // namespace tensorfold::ops::cpu::amx
