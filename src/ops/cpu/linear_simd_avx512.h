// Sixteen fp32 lanes on AVX-512: one register. Only the primitives that differ between instruction sets are here; the
// kernels are in linear_kernels.h. Included inside an unnamed namespace.

using F32x16 = __m512;
struct U32x16 {
  __m512i bits;
};

inline constexpr int kMicroPanels = 2;
inline constexpr int kMicroTokens = 4;
inline constexpr bool kTilesInRegisters = true;
inline constexpr bool kHasUnsignedToFloat = true;

TF_INLINE F32x16 zero() {
  return _mm512_setzero_ps();
}
TF_INLINE F32x16 set1(float value) {
  return _mm512_set1_ps(value);
}
TF_INLINE F32x16 load(const float* p) {
  return _mm512_loadu_ps(p);
}
TF_INLINE void store(float* p, F32x16 v) {
  _mm512_storeu_ps(p, v);
}
TF_INLINE F32x16 add(F32x16 a, F32x16 b) {
  return _mm512_add_ps(a, b);
}
TF_INLINE F32x16 mul(F32x16 a, F32x16 b) {
  return _mm512_mul_ps(a, b);
}
TF_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return _mm512_fmadd_ps(a, b, c);
}
TF_INLINE F32x16 negate(F32x16 a) {
  return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
}

TF_INLINE U32x16 load_u32(const std::uint8_t* p) {
  return {_mm512_loadu_si512(p)};
}
template <int kShift>
TF_INLINE U32x16 shift_right(U32x16 v) {
  return {_mm512_srli_epi32(v.bits, kShift)};
}
template <int kShift>
TF_INLINE U32x16 shift_left(U32x16 v) {
  return {_mm512_slli_epi32(v.bits, kShift)};
}
TF_INLINE U32x16 shift_right_by(U32x16 v, int shift) {
  return {_mm512_srl_epi32(v.bits, _mm_cvtsi32_si128(shift))};
}
TF_INLINE U32x16 mask(U32x16 v, std::uint32_t bits) {
  return {_mm512_and_si512(v.bits, _mm512_set1_epi32(static_cast<int>(bits)))};
}
TF_INLINE U32x16 either(U32x16 a, U32x16 b) {
  return {_mm512_or_si512(a.bits, b.bits)};
}
TF_INLINE F32x16 as_float(U32x16 v) {
  return _mm512_castsi512_ps(v.bits);
}
TF_INLINE F32x16 to_float(U32x16 v) {
  return _mm512_cvtepi32_ps(v.bits);
}
TF_INLINE F32x16 unsigned_to_float(U32x16 v) {
  return _mm512_cvtepu32_ps(v.bits);
}

/// fp32 of the low kBits (at most 4) bits, the others being anything. A lookup ignores all but the low four bits of its
/// index, which saves the mask and the conversion.
template <int kBits>
TF_INLINE F32x16 low_code_to_float(U32x16 v) {
  constexpr int kMask = (1 << kBits) - 1;
  const __m512 table =
      _mm512_setr_ps(0 & kMask, 1 & kMask, 2 & kMask, 3 & kMask, 4 & kMask, 5 & kMask, 6 & kMask, 7 & kMask, 8 & kMask,
                     9 & kMask, 10 & kMask, 11 & kMask, 12 & kMask, 13 & kMask, 14 & kMask, 15 & kMask);
  return _mm512_permutexvar_ps(v.bits, table);
}

TF_INLINE F32x16 load_f16(const std::uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
TF_INLINE F32x16 load_bf16(const std::uint8_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
TF_INLINE F32x16 load_i8(const std::uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

// Adds 0x7fff, one more where the kept part is odd, then cuts: to_bf16 for every value but denormals, which the mode
// has flushed (or the product will).
TF_INLINE F32x16 round_to_bf16(F32x16 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  __m512i sum = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  sum = _mm512_mask_add_epi32(sum, odd, sum, _mm512_set1_epi32(1));
  return _mm512_castsi512_ps(_mm512_and_si512(sum, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
