// Llama and its near relatives: pre-norm, full rotary attention, SwiGLU (families-a.md 8.1, 8.2). Qwen2 adds q/k/v biases;
// Qwen3 adds per-head q and k norms; Qwen3 MoE replaces the feed-forward by experts without a shared one.
#include <algorithm>

#include "base/error.h"
#include "base/limits.h"
#include "model/families/blocks.h"

namespace tensorfold {
namespace {

struct Variant {
  bool qk_norm = false;
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  bool interleaved_rope_rows = false;  // GGUF converters interleave q and k rows of the llama architecture
  bool dense_feed_forward = true;
};

LayerDescription describe_layer(const ConfigReader& config, const blocks::Sizes& sizes, std::int64_t index,
                                const Variant& variant) {
  LayerDescription layer;
  layer.input_norm = blocks::norm(blocks::layer_name(index, "input_layernorm"), sizes.hidden, sizes.epsilon);
  layer.feed_forward_norm =
      blocks::norm(blocks::layer_name(index, "post_attention_layernorm"), sizes.hidden, sizes.epsilon);
  auto mixer = blocks::attention(sizes, index, false, variant.qkv_bias, variant.output_bias);
  if (variant.interleaved_rope_rows) {
    mixer.qkv.parts[0].rope_head_dim = mixer.qkv.parts[1].rope_head_dim = sizes.head_dim;
  }
  if (variant.qk_norm) {
    mixer.q_norm = blocks::norm(blocks::layer_name(index, "self_attn.q_norm"), sizes.head_dim, sizes.epsilon);
    mixer.k_norm = blocks::norm(blocks::layer_name(index, "self_attn.k_norm"), sizes.head_dim, sizes.epsilon);
  }
  layer.mixer = std::move(mixer);
  if (variant.dense_feed_forward) {
    layer.feed_forward = blocks::dense(config, sizes.hidden, index,
                                       blocks::activation_kind(config, "hidden_act", "silu"), variant.mlp_bias);
  }
  return layer;
}

ModelDescription describe(const FamilyInput& input, const Variant& variant) {
  const auto& config = input.config;
  const auto sizes = blocks::read_sizes(config);
  if (config.boolean_or("use_sliding_window", false)) {
    fail(ErrorCode::kUnsupported, "{}: use_sliding_window is not served for this family", config.where());
  }
  auto model = blocks::model(input, sizes, false);
  model.ropes = {blocks::rope(config, sizes.head_dim, sizes.context, 10000.0)};
  model.ignored_tensors = {"*rotary_emb.inv_freq"};
  for (std::int64_t index = 0; index < sizes.layers; ++index) {
    auto layer = describe_layer(config, sizes, index, variant);
    std::get<AttentionMixer>(layer.mixer).cache_group = blocks::cache_group(model, CacheKind::kFull, 0);
    model.layers.push_back(std::move(layer));
  }
  return model;
}

}  // namespace

ModelDescription describe_llama(const FamilyInput& input) {
  Variant variant;
  variant.qkv_bias = variant.output_bias = input.config.boolean_or("attention_bias", false);
  variant.mlp_bias = input.config.boolean_or("mlp_bias", false);
  variant.interleaved_rope_rows = input.checkpoint.container() == Container::kGguf;
  return describe(input, variant);
}

ModelDescription describe_qwen2(const FamilyInput& input) {
  Variant variant;
  variant.qkv_bias = true;
  return describe(input, variant);
}

namespace {

Variant qwen3_variant(const FamilyInput& input) {
  Variant variant;
  variant.qk_norm = true;
  variant.qkv_bias = variant.output_bias = input.config.boolean_or("attention_bias", false);
  return variant;
}

}  // namespace

ModelDescription describe_qwen3(const FamilyInput& input) { return describe(input, qwen3_variant(input)); }

ModelDescription describe_qwen3_moe(const FamilyInput& input) {
  auto variant = qwen3_variant(input);
  variant.dense_feed_forward = false;
  auto model = describe(input, variant);
  const auto& config = input.config;
  const auto dense_layers = config.integers("mlp_only_layers");
  const std::int64_t step = config.integer_or("decoder_sparse_step", 1, 1, limits::kLayerCountMax);
  // Off unless the config says otherwise, as the family's configuration class has it; GGUF fills it in.
  const bool normalise = config.boolean_or("norm_topk_prob", false);
  for (std::size_t index = 0; index < model.layers.size(); ++index) {
    const auto layer = static_cast<std::int64_t>(index);
    const bool listed = std::find(dense_layers.begin(), dense_layers.end(), layer) != dense_layers.end();
    if (listed || (layer + 1) % step != 0) {
      model.layers[index].feed_forward = blocks::dense(config, model.hidden_size, layer,
                                                       blocks::activation_kind(config, "hidden_act", "silu"), false);
    } else {
      model.layers[index].feed_forward = blocks::moe(model.hidden_size, layer, config, normalise);
    }
  }
  return model;
}

}  // namespace tensorfold
