// Where a rule for drawing comes from: generation_config.json, then --instruct-sampling for chats without thinking,
// then flags, then the request (api.md 1.9, 2.2). One place, so that `serve`, `chat` and tests can't disagree.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "serve/generation_request.h"
#include "serve/served_model.h"

namespace tensorfold {

/// What one source says; an empty field leaves it to the source before.
struct SamplingFlags {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<std::int64_t> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<double> frequency_penalty;
  std::optional<double> presence_penalty;
  std::optional<std::uint64_t> seed;
  bool seed_from_prompt = false;
  std::int64_t seed_salt = 0;
  std::optional<std::int64_t> max_tokens;
};

/// `instruct` stands between checkpoint and flags.
SamplingDefaults sampling_defaults(const nlohmann::json& generation_config, const SamplingFlags& flags,
                                   const SamplingFlags& instruct = {});

/// The value of --instruct-sampling: "none" (nothing), "card", or "name=value" pairs, separated by commas or blanks,
/// that override parts of the card. Throws Error(kInvalidArgument) naming what is wrong.
std::optional<SamplingFlags> parse_instruct_sampling(const std::string& text);

/// The defaults that hold for a request, by whether its chat thinks.
const SamplingDefaults& defaults_for(const ServedModel& model, const GenerationRequest& request, bool thinking);

/// A request's rule, all but its seed.
SamplingRule resolve_sampling(const SamplingDefaults& defaults, const GenerationRequest& request);
LogitRule resolve_logit_rule(const SamplingDefaults& defaults, const GenerationRequest& request);

}  // namespace tensorfold
