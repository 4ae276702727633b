#include "model/gguf_config.h"

#include <array>
#include <string>

#include "base/error.h"

namespace tensorfold {
namespace {

struct Architecture {
  const char* gguf;
  const char* model_type;
};
constexpr std::array kArchitectures{Architecture{"llama", "llama"},       Architecture{"qwen2", "qwen2"},
                                    Architecture{"qwen3", "qwen3"},       Architecture{"qwen3moe", "qwen3_moe"},
                                    Architecture{"gemma3", "gemma3_text"}};

class Metadata {
 public:
  Metadata(const nlohmann::json& config, std::string prefix) : config_(config), prefix_(std::move(prefix)) {}

  const nlohmann::json* find(const std::string& key) const {
    const auto found = config_.find(prefix_ + key);
    return found == config_.end() ? nullptr : &*found;
  }
  void copy(nlohmann::json& out, const char* to, const std::string& key) const {
    if (const auto* value = find(key)) out[to] = *value;
  }

 private:
  const nlohmann::json& config_;
  std::string prefix_;
};

// llama.cpp's rope scaling keys; llama 3's own factors come as a tensor ("rope_freqs.weight") that the loader reads.
void copy_rope_scaling(nlohmann::json& out, const Metadata& metadata) {
  const auto* type = metadata.find("rope.scaling.type");
  if (!type || *type == "none") return;
  nlohmann::json scaling{{"rope_type", *type}};
  metadata.copy(scaling, "factor", "rope.scaling.factor");
  metadata.copy(scaling, "original_max_position_embeddings", "rope.scaling.original_context_length");
  metadata.copy(scaling, "attention_factor", "rope.scaling.attn_factor");
  metadata.copy(scaling, "beta_fast", "rope.scaling.yarn_beta_fast");
  metadata.copy(scaling, "beta_slow", "rope.scaling.yarn_beta_slow");
  out["rope_scaling"] = scaling;
}

void copy_gemma3(nlohmann::json& out, const Metadata& metadata) {
  metadata.copy(out, "sliding_window", "attention.sliding_window");
  metadata.copy(out, "query_pre_attn_scalar", "attention.key_length");
  out["sliding_window_pattern"] = 6;
  out["rope_local_base_freq"] = 10000.0;
  if (!out.contains("rope_theta")) out["rope_theta"] = 1e6;
  metadata.copy(out, "final_logit_softcapping", "final_logit_softcapping");
}

std::int64_t vocabulary_size(const Checkpoint& checkpoint, const Metadata& metadata) {
  if (const auto* size = metadata.find("vocab_size"); size && size->is_number_integer()) {
    return size->get<std::int64_t>();
  }
  const TensorInfo* table = checkpoint.find("token_embd.weight");
  if (!table || table->shape.size() != 2) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: no 2-D tensor \"token_embd.weight\"", checkpoint.path().string());
  }
  return table->shape[0];
}

}  // namespace

nlohmann::json gguf_to_config(const Checkpoint& checkpoint) {
  const auto& config = checkpoint.config();
  const auto named = config.find("general.architecture");
  if (named == config.end() || !named->is_string()) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: metadata has no general.architecture", checkpoint.path().string());
  }
  const std::string architecture = named->get<std::string>();
  const char* model_type = nullptr;
  for (const auto& known : kArchitectures) {
    if (architecture == known.gguf) model_type = known.model_type;
  }
  if (!model_type) {
    fail(ErrorCode::kUnsupported, "{}: GGUF architecture \"{}\" is not served (llama, qwen2, qwen3, qwen3moe, gemma3 are)",
         checkpoint.path().string(), architecture);
  }
  const Metadata metadata(config, architecture + ".");
  nlohmann::json out{{"model_type", model_type}};
  metadata.copy(out, "hidden_size", "embedding_length");
  metadata.copy(out, "num_hidden_layers", "block_count");
  metadata.copy(out, "intermediate_size", "feed_forward_length");
  metadata.copy(out, "num_attention_heads", "attention.head_count");
  metadata.copy(out, "num_key_value_heads", "attention.head_count_kv");
  metadata.copy(out, "head_dim", "attention.key_length");
  metadata.copy(out, "max_position_embeddings", "context_length");
  metadata.copy(out, "rms_norm_eps", "attention.layer_norm_rms_epsilon");
  metadata.copy(out, "rope_theta", "rope.freq_base");
  metadata.copy(out, "num_experts", "expert_count");
  metadata.copy(out, "num_experts_per_tok", "expert_used_count");
  metadata.copy(out, "moe_intermediate_size", "expert_feed_forward_length");
  if (!out.contains("rms_norm_eps")) out["rms_norm_eps"] = 1e-6;
  out["vocab_size"] = vocabulary_size(checkpoint, metadata);
  copy_rope_scaling(out, metadata);
  if (architecture == "gemma3") copy_gemma3(out, metadata);
  if (architecture == "qwen3moe") {
    out["norm_topk_prob"] = true;  // llama.cpp always renormalises for this architecture
    out["decoder_sparse_step"] = 1;
  }
  return out;
}

}  // namespace tensorfold
