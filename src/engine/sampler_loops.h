// The loops over a whole vocabulary that a draw needs, compiled once for the baseline instruction set and once for AVX2
// and picked at start. They are plain C++ that vectorises; because contraction is off and no sum is reassociated, both
// builds give the same bits. This header is the table of functions; sampler_loops_body.h holds the loops.
#pragma once

#include <cstdint>

namespace tensorfold::sampling {

inline constexpr std::int32_t kSamplerBlock = 64;  // ids that share one maximum

struct SamplerLoops {
  /// Writes the maximum of each block of kSamplerBlock logits. Returns false when a logit is NaN or +inf.
  bool (*scan)(const float* logits, std::int32_t count, float* block_max);
  /// Copies logits, -inf where bit i of allowed_bits is clear.
  void (*mask)(const float* logits, std::int32_t count, const std::uint32_t* allowed_bits, float* masked);
  /// Writes every id's nucleus mass and returns their sum (an exact integer).
  std::uint64_t (*masses)(const float* logits, std::int32_t count, double first_scaled, double temperature,
                          double* masses);
  /// Largest noise_bits of ids [first, first + count), count <= kSamplerBlock.
  std::uint64_t (*noise_max)(std::uint64_t row, std::int32_t first, std::int32_t count);
  /// Σ exp(logit - max) in 16 interleaved sums, added in order.
  double (*exp_sum)(const float* logits, std::int32_t count, float max);
};

/// The best table for this machine.
const SamplerLoops& sampler_loops();
/// The tables themselves, for tests; the second is null where the machine can't run it.
const SamplerLoops& sampler_loops_baseline();
const SamplerLoops* sampler_loops_avx2();

}  // namespace tensorfold::sampling
