// See sampling_defaults.h.
#include "serve/sampling_defaults.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>

#include "base/error.h"

namespace tensorfold {
namespace {

std::optional<double> finite_number(const nlohmann::json& config, const char* name) {
  const auto found = config.find(name);
  if (found == config.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>();
  return std::isfinite(value) ? std::optional<double>(value) : std::nullopt;
}

void overlay(SamplingDefaults& defaults, const SamplingFlags& flags) {
  defaults.temperature = flags.temperature.value_or(defaults.temperature);
  defaults.top_p = flags.top_p.value_or(defaults.top_p);
  defaults.top_k = flags.top_k.value_or(defaults.top_k);
  defaults.min_p = flags.min_p.value_or(defaults.min_p);
  defaults.repetition_penalty = flags.repetition_penalty.value_or(defaults.repetition_penalty);
  defaults.frequency_penalty = flags.frequency_penalty.value_or(defaults.frequency_penalty);
  defaults.presence_penalty = flags.presence_penalty.value_or(defaults.presence_penalty);
}

struct InstructName {
  std::string_view name;
  std::optional<double> SamplingFlags::*member;
  double minimum, maximum;
};

constexpr std::array<InstructName, 6> kInstructNames = {{
    {"temperature", &SamplingFlags::temperature, 0.0, std::numeric_limits<double>::max()},
    {"top_p", &SamplingFlags::top_p, 0.0, 1.0},
    {"min_p", &SamplingFlags::min_p, 0.0, 1.0},
    {"presence_penalty", &SamplingFlags::presence_penalty, -2.0, 2.0},
    {"frequency_penalty", &SamplingFlags::frequency_penalty, -2.0, 2.0},
    {"repetition_penalty", &SamplingFlags::repetition_penalty, std::numeric_limits<double>::min(),
     std::numeric_limits<double>::max()},
}};

void apply_instruct_pair(std::string_view pair, SamplingFlags& flags) {
  const std::size_t equals = pair.find('=');
  const std::string_view name = pair.substr(0, equals);
  double value = std::numeric_limits<double>::quiet_NaN();
  if (equals != std::string_view::npos) {
    const std::string_view text = pair.substr(equals + 1);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) value = std::numeric_limits<double>::quiet_NaN();
  }
  const auto found = std::find_if(kInstructNames.begin(), kInstructNames.end(),
                                  [name](const InstructName& known) { return known.name == name; });
  const bool is_top_k = name == "top_k" && value == std::trunc(value) && std::abs(value) < 1e9;
  const bool is_known = found != kInstructNames.end() && value >= found->minimum && value <= found->maximum;
  if (is_top_k) {
    flags.top_k = static_cast<std::int64_t>(value);
  } else if (is_known) {
    flags.*(found->member) = value;
  } else {
    fail(ErrorCode::kInvalidArgument,
         "'{}': give card, none, or name=value pairs of temperature, top_p, top_k, min_p, presence_penalty, "
         "frequency_penalty and repetition_penalty, in their ranges",
         pair);
  }
}

}  // namespace

std::optional<SamplingFlags> parse_instruct_sampling(const std::string& text) {
  if (text == "none") return std::nullopt;
  SamplingFlags flags;  // the card
  flags.temperature = 0.7;
  flags.top_p = 0.8;
  flags.top_k = 20;
  flags.presence_penalty = 1.5;
  if (text.empty()) apply_instruct_pair(text, flags);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find_first_of(", ", begin), text.size());
    const std::string_view word = std::string_view(text).substr(begin, end - begin);
    if (!word.empty() && word != "card") apply_instruct_pair(word, flags);
    begin = end + 1;
  }
  return flags;
}

const SamplingDefaults& defaults_for(const ServedModel& model, const GenerationRequest& request, bool thinking) {
  if (!model.instruct_defaults || !request.is_chat || thinking) return model.defaults;
  // A greedy request takes none of it, its penalties included.
  const bool greedy = !(request.temperature.value_or(model.instruct_defaults->temperature) > 0.0);
  return greedy ? model.defaults : *model.instruct_defaults;
}

SamplingRule resolve_sampling(const SamplingDefaults& defaults, const GenerationRequest& request) {
  SamplingRule rule;
  rule.temperature = request.temperature.value_or(defaults.temperature);
  rule.top_p = request.top_p.value_or(defaults.top_p);
  rule.min_p = request.min_p.value_or(defaults.min_p);
  const std::int64_t top_k = request.top_k.value_or(defaults.top_k);
  rule.top_k = static_cast<std::int32_t>(std::clamp<std::int64_t>(top_k, 0, std::numeric_limits<std::int32_t>::max()));
  return rule;
}

LogitRule resolve_logit_rule(const SamplingDefaults& defaults, const GenerationRequest& request) {
  LogitRule rule;
  rule.repetition_penalty = request.repetition_penalty.value_or(defaults.repetition_penalty);
  rule.frequency_penalty = request.frequency_penalty.value_or(defaults.frequency_penalty);
  rule.presence_penalty = request.presence_penalty.value_or(defaults.presence_penalty);
  rule.bias = request.logit_bias;
  return rule;
}

SamplingDefaults sampling_defaults(const nlohmann::json& generation_config, const SamplingFlags& flags,
                                   const SamplingFlags& instruct) {
  SamplingDefaults defaults;
  if (generation_config.is_object()) {
    defaults.temperature = finite_number(generation_config, "temperature").value_or(0.0);
    const double top_k = finite_number(generation_config, "top_k").value_or(0.0);
    defaults.top_k = top_k > 0 && top_k < 1e9 ? static_cast<std::int64_t>(top_k) : 0;
    defaults.top_p = finite_number(generation_config, "top_p").value_or(1.0);
    defaults.min_p = finite_number(generation_config, "min_p").value_or(0.0);
    const double repetition = finite_number(generation_config, "repetition_penalty").value_or(1.0);
    defaults.repetition_penalty = repetition > 0.0 ? repetition : 1.0;
    const auto do_sample = generation_config.find("do_sample");
    if (do_sample != generation_config.end() && do_sample->is_boolean()) {
      if (!do_sample->get<bool>()) {
        defaults.temperature = 0.0;
      } else if (!finite_number(generation_config, "temperature")) {
        defaults.temperature = 1.0;
      }
    }
  }
  overlay(defaults, instruct);
  overlay(defaults, flags);
  defaults.seed = flags.seed;
  defaults.seed_from_prompt = flags.seed_from_prompt;
  defaults.seed_salt = flags.seed_salt;
  defaults.max_tokens = flags.max_tokens.value_or(defaults.max_tokens);
  return defaults;
}

}  // namespace tensorfold
