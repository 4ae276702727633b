// See load_served_model.h.
#include "serve/load_served_model.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <sstream>
#include <string_view>

#include "base/limits.h"
#include "hub/resolve.h"
#include "model/load.h"
#include "serve/api_error.h"
#include "serve/gguf_vocabulary.h"
#include "serve/reply_text.h"

namespace tensorfold {
namespace {

using Json = nlohmann::json;

/// Tokens that end a turn, where a template names them.
constexpr std::array<std::string_view, 7> kTurnEnds = {"<|im_end|>",    "<end_of_turn>", "<|eot_id|>", "<|end|>",
                                                       "<|endoftext|>", "<|return|>",    "<|eom_id|>"};

constexpr std::size_t kShownValueBytes = 40;

std::string read_text_file(const std::string& path, std::uint64_t bytes_max) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorCode::kNotFound, "cannot read {}: check the path", path);
  std::string text(static_cast<std::size_t>(bytes_max) + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) fail(ErrorCode::kInvalidArgument, "cannot read {}: give a file, not a folder", path);
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > bytes_max) fail(ErrorCode::kInvalidCheckpoint, "{} is larger than {} bytes", path, bytes_max);
  return text;
}

std::string template_source(const ServedModelOptions& options, const Checkpoint& checkpoint,
                            const Tokenizer& tokenizer) {
  if (!options.chat_template_file.empty()) {
    std::string source = read_text_file(options.chat_template_file, limits::kTemplateSourceBytesMax);
    if (source.empty()) {
      fail(ErrorCode::kInvalidArgument, "--chat-template {} is empty; give a file that holds a template",
           options.chat_template_file);
    }
    return source;
  }
  if (checkpoint.container() == Container::kGguf) {
    return gguf_text(checkpoint.config(), "tokenizer.chat_template", "");
  }
  std::string source = tokenizer.chat_template();
  const std::filesystem::path file = checkpoint.path() / "chat_template.jinja";
  std::error_code ignored;
  if (source.empty() && std::filesystem::is_regular_file(file, ignored)) {
    source = read_text_file(file.string(), limits::kTemplateSourceBytesMax);
  }
  return source;
}

/// Where template_source() found it, for messages.
std::string template_origin(const ServedModelOptions& options, const Checkpoint& checkpoint) {
  if (!options.chat_template_file.empty()) return options.chat_template_file;
  if (checkpoint.container() == Container::kGguf) return checkpoint.path().string() + ": tokenizer.chat_template";
  std::error_code ignored;
  for (const char* name : {"chat_template.jinja", "chat_template.json"}) {
    const std::filesystem::path file = checkpoint.path() / name;
    if (std::filesystem::is_regular_file(file, ignored)) return file.string();
  }
  return (checkpoint.path() / "tokenizer_config.json").string();
}

std::shared_ptr<const ChatTemplate> compiled_template(const ServedModelOptions& options, const Checkpoint& checkpoint,
                                                      const std::string& source) {
  try {
    return ChatTemplate::compile(source);
  } catch (const Error& error) {
    fail(error.code(), "{}: {}", template_origin(options, checkpoint), error.what());
  }
}

/// Rows that the checkpoint says its vocabulary has; a tokenizer may know fewer (padding), never more that can be
/// drawn.
std::int64_t vocabulary_bound(const Json& config, const Tokenizer& tokenizer) {
  std::int64_t bound = tokenizer.size();
  if (!config.is_object()) return bound;
  const auto text_config = config.find("text_config");
  const bool nested = text_config != config.end() && text_config->is_object();
  for (const Json* source : {&config, nested ? &*text_config : nullptr}) {
    if (source == nullptr) continue;
    const auto size = source->find("vocab_size");
    if (size != source->end() && size->is_number_unsigned()) bound = std::max(bound, size->get<std::int64_t>());
  }
  return bound;
}

/// A wrong end token would let every reply run to its limit, so it is refused and not skipped.
void add_ids(const Json& config, const char* key, std::int64_t bound, std::vector<std::int32_t>& ids) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return;
  const auto add = [&ids, key, bound](const Json& value) {
    const std::int64_t id = value.is_number_integer() ? value.get<std::int64_t>() : -1;
    if (id < 0 || id >= bound) {
      fail(ErrorCode::kInvalidCheckpoint,
           "\"{}\" is {}, but the vocabulary's ids are 0 to {}; download the checkpoint again", key,
           value.dump().substr(0, kShownValueBytes), bound - 1);
    }
    ids.push_back(static_cast<std::int32_t>(id));
  };
  if (found->is_array()) {
    for (const Json& value : *found) add(value);
  } else {
    add(*found);
  }
}

std::vector<std::string> public_names(const ServedModelOptions& options) {
  std::vector<std::string> names = {options.name.empty() ? default_model_name(options.model) : options.name};
  for (const std::string& alias : options.aliases) {
    const std::size_t first = alias.find_first_not_of(" \t");
    if (first == std::string::npos) continue;
    const std::string trimmed = alias.substr(first, alias.find_last_not_of(" \t") - first + 1);
    if (std::find(names.begin(), names.end(), trimmed) == names.end()) names.push_back(trimmed);
  }
  return names;
}

}  // namespace

std::shared_ptr<const Tokenizer> load_tokenizer(const Checkpoint& checkpoint) {
  if (checkpoint.container() == Container::kGguf) return Tokenizer::from_gguf(gguf_vocabulary(checkpoint));
  return Tokenizer::from_directory(checkpoint.path());
}

std::vector<std::int32_t> end_tokens(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                                     const std::string& source) {
  std::vector<std::int32_t> ids;
  const Json& config = checkpoint.config();
  const std::int64_t bound = vocabulary_bound(config, tokenizer);
  if (config.is_object()) {
    add_ids(config, "eos_token_id", bound, ids);
    const auto text_config = config.find("text_config");
    if (text_config != config.end() && text_config->is_object()) add_ids(*text_config, "eos_token_id", bound, ids);
    for (const char* key :
         {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
      if (gguf_token_id(config, key)) add_ids(config, key, bound, ids);
    }
  }
  if (checkpoint.generation_config().is_object()) add_ids(checkpoint.generation_config(), "eos_token_id", bound, ids);
  if (const auto eos = tokenizer.eos_token()) ids.push_back(*eos);
  for (const std::string_view name : kTurnEnds) {
    if (source.find(name) == std::string::npos) continue;
    if (const auto id = tokenizer.token_id(name)) ids.push_back(*id);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::shared_ptr<const ServedModel> load_served_model(const ServedModelOptions& options, const LoadProgress& progress) {
  const auto report = [&progress](double fraction, const std::string& what) {
    if (progress) progress(fraction, what);
  };
  report(0.0, "opening");
  const std::shared_ptr<const Checkpoint> checkpoint = Checkpoint::open(resolve_model(options.model));
  auto model = std::make_shared<ServedModel>();
  model->names = public_names(options);
  model->created_unix_seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  model->tokenizer = load_tokenizer(*checkpoint);
  const std::string source = template_source(options, *checkpoint, *model->tokenizer);
  if (!source.empty()) {
    nlohmann::ordered_json special_tokens = nlohmann::ordered_json::object();
    for (const char* name : {"bos_token", "eos_token", "pad_token", "unk_token"}) {
      special_tokens[name] = model->tokenizer->special_text(name);
    }
    model->prompts =
        std::make_shared<PromptRenderer>(compiled_template(options, *checkpoint, source), std::move(special_tokens));
    model->reasoning = reasoning_format(source);
  }
  model->defaults = sampling_defaults(checkpoint->generation_config(), options.sampling);
  if (options.instruct_sampling) {
    model->instruct_defaults =
        sampling_defaults(checkpoint->generation_config(), options.sampling, *options.instruct_sampling);
  }
  model->stop_tokens = end_tokens(*checkpoint, *model->tokenizer, source);
  model->thinking_default = options.thinking && model->prompts && model->prompts->facts().has_thinking_switch;
  model->effort_default = options.effort;
  const auto vocabulary_size = static_cast<std::int32_t>(
      std::min<std::int64_t>(vocabulary_bound(checkpoint->config(), *model->tokenizer), limits::kVocabularySizeMax));
  const std::shared_ptr<RecallStore> recall = open_recall(options.drafts, *model->tokenizer, vocabulary_size);
  model->thinking_budget = options.thinking_budget;
  LoadOptions load;
  set_drafters(options.drafts, load);
  load.context_max = options.context;
  load.progress = report;
  std::unique_ptr<LanguageModel> language_model = load_language_model(checkpoint, make_backend(options), load);
  // Ids past the vocabulary (padding a tokenizer never emits) can't be drawn.
  const std::int32_t vocabulary = language_model->facts().vocabulary_size;
  model->structured_output = std::make_shared<StructuredOutput>(model->tokenizer, vocabulary, model->reasoning);
  std::erase_if(model->stop_tokens, [vocabulary](std::int32_t id) { return id >= vocabulary; });
  EngineOptions engine;
  engine.lanes = options.lanes;
  engine.context = options.context;
  engine.prompt_cache_bytes = options.prompt_cache_bytes;
  engine.prompt_cache_over_cap = options.prompt_cache_over_cap;
  engine.prompt_cache_shared = options.prompt_cache_shared;
  engine.learn = options.learn;
  engine.drafts = options.drafts.drafts;
  engine.recall = recall;
  engine.mtp_drafts = options.drafts.mtp_drafts.value_or(-1);
  engine.mtp_confidence = options.drafts.mtp_confidence.value_or(-1.0);
  report(1.0, "starting the engine");
  model->engine = Engine::start(std::move(language_model), engine);
  return model;
}

}  // namespace tensorfold
