// The shapes that `--synthetic` makes models of: real models' configurations, by a short name. Apart from what fills
// them, because a preset states facts about somebody else's model and nothing about random numbers.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

namespace tensorfold {

struct SyntheticPreset {
  std::string_view name;               // "qwen3.8-27b"
  std::string_view config;             // config.json, as the model's MLX conversion has it (without "quantization")
  std::string_view gguf_architecture;  // "" where this build reads no GGUF file of the family
  std::string_view pre_tokenizer;      // GGUF's name for how the model's tokenizer cuts words
  bool has_mtp = false;                // the model ships an MTP head
};

std::span<const SyntheticPreset> synthetic_presets();
/// Throws Error(kInvalidArgument) that names the presets there are.
const SyntheticPreset& find_synthetic_preset(std::string_view name);

/// The text model's part of a config.json: text_config of a multimodal wrapper, or all of it.
nlohmann::json& text_config_of(nlohmann::json& config);

}  // namespace tensorfold
