// See gguf_metadata.h.
#include "convert/synthetic/gguf_metadata.h"

#include <utility>

#include "base/error.h"

namespace tensorfold {
namespace {

/// llama.cpp's numbers for "mostly of this type" (general.file_type).
std::uint32_t file_type(const std::string& format) {
  constexpr std::pair<const char*, std::uint32_t> kTypes[] = {{"q4_0", 2}, {"q4_1", 3}, {"q8_0", 7}, {"bf16", 32}};
  for (const auto& [name, number] : kTypes) {
    if (format == name) return number;
  }
  fail(ErrorCode::kInvalidArgument, "a GGUF file can't hold {}", format);
}

class Metadata {
 public:
  Metadata(const SyntheticPreset& preset, const nlohmann::json& text)
      : architecture_(preset.gguf_architecture), text_(text) {}

  void add(std::string key, GgufValue value) { entries_.push_back({std::move(key), std::move(value)}); }
  /// A number of the configuration under the architecture's name for it.
  void add_number(const char* key, const char* config_key) {
    add(architecture_ + "." + key, text_.at(config_key).get<std::uint32_t>());
  }
  void add_real(const char* key, const char* config_key) {
    add(architecture_ + "." + key, text_.at(config_key).get<float>());
  }
  const std::string& architecture() const { return architecture_; }
  std::vector<GgufEntry> take() { return std::move(entries_); }

 private:
  std::string architecture_;
  const nlohmann::json& text_;
  std::vector<GgufEntry> entries_;
};

void add_vocabulary(Metadata& metadata, const SyntheticVocabulary& vocabulary) {
  metadata.add("tokenizer.ggml.model", std::string("gpt2"));
  metadata.add("tokenizer.ggml.pre", vocabulary.pre_tokenizer);
  metadata.add("tokenizer.ggml.tokens", vocabulary.tokens);
  metadata.add("tokenizer.ggml.token_type", vocabulary.types);
  metadata.add("tokenizer.ggml.merges", vocabulary.merges);
  if (vocabulary.bos_token >= 0) {
    metadata.add("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(vocabulary.bos_token));
  }
  metadata.add("tokenizer.ggml.eos_token_id", static_cast<std::uint32_t>(vocabulary.eos_token));
  metadata.add("tokenizer.ggml.add_bos_token", false);
}

}  // namespace

std::vector<GgufEntry> gguf_model_metadata(const SyntheticPreset& preset, const nlohmann::json& text,
                                           const std::string& format, const SyntheticVocabulary& vocabulary) {
  Metadata metadata(preset, text);
  metadata.add("general.architecture", metadata.architecture());
  metadata.add("general.name", "random weights in the shape of " + std::string(preset.name));
  metadata.add("general.quantization_version", std::uint32_t{2});
  metadata.add("general.file_type", file_type(format));
  metadata.add_number("block_count", "num_hidden_layers");
  metadata.add_number("context_length", "max_position_embeddings");
  metadata.add_number("embedding_length", "hidden_size");
  metadata.add_number("feed_forward_length", "intermediate_size");
  metadata.add_number("attention.head_count", "num_attention_heads");
  metadata.add_number("attention.head_count_kv", "num_key_value_heads");
  metadata.add_real("attention.layer_norm_rms_epsilon", "rms_norm_eps");
  metadata.add_real("rope.freq_base", "rope_theta");
  metadata.add_number("vocab_size", "vocab_size");
  if (text.contains("head_dim")) {
    metadata.add_number("attention.key_length", "head_dim");
    metadata.add_number("attention.value_length", "head_dim");
    metadata.add_number("rope.dimension_count", "head_dim");
  }
  add_vocabulary(metadata, vocabulary);
  return metadata.take();
}

nlohmann::json gguf_config(const std::vector<GgufEntry>& metadata) {
  nlohmann::json config = nlohmann::json::object();
  for (const GgufEntry& entry : metadata) {
    std::visit(
        [&](const auto& value) {
          using Value = std::decay_t<decltype(value)>;
          constexpr bool kArray =
              std::is_same_v<Value, std::vector<std::string>> || std::is_same_v<Value, std::vector<std::int32_t>>;
          if constexpr (!kArray) config[entry.key] = value;  // the only arrays here are the tokenizer's
        },
        entry.value);
  }
  return config;
}

}  // namespace tensorfold
