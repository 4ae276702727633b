// From a model's name to a ServedModel: resolve, open, tokenizer, template, defaults, end tokens, weights, engine. The
// one place that knows all of the rooms below, shared by `serve` and `chat`.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "serve/backend_choice.h"
#include "serve/draft_options.h"
#include "serve/sampling_defaults.h"
#include "serve/served_model.h"

namespace tensorfold {

struct ServedModelOptions : BackendChoice {
  std::string model;  // folder, .gguf file or cached repository id
  std::string name;   // "" = from the model
  std::vector<std::string> aliases;
  std::int32_t context = 0;
  std::int32_t lanes = 0;
  std::int64_t prompt_cache_bytes = -1;  // kept prefixes: 0 = none, -1 = from what is left
  bool prompt_cache_over_cap = false;
  bool prompt_cache_shared = false;
  LearnOptions learn;
  std::string chat_template_file;  // "" = the checkpoint's
  SamplingFlags sampling;
  DraftFlags drafts;
  std::optional<SamplingFlags> instruct_sampling;
  bool thinking = true;
  std::optional<std::string> effort;
  std::int64_t thinking_budget = 0;
};

using LoadProgress = std::function<void(double fraction, const std::string& what)>;

/// Throws Error with advice.
std::shared_ptr<const ServedModel> load_served_model(const ServedModelOptions& options, const LoadProgress& progress);

/// The tokenizer of a checkpoint: tokenizer.json beside it, or the GGUF file's own.
std::shared_ptr<const Tokenizer> load_tokenizer(const Checkpoint& checkpoint);

/// The union of what config.json, generation_config.json, the tokenizer and the chat template name (api.md 1.9).
std::vector<std::int32_t> end_tokens(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                                     const std::string& template_source);

}  // namespace tensorfold
