// Implementation of the shared description pieces; see blocks.h.
#include "model/families/blocks.h"

#include <cmath>

#include "base/error.h"
#include "base/limits.h"
#include "model/rope.h"

namespace tensorfold::blocks {

Sizes read_sizes(const ConfigReader& config) {
  Sizes sizes{};
  sizes.hidden = config.integer("hidden_size", 1, limits::kHiddenSizeMax);
  sizes.layers = config.integer("num_hidden_layers", 1, limits::kLayerCountMax);
  sizes.vocabulary = config.integer("vocab_size", 1, limits::kVocabularySizeMax);
  sizes.context = config.integer("max_position_embeddings", 1, limits::kContextTokensMax);
  sizes.heads = static_cast<std::int32_t>(config.integer("num_attention_heads", 1, limits::kHeadCountMax));
  sizes.kv_heads =
      static_cast<std::int32_t>(config.integer_or("num_key_value_heads", sizes.heads, 1, limits::kHeadCountMax));
  if (sizes.heads % sizes.kv_heads != 0) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: num_attention_heads {} is not a multiple of num_key_value_heads {}",
         config.where(), sizes.heads, sizes.kv_heads);
  }
  if (!config.has("head_dim") && sizes.hidden % sizes.heads != 0) {
    fail(ErrorCode::kInvalidCheckpoint,
         "{}: hidden_size {} is not a multiple of num_attention_heads {} and there is no head_dim", config.where(),
         sizes.hidden, sizes.heads);
  }
  sizes.head_dim = static_cast<std::int32_t>(
      config.integer_or("head_dim", sizes.hidden / sizes.heads, 2, limits::kHeadDimensionMax));
  if (sizes.head_dim % 2 != 0) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: head_dim {} is odd", config.where(), sizes.head_dim);
  }
  sizes.epsilon = static_cast<float>(config.number_or("rms_norm_eps", 1e-6, 0.0, 1.0));
  return sizes;
}

std::string layer_name(std::int64_t layer, const char* rest) { return "layers." + std::to_string(layer) + "." + rest; }

NormDescription norm(const std::string& name, std::int64_t width, float epsilon, bool add_one) {
  return NormDescription{name + ".weight", width, epsilon, add_one};
}

LinearDescription linear(const std::string& name, std::int64_t rows, std::int64_t columns, bool bias) {
  return LinearDescription{name, {LinearPart{name, rows, bias, 0}}, columns, 0};
}

AttentionMixer attention(const Sizes& sizes, std::int64_t layer, bool gated, bool qkv_bias, bool output_bias) {
  AttentionMixer mixer;
  mixer.heads = sizes.heads;
  mixer.kv_heads = sizes.kv_heads;
  mixer.head_dim = sizes.head_dim;
  mixer.gated = gated;
  mixer.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(sizes.head_dim)));
  const std::int64_t attention_width = static_cast<std::int64_t>(sizes.heads) * sizes.head_dim;
  const std::int64_t kv_rows = static_cast<std::int64_t>(sizes.kv_heads) * sizes.head_dim;
  mixer.qkv.name = layer_name(layer, "self_attn.{q,k,v}_proj");
  mixer.qkv.columns = sizes.hidden;
  mixer.qkv.parts = {{layer_name(layer, "self_attn.q_proj"), attention_width * (gated ? 2 : 1), qkv_bias, 0},
                     {layer_name(layer, "self_attn.k_proj"), kv_rows, qkv_bias, 0},
                     {layer_name(layer, "self_attn.v_proj"), kv_rows, qkv_bias, 0}};
  mixer.output = linear(layer_name(layer, "self_attn.o_proj"), sizes.hidden, attention_width, output_bias);
  return mixer;
}

LinearDescription gate_up(std::int64_t layer, const std::string& prefix, std::int64_t width, std::int64_t hidden,
                          bool bias) {
  LinearDescription description;
  const std::string base = layer_name(layer, prefix.c_str());
  description.name = base + "{gate,up}_proj";
  description.columns = hidden;
  description.parts = {{base + "gate_proj", width, bias, 0}, {base + "up_proj", width, bias, 0}};
  return description;
}

DenseFeedForward dense(const ConfigReader& config, std::int64_t hidden, std::int64_t layer,
                       ops::ActivationKind activation, bool bias) {
  DenseFeedForward feed_forward;
  feed_forward.width = config.integer("intermediate_size", 1, limits::kIntermediateSizeMax);
  feed_forward.activation = activation;
  feed_forward.gate_up = gate_up(layer, "mlp.", feed_forward.width, hidden, bias);
  feed_forward.down = linear(layer_name(layer, "mlp.down_proj"), hidden, feed_forward.width, bias);
  return feed_forward;
}

MoeFeedForward moe(std::int64_t hidden, std::int64_t layer, const ConfigReader& config, bool normalise_top_k) {
  MoeFeedForward feed_forward;
  feed_forward.experts = static_cast<std::int32_t>(config.integer("num_experts", 1, limits::kExpertCountMax));
  const std::int64_t top_k_max = std::min<std::int64_t>(feed_forward.experts, limits::kExpertsPerTokenMax);
  feed_forward.top_k = static_cast<std::int32_t>(config.integer("num_experts_per_tok", 1, top_k_max));
  feed_forward.width = config.integer("moe_intermediate_size", 1, limits::kIntermediateSizeMax);
  feed_forward.normalise_top_k = normalise_top_k;
  feed_forward.activation = activation_kind(config, "hidden_act", "silu");
  feed_forward.router = linear(layer_name(layer, "mlp.gate"), feed_forward.experts, hidden);
  feed_forward.gate_up = gate_up(layer, "mlp.experts.", feed_forward.width, hidden, false);
  feed_forward.gate_up.experts = feed_forward.experts;
  feed_forward.down = linear(layer_name(layer, "mlp.experts.down_proj"), hidden, feed_forward.width);
  feed_forward.down.experts = feed_forward.experts;
  return feed_forward;
}

ModelDescription model(const FamilyInput& input, const Sizes& sizes, bool norm_add_one) {
  ModelDescription description;
  description.vocabulary_size = static_cast<std::int32_t>(sizes.vocabulary);
  description.hidden_size = sizes.hidden;
  description.context_max = static_cast<std::int32_t>(sizes.context);
  description.embedding = linear("embed_tokens", sizes.vocabulary, sizes.hidden);
  description.final_norm = norm("norm", sizes.hidden, sizes.epsilon, norm_add_one);
  if (!input.tied_embeddings) description.head = linear("lm_head", sizes.vocabulary, sizes.hidden);
  return description;
}

RopeDescription rope(const ConfigReader& config, std::int32_t rotary_dims, std::int64_t context,
                     double theta_default) {
  const auto parameters =
      config.has("rope_parameters") ? config.object("rope_parameters") : config.object("rope_scaling");
  double theta = config.number_or("rope_theta", theta_default, 1.0, 1e12);
  if (parameters) theta = parameters->number_or("rope_theta", theta, 1.0, 1e12);
  return make_rope(theta, rotary_dims, parameters, context);
}

std::vector<bool> full_attention_layers(const ConfigReader& config, std::int64_t layers, const std::string& other,
                                        std::int64_t interval) {
  std::vector<bool> full;
  const auto types = config.texts("layer_types");
  if (types.empty()) {
    for (std::int64_t layer = 0; layer < layers; ++layer) full.push_back((layer + 1) % interval == 0);
    return full;
  }
  if (static_cast<std::int64_t>(types.size()) != layers) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: layer_types has {} entries for {} layers", config.where(), types.size(),
         layers);
  }
  for (const auto& type : types) {
    if (type != "full_attention" && type != other) {
      fail(ErrorCode::kUnsupported, "{}: layer type \"{}\" is not served (full_attention and {} are)", config.where(),
           type, other);
    }
    full.push_back(type == "full_attention");
  }
  return full;
}

std::int32_t cache_group(ModelDescription& model, CacheKind kind, std::int32_t window) {
  for (std::size_t i = 0; i < model.cache_groups.size(); ++i) {
    auto& group = model.cache_groups[i];
    if (group.kind != kind || group.window != window) continue;
    ++group.layer_count;
    return static_cast<std::int32_t>(i);
  }
  CacheGroup group;
  group.kind = kind;
  group.window = window;
  group.layer_count = 1;
  model.cache_groups.push_back(group);
  return static_cast<std::int32_t>(model.cache_groups.size()) - 1;
}

ops::ActivationKind activation_kind(const ConfigReader& config, const char* key, const char* fallback) {
  const std::string name = config.text_or(key, fallback);
  if (name == "silu" || name == "swish") return ops::ActivationKind::kSilu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_tanh" || name == "gelu_new") return ops::ActivationKind::kGeluTanh;
  fail(ErrorCode::kUnsupported, "{}: activation \"{}\" of \"{}\" is not served", config.where(), name, key);
}

}  // namespace tensorfold::blocks
