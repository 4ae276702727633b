// The neutral request: what every wire format turns its body into and the only thing the generation path reads. A field
// that a client left out stays empty here, so that precedence (request, flag, checkpoint) is decided in one place.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/sampling_rule.h"
#include "grammar/grammar.h"

namespace tensorfold {

/// Structured output: what the reply must follow.
struct RequestedGrammar {
  GrammarSource source;
  std::string field;  // what a refusal names
};

/// What a request says about calls: the model decides, or a call must come.
enum class ToolChoice { kAuto, kRequired };

struct GenerationRequest {
  std::string id;     // "chatcmpl-...", also the log's
  std::string model;  // what the reply echoes
  std::string owner;  // scope of the API key
  std::chrono::steady_clock::time_point received = std::chrono::steady_clock::now();

  // The prompt: messages for the template, or text, or ids.
  bool is_chat = false;
  nlohmann::ordered_json messages;
  std::string prompt_text;
  bool add_special_tokens = true;
  std::vector<std::int32_t> prompt_tokens;
  bool prompt_is_tokens = false;

  nlohmann::ordered_json tools;  // what the template sees, from parse_tools; null: none are offered
  ToolChoice tool_choice = ToolChoice::kAuto;
  bool parallel_tool_calls = true;

  std::optional<std::string> reasoning_effort;
  std::optional<std::int64_t> thinking_budget;
  nlohmann::ordered_json template_kwargs;  // chat_template_kwargs, checked; null when absent

  std::optional<std::int64_t> max_tokens;       // explicit; 0 scores the prompt only
  std::string max_tokens_field = "max_tokens";  // the name it came under
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<std::int64_t> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<double> frequency_penalty;
  std::optional<double> presence_penalty;
  std::vector<TokenBias> logit_bias;  // ascending ids
  std::optional<std::uint64_t> seed;
  int choices = 1;  // n
  std::vector<std::string> stop;
  std::optional<RequestedGrammar> grammar;  // structured output
  bool ignore_eos = false;
  int logprobs_top = -1;  // -1: none
  bool echo = false;
  bool drafts = true;
  bool background = false;
  bool return_token_ids = false;

  bool stream = false;
  bool include_usage = false;
};

}  // namespace tensorfold
