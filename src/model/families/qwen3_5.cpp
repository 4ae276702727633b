// Qwen3.5 hybrids (families-a.md 1 and 2): Gated DeltaNet layers with a full, gated attention layer every fourth; dense or
// mixture-of-experts feed-forward. Norms are zero-centred in Hugging Face files; MLX conversions fold the +1 in the same
// step that moves the convolution's axes, so the stored shape of a convolution tells which of the two a file is.
#include <algorithm>

#include "base/error.h"
#include "base/limits.h"
#include "model/families/blocks.h"

namespace tensorfold {
namespace {

ops::GatedDeltaGeometry geometry(const ConfigReader& config) {
  ops::GatedDeltaGeometry result;
  const auto read = [&](const char* key, std::int64_t fallback, std::int64_t high) {
    return static_cast<std::int32_t>(config.integer_or(key, fallback, 1, high));
  };
  result.k_heads = read("linear_num_key_heads", 16, limits::kHeadCountMax);
  result.v_heads = read("linear_num_value_heads", 32, limits::kHeadCountMax);
  result.k_dim = read("linear_key_head_dim", 128, limits::kHeadDimensionMax);
  result.v_dim = read("linear_value_head_dim", 128, limits::kHeadDimensionMax);
  result.conv_kernel = static_cast<std::int32_t>(config.integer_or("linear_conv_kernel_dim", 4, 2, 8));
  if (result.v_heads % result.k_heads != 0) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: linear_num_value_heads {} is not a multiple of linear_num_key_heads {}",
         config.where(), result.v_heads, result.k_heads);
  }
  return result;
}

GatedDeltaMixer gated_delta(const blocks::Sizes& sizes, const ConfigReader& config, std::int64_t layer) {
  GatedDeltaMixer mixer;
  mixer.geometry = geometry(config);
  const auto name = [&](const char* rest) { return blocks::layer_name(layer, rest); };
  const std::int64_t value_width = static_cast<std::int64_t>(mixer.geometry.v_heads) * mixer.geometry.v_dim;
  mixer.input.name = name("linear_attn.in_proj_{qkv,z,b,a}");
  mixer.input.columns = sizes.hidden;
  mixer.input.parts = {{name("linear_attn.in_proj_qkv"), mixer.geometry.conv_channels(), false, 0},
                       {name("linear_attn.in_proj_z"), value_width, false, 0},
                       {name("linear_attn.in_proj_b"), mixer.geometry.v_heads, false, 0},
                       {name("linear_attn.in_proj_a"), mixer.geometry.v_heads, false, 0}};
  mixer.output = blocks::linear(name("linear_attn.out_proj"), sizes.hidden, value_width);
  mixer.conv_weight = name("linear_attn.conv1d.weight");
  mixer.a_log = name("linear_attn.A_log");
  mixer.dt_bias = name("linear_attn.dt_bias");
  mixer.norm = blocks::norm(name("linear_attn.norm"), mixer.geometry.v_dim, sizes.epsilon);
  const std::string gate = config.text_or("output_gate_type", "swish");
  if (gate != "swish" && gate != "silu" && gate != "sigmoid") {
    fail(ErrorCode::kUnsupported, "{}: output_gate_type \"{}\" is not served", config.where(), gate);
  }
  mixer.sigmoid_gate = gate == "sigmoid";
  return mixer;
}

bool norms_are_raw(const FamilyInput& input, const std::vector<bool>& full) {
  for (std::size_t layer = 0; layer < full.size(); ++layer) {
    if (full[layer]) continue;
    const auto canonical = blocks::layer_name(static_cast<std::int64_t>(layer), "linear_attn.conv1d.weight");
    const TensorInfo* conv = input.checkpoint.find(input.names.file_name(canonical));
    if (!conv || conv->shape.size() != 3) break;
    return conv->shape[1] == 1;  // (C, 1, K): Hugging Face; (C, K, 1): MLX
  }
  return input.checkpoint.container() == Container::kHuggingFace;
}

AttentionMixer attention(const blocks::Sizes& sizes, const ConfigReader& config, std::int64_t layer, bool add_one) {
  const bool bias = config.boolean_or("attention_bias", false);
  auto mixer = blocks::attention(sizes, layer, config.boolean_or("attn_output_gate", true), bias, bias);
  mixer.q_norm = blocks::norm(blocks::layer_name(layer, "self_attn.q_norm"), sizes.head_dim, sizes.epsilon, add_one);
  mixer.k_norm = blocks::norm(blocks::layer_name(layer, "self_attn.k_norm"), sizes.head_dim, sizes.epsilon, add_one);
  return mixer;
}

std::int32_t rotary_dims(const ConfigReader& config, std::int32_t head_dim) {
  double factor = config.number_or("partial_rotary_factor", 0.25, 1e-3, 1.0);
  if (const auto parameters = config.object("rope_parameters")) {
    factor = parameters->number_or("partial_rotary_factor", factor, 1e-3, 1.0);
  }
  const auto dims = static_cast<std::int32_t>(static_cast<double>(head_dim) * factor);
  if (dims < 2 || dims % 2 != 0) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: partial_rotary_factor {} of head_dim {} gives {} rotary dims",
         config.where(), factor, head_dim, dims);
  }
  return dims;
}

MoeFeedForward experts(const ConfigReader& config, std::int64_t hidden, std::int64_t layer) {
  auto feed_forward = blocks::moe(hidden, layer, config, true);  // always renormalised in this family
  SharedExpert shared;
  shared.width = config.integer("shared_expert_intermediate_size", 1, limits::kIntermediateSizeMax);
  shared.gate_up = blocks::gate_up(layer, "mlp.shared_expert.", shared.width, hidden, false);
  shared.down = blocks::linear(blocks::layer_name(layer, "mlp.shared_expert.down_proj"), hidden, shared.width);
  shared.gate = blocks::linear(blocks::layer_name(layer, "mlp.shared_expert_gate"), 1, hidden);
  feed_forward.shared = std::move(shared);
  return feed_forward;
}

// "mtp_num_hidden_layers": 0 switches the head off whatever is stored; without the key only a side file counts, because
// somebody put it there.
std::optional<MtpDescription> mtp_head(const FamilyInput& input, const blocks::Sizes& sizes, bool mixture,
                                       bool body_adds_one) {
  const ConfigReader& config = input.config;
  const bool stated = config.has("mtp_num_hidden_layers");
  const std::int64_t layers = config.integer_or("mtp_num_hidden_layers", 1, 0, limits::kLayerCountMax);
  if (layers == 0) return std::nullopt;
  const auto side_file = blocks::find_mtp(input, stated);
  if (!side_file) return std::nullopt;
  if (layers > 1 || config.boolean_or("mtp_use_dedicated_embeddings", false)) {
    fail(ErrorCode::kUnsupported,
         "{}: an MTP head of {} layers{} is not served; set \"mtp_num_hidden_layers\" to 0 to run without it",
         config.where(), layers, layers > 1 ? "" : " with an embedding of its own");
  }
  return blocks::mtp(input, sizes, *side_file, body_adds_one, [&](bool add_one) {
    LayerDescription layer;
    layer.input_norm = blocks::norm(blocks::layer_name(0, "input_layernorm"), sizes.hidden, sizes.epsilon, add_one);
    layer.feed_forward_norm =
        blocks::norm(blocks::layer_name(0, "post_attention_layernorm"), sizes.hidden, sizes.epsilon, add_one);
    layer.mixer = attention(sizes, config, 0, add_one);
    if (mixture) {
      layer.feed_forward = experts(config, sizes.hidden, 0);
    } else {
      layer.feed_forward =
          blocks::dense(config, sizes.hidden, 0, blocks::activation_kind(config, "hidden_act", "silu"), false);
    }
    return layer;
  });
}

ModelDescription describe(const FamilyInput& input, bool mixture) {
  const auto& config = input.config;
  const auto sizes = blocks::read_sizes(config);
  const auto full = blocks::full_attention_layers(
      config, sizes.layers, "linear_attention", config.integer_or("full_attention_interval", 4, 1, limits::kLayerCountMax));
  const bool add_one = norms_are_raw(input, full);
  auto model = blocks::model(input, sizes, add_one);
  model.ropes = {blocks::rope(config, rotary_dims(config, sizes.head_dim), sizes.context, 1e7)};
  model.ignored_tensors = {"model.visual.*", "visual.*", "vision_tower.*"};
  const auto dense_layers = config.integers("mlp_only_layers");
  for (std::int64_t index = 0; index < sizes.layers; ++index) {
    LayerDescription layer;
    layer.input_norm = blocks::norm(blocks::layer_name(index, "input_layernorm"), sizes.hidden, sizes.epsilon, add_one);
    layer.feed_forward_norm =
        blocks::norm(blocks::layer_name(index, "post_attention_layernorm"), sizes.hidden, sizes.epsilon, add_one);
    if (full[static_cast<std::size_t>(index)]) {
      auto mixer = attention(sizes, config, index, add_one);
      mixer.cache_group = blocks::cache_group(model, CacheKind::kFull, 0);
      layer.mixer = std::move(mixer);
    } else {
      auto mixer = gated_delta(sizes, config, index);
      mixer.cache_group = blocks::cache_group(model, CacheKind::kRecurrent, 0);
      layer.mixer = std::move(mixer);
    }
    const bool dense = !mixture || std::find(dense_layers.begin(), dense_layers.end(), index) != dense_layers.end();
    if (dense) {
      layer.feed_forward = blocks::dense(config, sizes.hidden, index,
                                         blocks::activation_kind(config, "hidden_act", "silu"), false);
    } else {
      layer.feed_forward = experts(config, sizes.hidden, index);
    }
    model.layers.push_back(std::move(layer));
  }
  model.mtp = mtp_head(input, sizes, mixture, add_one);
  if (!model.mtp) model.ignored_tensors.push_back("*mtp.*");
  // Of the released vocabulary 99.6 % of what is read and written lies below 98,304, or among the special ids at its end.
  if (model.vocabulary_size == 248'320) model.draft_vocabulary = {{0, 98'304}, {248'032, 248'320}};
  return model;
}

}  // namespace

ModelDescription describe_qwen3_5(const FamilyInput& input) { return describe(input, false); }
ModelDescription describe_qwen3_5_moe(const FamilyInput& input) { return describe(input, true); }

}  // namespace tensorfold
