// Gemma 3 text models (families-a.md 8.3): four zero-centred norms a layer, sliding and full attention layers with their
// own RoPE each, GeGLU, scaled embeddings. MLX keeps the norms raw; GGUF's converter folds the +1. The embedding factor is
// sqrt(hidden) in fp32; implementations that run in bf16 round it first.
#include <cmath>

#include "base/limits.h"
#include "model/families/blocks.h"
#include "model/rope.h"

namespace tensorfold {
namespace {

// RoPE 0: full layers; RoPE 1: sliding layers. New files nest the parameters by layer type.
std::vector<RopeDescription> ropes(const ConfigReader& config, std::int32_t head_dim, std::int64_t context) {
  const auto nested = config.object("rope_parameters");
  if (nested && (nested->has("full_attention") || nested->has("sliding_attention"))) {
    const auto full = nested->object("full_attention"), sliding = nested->object("sliding_attention");
    const double full_theta = full ? full->number_or("rope_theta", 1e6, 1.0, 1e12) : 1e6;
    const double sliding_theta = sliding ? sliding->number_or("rope_theta", 1e4, 1.0, 1e12) : 1e4;
    return {make_rope(full_theta, head_dim, full, context), make_rope(sliding_theta, head_dim, sliding, context)};
  }
  const double local_theta = config.number_or("rope_local_base_freq", 1e4, 1.0, 1e12);
  return {blocks::rope(config, head_dim, context, 1e6), make_rope(local_theta, head_dim, std::nullopt, context)};
}

struct Choices {
  bool add_one;
  bool bias;
  std::int32_t window;
  float scale;
  ops::ActivationKind activation;
};

LayerDescription describe_layer(const ConfigReader& config, const blocks::Sizes& sizes, std::int64_t index, bool full,
                                const Choices& choices) {
  LayerDescription layer;
  const auto norm = [&](const char* name, std::int64_t width) {
    return blocks::norm(blocks::layer_name(index, name), width, sizes.epsilon, choices.add_one);
  };
  layer.input_norm = norm("input_layernorm", sizes.hidden);
  layer.post_mixer_norm = norm("post_attention_layernorm", sizes.hidden);
  layer.feed_forward_norm = norm("pre_feedforward_layernorm", sizes.hidden);
  layer.post_feed_forward_norm = norm("post_feedforward_layernorm", sizes.hidden);
  auto mixer = blocks::attention(sizes, index, false, choices.bias, choices.bias);
  mixer.q_norm = norm("self_attn.q_norm", sizes.head_dim);
  mixer.k_norm = norm("self_attn.k_norm", sizes.head_dim);
  mixer.scale = choices.scale;
  mixer.rope = full ? 0 : 1;
  mixer.window = full ? 0 : choices.window;
  layer.mixer = std::move(mixer);
  layer.feed_forward = blocks::dense(config, sizes.hidden, index, choices.activation, false);
  return layer;
}

}  // namespace

ModelDescription describe_gemma3(const FamilyInput& input) {
  const auto& config = input.config;
  const auto sizes = blocks::read_sizes(config);
  config.refuse_unless("attn_logit_softcapping", nullptr, "attention soft-capping is not served");
  config.refuse_unless("use_bidirectional_attention", false, "bidirectional attention is not served");
  const char* pattern = config.has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  const auto full = blocks::full_attention_layers(config, sizes.layers, "sliding_attention",
                                                  config.integer_or(pattern, 6, 1, limits::kLayerCountMax));
  Choices choices{};
  choices.add_one = input.checkpoint.container() != Container::kGguf;
  choices.bias = config.boolean_or("attention_bias", false);
  choices.window =
      static_cast<std::int32_t>(config.integer_or("sliding_window", 4096, 1, limits::kContextTokensMax));
  choices.scale = static_cast<float>(1.0 / std::sqrt(config.number_or("query_pre_attn_scalar", 256.0, 1e-3, 1e6)));
  const char* activation = config.has("hidden_activation") ? "hidden_activation" : "hidden_act";
  choices.activation = blocks::activation_kind(config, activation, "gelu_pytorch_tanh");

  auto model = blocks::model(input, sizes, choices.add_one);
  model.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(sizes.hidden)));
  model.logit_soft_cap = static_cast<float>(config.number_or("final_logit_softcapping", 0.0, 0.0, 1e6));
  model.ropes = ropes(config, sizes.head_dim, sizes.context);
  model.ignored_tensors = {"vision_tower.*", "multi_modal_projector.*", "model.vision_tower.*",
                           "model.multi_modal_projector.*"};
  for (std::int64_t index = 0; index < sizes.layers; ++index) {
    const bool is_full = full[static_cast<std::size_t>(index)];
    auto layer = describe_layer(config, sizes, index, is_full, choices);
    auto& mixer = std::get<AttentionMixer>(layer.mixer);
    mixer.cache_group = blocks::cache_group(model, is_full ? CacheKind::kFull : CacheKind::kSliding, mixer.window);
    model.layers.push_back(std::move(layer));
  }
  return model;
}

}  // namespace tensorfold
