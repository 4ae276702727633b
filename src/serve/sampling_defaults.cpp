// See sampling_defaults.h.
#include "serve/sampling_defaults.h"

#include <cmath>

namespace tensorfold {
namespace {

std::optional<double> finite_number(const nlohmann::json& config, const char* name) {
  const auto found = config.find(name);
  if (found == config.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>();
  return std::isfinite(value) ? std::optional<double>(value) : std::nullopt;
}

}  // namespace

SamplingDefaults sampling_defaults(const nlohmann::json& generation_config, const SamplingFlags& flags) {
  SamplingDefaults defaults;
  if (generation_config.is_object()) {
    defaults.temperature = finite_number(generation_config, "temperature").value_or(0.0);
    const double top_k = finite_number(generation_config, "top_k").value_or(0.0);
    defaults.top_k = top_k > 0 && top_k < 1e9 ? static_cast<std::int64_t>(top_k) : 0;
    defaults.top_p = finite_number(generation_config, "top_p").value_or(1.0);
    defaults.min_p = finite_number(generation_config, "min_p").value_or(0.0);
    const auto do_sample = generation_config.find("do_sample");
    if (do_sample != generation_config.end() && do_sample->is_boolean()) {
      if (!do_sample->get<bool>()) {
        defaults.temperature = 0.0;
      } else if (!finite_number(generation_config, "temperature")) {
        defaults.temperature = 1.0;
      }
    }
  }
  defaults.temperature = flags.temperature.value_or(defaults.temperature);
  defaults.top_p = flags.top_p.value_or(defaults.top_p);
  defaults.top_k = flags.top_k.value_or(defaults.top_k);
  defaults.min_p = flags.min_p.value_or(defaults.min_p);
  defaults.seed = flags.seed;
  defaults.max_tokens = flags.max_tokens.value_or(defaults.max_tokens);
  return defaults;
}

}  // namespace tensorfold
