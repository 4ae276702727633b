// The AVX-512 intrinsics that the AMX kernels use, in plain C++ on the compiler's vector types, so that the kernels'
// logic is tested on machines without them. Included before the kernels' source, which then sees these names instead.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace tensorfold::emulated {

using Dwords = std::uint32_t __attribute__((vector_size(64)));
using Qwords = std::uint64_t __attribute__((vector_size(64)));
using Words = std::uint16_t __attribute__((vector_size(64)));
using Ints = std::int32_t __attribute__((vector_size(64)));
using Floats = float __attribute__((vector_size(64)));

template <typename To, typename From>
inline To load_as(const From* from) {
  To value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename Value>
inline void store_as(void* to, const Value& value) {
  std::memcpy(to, &value, sizeof value);
}

inline __m512 setr(float a, float b, float c, float d, float e, float f, float g, float h, float i, float j, float k,
                   float l, float m, float n, float o, float p) {
  return reinterpret_cast<__m512>(Floats{a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p});
}
inline __m512 set1(float value) {
  return setr(value, value, value, value, value, value, value, value, value, value, value, value, value, value, value,
              value);
}
inline __m512i set1_dword(int value) {
  return reinterpret_cast<__m512i>(Dwords{} + static_cast<std::uint32_t>(value));
}
inline __m512i set1_word(short value) {
  return reinterpret_cast<__m512i>(Words{} + static_cast<std::uint16_t>(value));
}

inline __m512 fma(__m512 a, __m512 b, __m512 c) {
  Floats result;
  for (int i = 0; i < 16; ++i) {
    result[i] =
        __builtin_fmaf(reinterpret_cast<Floats>(a)[i], reinterpret_cast<Floats>(b)[i], reinterpret_cast<Floats>(c)[i]);
  }
  return reinterpret_cast<__m512>(result);
}

inline __m512 from_half(__m256i halves) {
  __m256 parts[2];
  for (int i = 0; i < 2; ++i)
    parts[i] = _mm256_cvtph_ps(load_as<__m128i>(reinterpret_cast<const __m128i*>(&halves) + i));
  return load_as<__m512>(parts);
}

template <typename Element, typename Vector>
inline __m512i widen(Vector narrow) {
  Element elements[16];
  std::memcpy(elements, &narrow, sizeof elements);
  Ints result;
  for (int i = 0; i < 16; ++i) result[i] = elements[i];
  return reinterpret_cast<__m512i>(result);
}

// Nearest even, denormals to zero of their sign, NaN quieted.
inline std::uint16_t to_bf16(float value) {
  const auto bits = load_as<std::uint32_t>(&value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude < 0x800000u) return static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline __m512i to_bf16_words(__m512 high, __m512 low) {
  Words result;
  for (int i = 0; i < 16; ++i) {
    result[i] = to_bf16(reinterpret_cast<Floats>(low)[i]);
    result[16 + i] = to_bf16(reinterpret_cast<Floats>(high)[i]);
  }
  return reinterpret_cast<__m512i>(result);
}

inline __m512i permute_words(__m512i index, __m512i table) {
  Words result;
  for (int i = 0; i < 32; ++i) {
    result[i] = reinterpret_cast<Words>(table)[reinterpret_cast<Words>(index)[i] & 31];
  }
  return reinterpret_cast<__m512i>(result);
}

inline __m512 permute_floats(__m512i index, __m512 table) {
  Floats result;
  for (int i = 0; i < 16; ++i) {
    result[i] = reinterpret_cast<Floats>(table)[reinterpret_cast<Dwords>(index)[i] & 15];
  }
  return reinterpret_cast<__m512>(result);
}

// Bit 4 a + 2 b + c of the table says what becomes of bits a, b and c.
inline __m512i ternary(__m512i a, __m512i b, __m512i c, int table) {
  Dwords result{};
  for (int i = 0; i < 8; ++i) {
    if ((table >> i & 1) == 0) continue;
    const Dwords x = i & 4 ? reinterpret_cast<Dwords>(a) : ~reinterpret_cast<Dwords>(a);
    const Dwords y = i & 2 ? reinterpret_cast<Dwords>(b) : ~reinterpret_cast<Dwords>(b);
    const Dwords z = i & 1 ? reinterpret_cast<Dwords>(c) : ~reinterpret_cast<Dwords>(c);
    result |= x & y & z;
  }
  return reinterpret_cast<__m512i>(result);
}

template <typename Element>
inline __m512i unpack(__m512i a, __m512i b, int high) {
  constexpr int kPerLane = 16 / static_cast<int>(sizeof(Element));
  Element from[2][4 * kPerLane], result[4 * kPerLane];
  std::memcpy(from[0], &a, 64);
  std::memcpy(from[1], &b, 64);
  for (int i = 0; i < 4 * kPerLane; ++i) {
    const int lane = i / kPerLane * kPerLane;
    result[i] = from[i % 2][lane + high * kPerLane / 2 + i % kPerLane / 2];
  }
  return load_as<__m512i>(result);
}

inline __m512i shuffle_lanes(__m512i a, __m512i b, int control) {
  __m128i from[2][4], result[4];
  std::memcpy(from[0], &a, 64);
  std::memcpy(from[1], &b, 64);
  for (int i = 0; i < 4; ++i) result[i] = from[i / 2][(control >> (2 * i)) & 3];
  return load_as<__m512i>(result);
}

inline __m512i masked_load_words(std::uint32_t mask, const std::uint16_t* from) {
  Words result{};
  for (int i = 0; i < 32; ++i) {
    if (mask >> i & 1) result[i] = from[i];
  }
  return reinterpret_cast<__m512i>(result);
}

inline void masked_store_dwords(std::uint8_t* to, std::uint32_t mask, __m512i value) {
  for (int i = 0; i < 16; ++i) {
    const std::uint32_t element = reinterpret_cast<Dwords>(value)[i];
    if (mask >> i & 1) std::memcpy(to + 4 * i, &element, 4);
  }
}

inline __m512i add_odd(__m512i sum, std::uint32_t mask, __m512i a, __m512i b) {
  Dwords result = reinterpret_cast<Dwords>(sum);
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) result[i] = reinterpret_cast<Dwords>(a)[i] + reinterpret_cast<Dwords>(b)[i];
  }
  return reinterpret_cast<__m512i>(result);
}

inline std::uint16_t test_dwords(__m512i a, __m512i b) {
  std::uint32_t mask = 0;
  for (int i = 0; i < 16; ++i) {
    if (reinterpret_cast<Dwords>(a)[i] & reinterpret_cast<Dwords>(b)[i]) mask |= 1u << i;
  }
  return static_cast<std::uint16_t>(mask);
}

}  // namespace tensorfold::emulated

#define TF_AS(type, value) reinterpret_cast<::tensorfold::emulated::type>(value)
#define TF_BACK(type, value) reinterpret_cast<type>(value)
// Some of these are macros already where the compiler doesn't optimise.
#undef _mm512_setr_ps
#undef _mm512_srli_epi32
#undef _mm512_slli_epi32
#undef _mm512_srli_epi16
#undef _mm512_slli_epi16
#undef _mm512_ternarylogic_epi32
#undef _mm512_shuffle_i32x4
#define _mm512_setzero_ps() ::tensorfold::emulated::set1(0.0f)
#define _mm512_setzero_si512() ::tensorfold::emulated::set1_dword(0)
#define _mm512_set1_ps ::tensorfold::emulated::set1
#define _mm512_setr_ps ::tensorfold::emulated::setr
#define _mm512_set1_epi32 ::tensorfold::emulated::set1_dword
#define _mm512_set1_epi16 ::tensorfold::emulated::set1_word
#define _mm512_loadu_ps ::tensorfold::emulated::load_as<__m512>
#define _mm512_loadu_si512 ::tensorfold::emulated::load_as<__m512i>
#define _mm512_storeu_ps ::tensorfold::emulated::store_as
#define _mm512_storeu_si512 ::tensorfold::emulated::store_as
#define _mm512_add_ps(a, b) TF_BACK(__m512, TF_AS(Floats, a) + TF_AS(Floats, b))
#define _mm512_mul_ps(a, b) TF_BACK(__m512, TF_AS(Floats, a) * TF_AS(Floats, b))
#define _mm512_fmadd_ps ::tensorfold::emulated::fma
#define _mm512_xor_ps(a, b) TF_BACK(__m512, TF_AS(Dwords, a) ^ TF_AS(Dwords, b))
#define _mm512_and_si512(a, b) TF_BACK(__m512i, TF_AS(Dwords, a) & TF_AS(Dwords, b))
#define _mm512_or_si512(a, b) TF_BACK(__m512i, TF_AS(Dwords, a) | TF_AS(Dwords, b))
#define _mm512_srli_epi32(a, n) TF_BACK(__m512i, TF_AS(Dwords, a) >> static_cast<std::uint32_t>(n))
#define _mm512_slli_epi32(a, n) TF_BACK(__m512i, TF_AS(Dwords, a) << static_cast<std::uint32_t>(n))
#define _mm512_srl_epi32(a, n) _mm512_srli_epi32(a, _mm_cvtsi128_si32(n))
#define _mm512_srli_epi16(a, n) TF_BACK(__m512i, TF_AS(Words, a) >> static_cast<std::uint16_t>(n))
#define _mm512_slli_epi16(a, n) TF_BACK(__m512i, TF_AS(Words, a) << static_cast<std::uint16_t>(n))
#define _mm512_add_epi32(a, b) TF_BACK(__m512i, TF_AS(Dwords, a) + TF_AS(Dwords, b))
#define _mm512_mask_add_epi32 ::tensorfold::emulated::add_odd
#define _mm512_test_epi32_mask ::tensorfold::emulated::test_dwords
#define _mm512_castsi512_ps(a) TF_BACK(__m512, a)
#define _mm512_castps_si512(a) TF_BACK(__m512i, a)
#define _mm512_cvtepi32_ps(a) TF_BACK(__m512, __builtin_convertvector(TF_AS(Ints, a), ::tensorfold::emulated::Floats))
#define _mm512_cvtepu32_ps(a) \
  TF_BACK(__m512, __builtin_convertvector(TF_AS(Dwords, a), ::tensorfold::emulated::Floats))
#define _mm512_cvtph_ps ::tensorfold::emulated::from_half
#define _mm512_cvtepu16_epi32 ::tensorfold::emulated::widen<std::uint16_t>
#define _mm512_cvtepi8_epi32 ::tensorfold::emulated::widen<std::int8_t>
#define _mm512_cvtepu8_epi32 ::tensorfold::emulated::widen<std::uint8_t>
#define _mm512_cvtne2ps_pbh ::tensorfold::emulated::to_bf16_words
#define _mm512_permutexvar_epi16 ::tensorfold::emulated::permute_words
#define _mm512_permutexvar_ps ::tensorfold::emulated::permute_floats
#define _mm512_ternarylogic_epi32 ::tensorfold::emulated::ternary
#define _mm512_unpacklo_epi32(a, b) ::tensorfold::emulated::unpack<std::uint32_t>(a, b, 0)
#define _mm512_unpackhi_epi32(a, b) ::tensorfold::emulated::unpack<std::uint32_t>(a, b, 1)
#define _mm512_unpacklo_epi64(a, b) ::tensorfold::emulated::unpack<std::uint64_t>(a, b, 0)
#define _mm512_unpackhi_epi64(a, b) ::tensorfold::emulated::unpack<std::uint64_t>(a, b, 1)
#define _mm512_shuffle_i32x4 ::tensorfold::emulated::shuffle_lanes
#define _mm512_maskz_loadu_epi16 ::tensorfold::emulated::masked_load_words
#define _mm512_mask_storeu_epi32 ::tensorfold::emulated::masked_store_dwords
