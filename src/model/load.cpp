// From a checkpoint to a served model; see load.h.
#include "model/load.h"

#include <algorithm>

#include "base/error.h"
#include "base/limits.h"
#include "model/checkpoint_id.h"
#include "model/config_reader.h"
#include "model/drafter_weights.h"
#include "model/executor.h"
#include "model/families/family.h"
#include "model/gguf_config.h"
#include "model/tensor_names.h"
#include "model/weights.h"

namespace tensorfold {
namespace {

// The text model's config: text_config of a multimodal wrapper where there is one.
const nlohmann::json& text_config(const nlohmann::json& config) {
  const auto found = config.find("text_config");
  return found != config.end() && found->is_object() ? *found : config;
}

bool tied_embeddings(const ConfigReader& text, const ConfigReader& top, const Checkpoint& checkpoint,
                     const TensorNames& names) {
  const bool has_head = checkpoint.has_weight(names.file_name("lm_head"));
  // A converter may drop the key together with the head, or keep a copy of a tied head: what is there decides then.
  if (text.has("tie_word_embeddings")) return text.boolean_or("tie_word_embeddings", false);
  if (top.has("tie_word_embeddings")) return top.boolean_or("tie_word_embeddings", false);
  return !has_head;
}

// llama.cpp's converter writes llama 3's frequency factors as a tensor.
void apply_gguf_rope_factors(const Checkpoint& checkpoint, ModelDescription& model) {
  if (checkpoint.container() != Container::kGguf || !checkpoint.find("rope_freqs.weight")) return;
  auto& frequencies = model.ropes.at(0).inverse_frequencies;
  const auto factors = checkpoint.values("rope_freqs.weight", static_cast<std::int64_t>(frequencies.size()));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    if (!(factors[i] > 0.0f)) {
      fail(ErrorCode::kInvalidCheckpoint, "{}: rope_freqs.weight holds {} where a positive factor belongs",
           checkpoint.path().string(), factors[i]);
    }
    frequencies[i] /= static_cast<double>(factors[i]);
  }
}

std::optional<std::filesystem::path> drafter_folder(const Checkpoint& checkpoint, const LoadOptions& options) {
  if (!options.drafter_path.empty()) return options.drafter_path;
  return options.find_drafter ? find_drafter_folder(checkpoint) : std::nullopt;
}

}  // namespace

ModelDescription describe_model(const Checkpoint& checkpoint) {
  const bool gguf = checkpoint.container() == Container::kGguf;
  const nlohmann::json config = gguf ? gguf_to_config(checkpoint) : checkpoint.config();
  const std::string where =
      gguf ? checkpoint.path().string() + " metadata" : (checkpoint.path() / "config.json").string();
  const ConfigReader top(config, where);
  const ConfigReader text(text_config(config), where);
  const std::string model_type = text.text_or("model_type", top.text_or("model_type", ""));
  const Family* family = find_family(model_type);
  if (!family) {
    std::string known;
    for (const auto& each : families()) known += (known.empty() ? "" : ", ") + std::string(each.model_type);
    fail(ErrorCode::kUnsupported, "{}: model_type \"{}\" is not served; families: {}", where, model_type, known);
  }
  const TensorNames names(checkpoint);
  FamilyInput input{text, checkpoint, names, tied_embeddings(text, top, checkpoint, names)};
  auto model = family->describe(input);
  model.family = model_type;
  model.title = family->title;
  apply_gguf_rope_factors(checkpoint, model);
  return model;
}

std::unique_ptr<LanguageModel> load_language_model(std::shared_ptr<const Checkpoint> checkpoint,
                                                   std::unique_ptr<ops::Backend> backend, const LoadOptions& options) {
  auto description = describe_model(*checkpoint);
  description.checkpoint_id = checkpoint_id(*checkpoint);
  if (options.context_max > 0) description.context_max = std::min(description.context_max, options.context_max);
  if (description.mtp && !options.mtp) {
    description.mtp.reset();
    description.ignored_tensors.push_back("*mtp.*");
  }
  if (!options.draft_vocabulary.empty()) description.draft_vocabulary = options.draft_vocabulary;
  const auto folder = drafter_folder(*checkpoint, options);
  auto weights = load_weights(*checkpoint, description, *backend, description.mtp.has_value() || folder.has_value(),
                              options.progress);
  std::unique_ptr<LoadedDrafter> drafter;
  if (folder) {
    drafter = load_drafter(*folder, description, *backend, options.drafter_bits, options.progress);
  }
  return std::make_unique<Executor>(std::move(description), std::move(weights), std::move(backend),
                                    std::move(drafter));
}

}  // namespace tensorfold
