// Sixteen fp32 lanes on AVX2: two registers. Only the primitives that differ between instruction sets are here; the
// kernels are in linear_kernels.h. Included inside an unnamed namespace.

struct F32x16 {
  __m256 low, high;
};
struct U32x16 {
  __m256i low, high;
};

inline constexpr int kMicroPanels = 1;
inline constexpr int kMicroTokens = 6;
inline constexpr bool kTilesInRegisters = false;
inline constexpr bool kHasUnsignedToFloat = false;

TF_INLINE F32x16 zero() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
TF_INLINE F32x16 set1(float value) {
  return {_mm256_set1_ps(value), _mm256_set1_ps(value)};
}
TF_INLINE F32x16 load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
TF_INLINE void store(float* p, F32x16 v) {
  _mm256_storeu_ps(p, v.low);
  _mm256_storeu_ps(p + 8, v.high);
}
TF_INLINE F32x16 add(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
TF_INLINE F32x16 mul(F32x16 a, F32x16 b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
TF_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
TF_INLINE F32x16 negate(F32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(a.low, sign), _mm256_xor_ps(a.high, sign)};
}

TF_INLINE U32x16 load_u32(const std::uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
template <int kShift>
TF_INLINE U32x16 shift_right(U32x16 v) {
  return {_mm256_srli_epi32(v.low, kShift), _mm256_srli_epi32(v.high, kShift)};
}
template <int kShift>
TF_INLINE U32x16 shift_left(U32x16 v) {
  return {_mm256_slli_epi32(v.low, kShift), _mm256_slli_epi32(v.high, kShift)};
}
TF_INLINE U32x16 shift_right_by(U32x16 v, int shift) {
  const __m128i count = _mm_cvtsi32_si128(shift);
  return {_mm256_srl_epi32(v.low, count), _mm256_srl_epi32(v.high, count)};
}
TF_INLINE U32x16 mask(U32x16 v, std::uint32_t bits) {
  const __m256i m = _mm256_set1_epi32(static_cast<int>(bits));
  return {_mm256_and_si256(v.low, m), _mm256_and_si256(v.high, m)};
}
TF_INLINE U32x16 either(U32x16 a, U32x16 b) {
  return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
}
TF_INLINE F32x16 as_float(U32x16 v) {
  return {_mm256_castsi256_ps(v.low), _mm256_castsi256_ps(v.high)};
}
TF_INLINE F32x16 to_float(U32x16 v) {
  return {_mm256_cvtepi32_ps(v.low), _mm256_cvtepi32_ps(v.high)};
}
TF_INLINE F32x16 unsigned_to_float(U32x16 v) {
  return to_float(v);  // not used: kHasUnsignedToFloat
}

/// fp32 of the low kBits (at most 4) bits, the others being anything.
template <int kBits>
TF_INLINE F32x16 low_code_to_float(U32x16 v) {
  return to_float(mask(v, (1u << kBits) - 1));
}

TF_INLINE F32x16 load_f16(const std::uint8_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
}
TF_INLINE F32x16 load_bf16(const std::uint8_t* p) {
  const U32x16 wide = {_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
                       _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
  return as_float(shift_left<16>(wide));
}
TF_INLINE F32x16 load_i8(const std::uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return to_float({_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))});
}

// Adds 0x7fff plus the parity of the kept part, chosen by its lowest bit moved to the sign, then cuts: to_bf16 for
// every value but denormals, which the mode has flushed (or the product will).
TF_INLINE __m256 round_to_bf16(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256 even = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fff));
  const __m256 odd = _mm256_castsi256_ps(_mm256_set1_epi32(0x8000));
  const __m256 half = _mm256_blendv_ps(even, odd, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 15)));
  const __m256i sum = _mm256_add_epi32(bits, _mm256_castps_si256(half));
  return _mm256_castsi256_ps(_mm256_and_si256(sum, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
TF_INLINE F32x16 round_to_bf16(F32x16 v) {
  return {round_to_bf16(v.low), round_to_bf16(v.high)};
}
