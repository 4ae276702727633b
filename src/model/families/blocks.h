// Shared pieces from which families build their descriptions.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/families/family.h"

namespace tensorfold::blocks {

/// Sizes that every decoder family has, read and range-checked once.
struct Sizes {
  std::int64_t hidden, layers, vocabulary, context;
  std::int32_t heads, kv_heads, head_dim;
  float epsilon;
};
Sizes read_sizes(const ConfigReader& config);

std::string layer_name(std::int64_t layer, const char* rest);  // "layers.3." + rest
NormDescription norm(const std::string& name, std::int64_t width, float epsilon, bool add_one = false);
LinearDescription linear(const std::string& name, std::int64_t rows, std::int64_t columns, bool bias = false);

/// Full attention q|k|v and output of layer `layer`; `gated` doubles q. Rope, window, norms and scale are the caller's.
AttentionMixer attention(const Sizes& sizes, std::int64_t layer, bool gated, bool qkv_bias, bool output_bias);
/// mlp.{gate,up,down}_proj under `prefix` ("mlp." or "mlp.shared_expert.").
LinearDescription gate_up(std::int64_t layer, const std::string& prefix, std::int64_t width, std::int64_t hidden,
                          bool bias);
DenseFeedForward dense(const ConfigReader& config, std::int64_t hidden, std::int64_t layer,
                       ops::ActivationKind activation, bool bias);
/// Experts named mlp.gate (router), mlp.experts.{gate,up,down}_proj.
MoeFeedForward moe(std::int64_t hidden, std::int64_t layer, const ConfigReader& config, bool normalise_top_k);

/// Embedding, final norm, head and sizes of a description, without layers.
ModelDescription model(const FamilyInput& input, const Sizes& sizes, bool norm_add_one);

/// rope_parameters (new spelling) or rope_theta + rope_scaling (old) of a model with one RoPE.
RopeDescription rope(const ConfigReader& config, std::int32_t rotary_dims, std::int64_t context, double theta_default);

/// layer_types as "is full attention" per layer; `other` names the family's second kind. Without layer_types every
/// `interval`-th layer is full.
std::vector<bool> full_attention_layers(const ConfigReader& config, std::int64_t layers, const std::string& other,
                                        std::int64_t interval);

/// The cache group of this kind and window, added if it is new; counts the layer.
std::int32_t cache_group(ModelDescription& model, CacheKind kind, std::int32_t window);

/// Puts `prefix` before every tensor name of the layer ("mtp." of a head that is built like the family's layers).
void prefix_names(LayerDescription& layer, const std::string& prefix);

/// Where the checkpoint's MTP head is: nothing, "" for the checkpoint itself (looked at when `in_checkpoint`), or the path
/// of a side file beside it.
std::optional<std::string> find_mtp(const FamilyInput& input, bool in_checkpoint);
/// The head around `layer`, whose names are those of layer 0 and which is built once it is known whether its norms are
/// zero-centred (`add_one`); norms and joining layer are added. A side file or an MLX conversion is asked by the means of its
/// norms (families-a.md 0.4).
MtpDescription mtp(const FamilyInput& input, const Sizes& sizes, const std::string& side_file, bool body_adds_one,
                   const std::function<LayerDescription(bool add_one)>& layer);

ops::ActivationKind activation_kind(const ConfigReader& config, const char* key, const char* fallback);

}  // namespace tensorfold::blocks
