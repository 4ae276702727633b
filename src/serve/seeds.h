// Which seed a reply is drawn with (engine.md 2.7): the request's, else --seed, else with --prompt-seed one that
// follows from the prompt, else fresh entropy. Whatever it is, the reply tells it, and a request that names it draws
// the same tokens.
#pragma once

#include <cstdint>
#include <span>

#include "serve/generation_request.h"
#include "serve/served_model.h"

namespace tensorfold {

/// SHA-256 over the decimal ids joined by commas, "|" and the decimal salt; its first 8 bytes, little-endian, top bit
/// cleared.
std::uint64_t prompt_seed(std::span<const std::int32_t> prompt, std::int64_t salt);

/// Seed of choice `index` of a request with n > 1. Choice 0 has `seed` itself; choice i > 0 has
/// mix(seed + i * 0x9E3779B97F4A7C15) >> 11 (mix: engine/sampler.h), so that a choice equals a single request with its
/// seed. 53 bits, because a seed is reported in JSON and many readers keep numbers as doubles.
std::uint64_t choice_seed(std::uint64_t seed, int index);

std::uint64_t resolve_seed(const SamplingDefaults& defaults, const GenerationRequest& request,
                           std::span<const std::int32_t> prompt);

}  // namespace tensorfold
