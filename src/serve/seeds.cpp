// See seeds.h.
#include "serve/seeds.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ops/sampler.h"
#include "serve/api_keys.h"

namespace tensorfold {
namespace {

constexpr int kBitsBeyondDouble = 11;  // 64 - 53

}  // namespace

std::uint64_t prompt_seed(std::span<const std::int32_t> prompt, std::int64_t salt) {
  const Sha256Digest digest = sha256(fmt::format("{}|{}", fmt::join(prompt, ","), salt));
  std::uint64_t seed = 0;
  for (std::size_t i = 0; i < sizeof(seed); ++i) seed |= static_cast<std::uint64_t>(digest[i]) << (8 * i);
  return seed & 0x7fffffffffffffffu;
}

std::uint64_t choice_seed(std::uint64_t seed, int index) {
  if (index == 0) return seed;
  return sampling::mix(seed + static_cast<std::uint64_t>(index) * 0x9E3779B97F4A7C15u) >> kBitsBeyondDouble;
}

std::uint64_t resolve_seed(const SamplingDefaults& defaults, const GenerationRequest& request,
                           std::span<const std::int32_t> prompt) {
  if (request.seed) return *request.seed;
  if (defaults.seed) return *defaults.seed;
  if (defaults.seed_from_prompt) return prompt_seed(prompt, defaults.seed_salt);
  return random_u64() >> kBitsBeyondDouble;
}

}  // namespace tensorfold
