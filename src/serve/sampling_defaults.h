// Where a default comes from: generation_config.json, then flags (api.md 1.9). One function, so that `serve`, `chat`
// and tests can't disagree.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "serve/served_model.h"

namespace tensorfold {

struct SamplingFlags {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<std::int64_t> top_k;
  std::optional<double> min_p;
  std::optional<std::uint64_t> seed;
  std::optional<std::int64_t> max_tokens;
};

SamplingDefaults sampling_defaults(const nlohmann::json& generation_config, const SamplingFlags& flags);

}  // namespace tensorfold
