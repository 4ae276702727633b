// See presets.h. Sizes: families-a.md 1.1, 2.1 and 8, and the models' published configurations.
#include "convert/synthetic/presets.h"

#include <string>

#include "base/error.h"

namespace tensorfold {
namespace {

// rope scaling is left out: it changes angles, not what is computed or read.
constexpr std::string_view kLlama8b = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
  "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
  "max_position_embeddings": 131072, "rope_theta": 500000.0, "rms_norm_eps": 1e-05,
  "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false,
  "bos_token_id": 128000, "eos_token_id": 128009})";

constexpr std::string_view kSmolLm2 = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
  "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
  "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152,
  "max_position_embeddings": 8192, "rope_theta": 100000.0, "rms_norm_eps": 1e-05,
  "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": false,
  "bos_token_id": 1, "eos_token_id": 2})";

constexpr std::string_view kQwen2 = R"({
  "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
  "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
  "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936,
  "max_position_embeddings": 32768, "rope_theta": 1000000.0, "rms_norm_eps": 1e-06,
  "tie_word_embeddings": true, "use_sliding_window": false, "eos_token_id": 151645})";

constexpr std::string_view kQwen3 = R"({
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
  "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
  "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
  "max_position_embeddings": 40960, "rope_theta": 1000000.0, "rms_norm_eps": 1e-06,
  "tie_word_embeddings": true, "attention_bias": false, "use_sliding_window": false, "eos_token_id": 151645})";

constexpr std::string_view kQwen35Dense = R"({
  "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
  "tie_word_embeddings": false, "eos_token_id": 248046,
  "text_config": {
    "model_type": "qwen3_5_text", "hidden_act": "silu",
    "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64,
    "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "attn_output_gate": true,
    "attention_bias": false, "full_attention_interval": 4,
    "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "vocab_size": 248320, "max_position_embeddings": 262144, "rms_norm_eps": 1e-06,
    "tie_word_embeddings": false, "eos_token_id": 248044,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25,
                        "mrope_section": [11, 11, 10], "mrope_interleaved": true}}})";

constexpr std::string_view kQwen35Mixture = R"({
  "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
  "tie_word_embeddings": false, "eos_token_id": 248046,
  "text_config": {
    "model_type": "qwen3_5_moe_text", "hidden_act": "silu",
    "hidden_size": 2048, "num_hidden_layers": 40, "num_experts": 256, "num_experts_per_tok": 8,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "attn_output_gate": true,
    "attention_bias": false, "full_attention_interval": 4,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "vocab_size": 248320, "max_position_embeddings": 262144, "rms_norm_eps": 1e-06,
    "tie_word_embeddings": false, "eos_token_id": 248044,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25,
                        "mrope_section": [11, 11, 10], "mrope_interleaved": true}}})";

constexpr SyntheticPreset kPresets[] = {
    {"qwen3.8-27b", kQwen35Dense, "", "qwen35", true},
    {"qwen3.6-35b-a3b", kQwen35Mixture, "", "qwen35", true},
    {"llama-8b", kLlama8b, "llama", "llama-bpe"},
    {"qwen2.5-1.5b", kQwen2, "qwen2", "qwen2"},
    {"qwen3-0.6b", kQwen3, "qwen3", "qwen2"},
    {"smollm2-135m", kSmolLm2, "llama", "smollm"},
};

}  // namespace

std::span<const SyntheticPreset> synthetic_presets() {
  return kPresets;
}

const SyntheticPreset& find_synthetic_preset(std::string_view name) {
  std::string known;
  for (const SyntheticPreset& preset : kPresets) {
    if (preset.name == name) return preset;
    known += (known.empty() ? "" : ", ") + std::string(preset.name);
  }
  fail(ErrorCode::kInvalidArgument, "no preset \"{}\"; there are {}", name, known);
}

nlohmann::json& text_config_of(nlohmann::json& config) {
  const auto found = config.find("text_config");
  return found != config.end() && found->is_object() ? *found : config;
}

}  // namespace tensorfold
