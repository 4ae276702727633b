// See gguf_vocabulary.h.
#include "serve/gguf_vocabulary.h"

#include "base/error.h"
#include "base/limits.h"

namespace tensorfold {
namespace {

constexpr std::int64_t kGgufNoToken = 0xffffffff;  // how a file spells "there is none"

std::optional<bool> metadata_flag(const nlohmann::json& config, const char* key) {
  const auto found = config.find(key);
  return found != config.end() && found->is_boolean() ? std::optional<bool>(found->get<bool>()) : std::nullopt;
}

}  // namespace

std::optional<std::int32_t> gguf_token_id(const nlohmann::json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end() || !found->is_number_integer()) return std::nullopt;
  const std::int64_t id = found->get<std::int64_t>();
  if (id == kGgufNoToken || id == -1) return std::nullopt;
  if (id < 0 || id >= limits::kVocabularySizeMax) {
    fail(ErrorCode::kInvalidCheckpoint, "{} is {}, outside any vocabulary; download the file again", key, id);
  }
  return static_cast<std::int32_t>(id);
}

std::string gguf_text(const nlohmann::json& config, const char* key, const char* otherwise) {
  const auto found = config.find(key);
  return found != config.end() && found->is_string() ? found->get<std::string>() : otherwise;
}

GgufVocabulary gguf_vocabulary(const Checkpoint& checkpoint) {
  const nlohmann::json& config = checkpoint.config();
  GgufVocabulary vocabulary;
  vocabulary.model = gguf_text(config, "tokenizer.ggml.model", "");
  vocabulary.pre = gguf_text(config, "tokenizer.ggml.pre", "default");
  vocabulary.tokens = checkpoint.gguf_strings("tokenizer.ggml.tokens");
  if (vocabulary.model == "gpt2") vocabulary.merges = checkpoint.gguf_strings("tokenizer.ggml.merges");
  if (vocabulary.model == "llama") {
    for (const double score : checkpoint.gguf_numbers("tokenizer.ggml.scores")) {
      vocabulary.scores.push_back(static_cast<float>(score));
    }
  }
  for (const double type : checkpoint.gguf_numbers("tokenizer.ggml.token_type")) {
    vocabulary.token_types.push_back(type >= 0 && type < 256 ? static_cast<std::int32_t>(type) : 0);
  }
  vocabulary.bos_token = gguf_token_id(config, "tokenizer.ggml.bos_token_id").value_or(-1);
  vocabulary.eos_token = gguf_token_id(config, "tokenizer.ggml.eos_token_id").value_or(-1);
  vocabulary.unknown_token = gguf_token_id(config, "tokenizer.ggml.unknown_token_id").value_or(-1);
  vocabulary.padding_token = gguf_token_id(config, "tokenizer.ggml.padding_token_id").value_or(-1);
  vocabulary.add_bos_token = metadata_flag(config, "tokenizer.ggml.add_bos_token");
  vocabulary.add_eos_token = metadata_flag(config, "tokenizer.ggml.add_eos_token");
  vocabulary.add_space_prefix = metadata_flag(config, "tokenizer.ggml.add_space_prefix");
  return vocabulary;
}

}  // namespace tensorfold
