#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/error.h"
#include "checkpoint/decode_blocks.h"
#include "checkpoint/decode_plain.h"
#include "checkpoint/weight_format.h"

namespace tensorfold {
namespace {

using decode::AffineRow;

TF_DECODE void decode_affine(int bits, const AffineRow& row, float* out) {
  switch (bits) {
    case 2:
      return decode::affine_row<2>(row, out);
    case 3:
      return decode::affine_row<3>(row, out);
    case 4:
      return decode::affine_row<4>(row, out);
    case 5:
      return decode::affine_row<5>(row, out);
    case 6:
      return decode::affine_row<6>(row, out);
    default:
      return decode::affine_row<8>(row, out);
  }
}

TF_DECODE void decode_stored(WeightFormat format, const std::uint8_t* data, std::int64_t count, float* out) {
#define TF_BLOCK_ROW(elements, bytes, function)                           \
  for (std::int64_t i = 0; i < count; i += (elements), data += (bytes)) { \
    function(data, out + i);                                              \
  }                                                                       \
  return
  switch (format) {
    case WeightFormat::kF32:
      return decode::f32_row(data, count, out);
    case WeightFormat::kF16:
      return decode::half_row<half_to_float>(data, count, out);
    case WeightFormat::kBF16:
      return decode::half_row<decode::from_bf16>(data, count, out);
    case WeightFormat::kQ4_0:
      TF_BLOCK_ROW(32, 18, decode::q4_0_block);
    case WeightFormat::kQ4_1:
      TF_BLOCK_ROW(32, 20, decode::q4_1_block);
    case WeightFormat::kQ5_0:
      TF_BLOCK_ROW(32, 22, decode::q5_0_block);
    case WeightFormat::kQ5_1:
      TF_BLOCK_ROW(32, 24, decode::q5_1_block);
    case WeightFormat::kQ8_0:
      TF_BLOCK_ROW(32, 34, decode::q8_0_block);
    case WeightFormat::kQ4_K:
      TF_BLOCK_ROW(256, 144, decode::q45_k_block<false>);
    case WeightFormat::kQ5_K:
      TF_BLOCK_ROW(256, 176, decode::q45_k_block<true>);
    case WeightFormat::kQ6_K:
      TF_BLOCK_ROW(256, 210, decode::q6_k_block);
    case WeightFormat::kAffine:
      return;
  }
#undef TF_BLOCK_ROW
}

void decode_affine_plain(int bits, const AffineRow& row, float* out) {
  decode_affine(bits, row, out);
}
void decode_stored_plain(WeightFormat format, const std::uint8_t* data, std::int64_t count, float* out) {
  decode_stored(format, data, count, out);
}

#if defined(__x86_64__)
// The compiler doesn't find VCVTPH2PS by itself. It ignores the denormal mode, as half_to_float does.
__attribute__((target("avx2,fma,f16c"))) void decode_halves(const std::uint8_t* data, std::int64_t count, float* out) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 2 * i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(halves));
  }
  for (; i < count; ++i) out[i] = decode::load_half(data + 2 * i);
}

#define TF_TARGET_FMA __attribute__((target("avx2,fma")))
TF_TARGET_FMA void decode_affine_fma(int bits, const AffineRow& row, float* out) {
  decode_affine(bits, row, out);
}
TF_TARGET_FMA void decode_stored_fma(WeightFormat format, const std::uint8_t* data, std::int64_t count, float* out) {
  if (format == WeightFormat::kF16) return decode_halves(data, count, out);
  decode_stored(format, data, count, out);
}
// Every CPU with both has F16C, which clang can't be asked about.
const bool has_fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
constexpr bool has_fma = false;
constexpr auto decode_affine_fma = decode_affine_plain;
constexpr auto decode_stored_fma = decode_stored_plain;
#endif

int scale_kind(WeightFormat format) {
  TF_ASSERT(format == WeightFormat::kF32 || format == WeightFormat::kF16 || format == WeightFormat::kBF16);
  return format == WeightFormat::kF32 ? 0 : format == WeightFormat::kF16 ? 1 : 2;
}

void decode_affine_view(const WeightView& view, std::int64_t index, bool use_fma, float* out) {
  const int kind = scale_kind(view.scale_format);
  TF_ASSERT(view.bits >= 2 && view.bits <= 8 && view.bits != 7);
  TF_ASSERT(view.group_size > 0 && view.group_size % 32 == 0 && view.columns % view.group_size == 0);
  AffineRow row;
  row.groups = view.columns / view.group_size;
  row.group_size = view.group_size;
  row.scale_kind = kind;
  const std::int64_t scale_offset = index * row.groups * (kind == 0 ? 4 : 2);
  row.codes = reinterpret_cast<const std::uint8_t*>(view.data) + index * (view.columns / 8 * view.bits);
  row.scales = reinterpret_cast<const std::uint8_t*>(view.scales) + scale_offset;
  row.biases = reinterpret_cast<const std::uint8_t*>(view.biases) + scale_offset;
  (use_fma ? decode_affine_fma : decode_affine_plain)(view.bits, row, out);
}

void decode_view(const WeightView& view, std::int64_t expert, std::int64_t row, bool use_fma, float* out) {
  TF_ASSERT(expert >= 0 && expert < view.experts && row >= 0 && row < view.rows);
  const std::int64_t index = expert * view.rows + row;
  if (view.format == WeightFormat::kAffine) return decode_affine_view(view, index, use_fma, out);
  const BlockShape block = weight_format_block(view.format);
  TF_ASSERT(view.columns % block.elements == 0);
  const std::uint8_t* data =
      reinterpret_cast<const std::uint8_t*>(view.data) + index * (view.columns / block.elements * block.bytes);
  (use_fma ? decode_stored_fma : decode_stored_plain)(view.format, data, view.columns, out);
}

}  // namespace

void decode_row(const WeightView& view, std::int64_t expert, std::int64_t row, float* out) {
  decode_view(view, expert, row, has_fma, out);
}

void decode_row_plain(const WeightView& view, std::int64_t expert, std::int64_t row, float* out) {
  decode_view(view, expert, row, false, out);
}

}  // namespace tensorfold
