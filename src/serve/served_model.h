// What a server serves: an engine with the text side that belongs to it (tokenizer, chat template, names, defaults, end
// tokens), immutable once loaded. Wire formats read it; loading fills it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "serve/structured_output.h"
#include "text/messages.h"
#include "text/reasoning.h"
#include "text/tokenizer.h"

namespace tensorfold {

/// Sampling when a request says nothing: checkpoint (generation_config.json), then flags.
struct SamplingDefaults {
  double temperature = 0.0;
  std::int64_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double frequency_penalty = 0.0;
  double presence_penalty = 0.0;
  std::optional<std::uint64_t> seed;  // none: see seed_from_prompt
  bool seed_from_prompt = false;      // --prompt-seed; else a fresh random one for each request
  std::int64_t seed_salt = 0;         // of seeds from prompts
  std::int64_t max_tokens = 4096;
};

struct ServedModel {
  std::vector<std::string> names;  // served name first, then aliases
  std::int64_t created_unix_seconds = 0;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const PromptRenderer> prompts;  // null: no chat template, chat requests are refused with a reason
  ReasoningFormat reasoning = ReasoningFormat::kNone;
  std::shared_ptr<StructuredOutput> structured_output;
  SamplingDefaults defaults;
  std::optional<SamplingDefaults> instruct_defaults;  // --instruct-sampling: of chats with thinking off
  std::vector<std::int32_t> stop_tokens;
  bool thinking_default = true;
  std::optional<std::string> effort_default;
  std::int64_t thinking_budget = 0;  // for requests without one; 0 = none
  std::unique_ptr<Engine> engine;    // last: its thread ends before what it uses goes away

  /// The echo rule: the requested id when it is a public one, else the served name.
  const std::string& echoed_name(const std::string& requested) const;
};

}  // namespace tensorfold
