// A model as a description: what a family's file makes of config.json, and all that the loader and the executor know of a
// model. Built from shared blocks; nothing here names a family's quirks, only the choices they come down to. Names of
// tensors are canonical ("layers.3.self_attn.q_proj"); model/tensor_names.h maps them to what a file calls them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "model/language_model.h"
#include "ops/elementwise.h"
#include "ops/gated_delta.h"

namespace tensorfold {

struct NormDescription {
  std::string weight;        // canonical tensor name
  std::int64_t width = 0;
  float epsilon = 1e-6f;
  bool add_one = false;      // zero-centred and stored raw: 1 is added at load
};

/// One stored matrix that takes part in a (possibly fused) linear layer.
struct LinearPart {
  std::string name;          // canonical name without ".weight"
  std::int64_t rows = 0;
  bool bias = false;
  /// > 0: rows are those of attention heads of this size that a GGUF llama converter interleaves for its RoPE.
  std::int32_t rope_head_dim = 0;
};

struct LinearDescription {
  std::string name;          // for messages
  std::vector<LinearPart> parts;
  std::int64_t columns = 0;
  std::int64_t experts = 0;  // > 0: an expert stack
  std::int64_t rows() const {
    std::int64_t sum = 0;
    for (const auto& part : parts) sum += part.rows;
    return sum;
  }
};

/// Rotary embedding: one inverse frequency per rotated pair, and a factor on cos and sin (yarn's attention factor).
struct RopeDescription {
  std::vector<double> inverse_frequencies;
  double attention_factor = 1.0;
  std::int32_t rotary_dims() const { return static_cast<std::int32_t>(inverse_frequencies.size()) * 2; }
};

struct AttentionMixer {
  std::int32_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int32_t window = 0;   // 0 = all keys
  float scale = 1.0f;
  bool gated = false;        // q_proj yields query and output gate, interleaved per head
  std::int32_t rope = 0;     // index into ModelDescription::ropes
  std::int32_t cache_group = 0;
  std::optional<NormDescription> q_norm, k_norm;
  LinearDescription qkv;     // q (with gate) | k | v
  LinearDescription output;
};

struct GatedDeltaMixer {
  ops::GatedDeltaGeometry geometry;
  std::int32_t cache_group = 0;
  bool sigmoid_gate = false;
  LinearDescription input;   // qkv | z | b | a
  LinearDescription output;
  std::string conv_weight, a_log, dt_bias;
  NormDescription norm;
};

struct DenseFeedForward {
  std::int64_t width = 0;
  ops::ActivationKind activation = ops::ActivationKind::kSilu;
  LinearDescription gate_up, down;
};

struct SharedExpert {
  std::int64_t width = 0;
  LinearDescription gate_up, down, gate;
};

struct MoeFeedForward {
  std::int32_t experts = 0, top_k = 0;
  std::int64_t width = 0;
  bool normalise_top_k = true;
  ops::ActivationKind activation = ops::ActivationKind::kSilu;
  LinearDescription router, gate_up, down;
  std::optional<SharedExpert> shared;
};

struct LayerDescription {
  NormDescription input_norm;
  std::variant<AttentionMixer, GatedDeltaMixer> mixer;
  std::optional<NormDescription> post_mixer_norm;         // Gemma: on the mixer's output, before the residual
  NormDescription feed_forward_norm;
  std::variant<DenseFeedForward, MoeFeedForward> feed_forward;
  std::optional<NormDescription> post_feed_forward_norm;
};

/// Token ids [begin, end).
struct IdRange {
  std::int32_t begin = 0, end = 0;
};

/// A multi-token-prediction head (families-a.md 1.5): x = join([norm(embedding of token i + 1); norm(hidden state i)]), one
/// decoder layer with keys of its own, a final norm, and the model's head. Embedding and head are the model's.
struct MtpDescription {
  std::string side_file;        // path of the file that holds it; empty: the checkpoint itself
  NormDescription embedding_norm, hidden_norm, final_norm;
  LinearDescription join;       // [hidden, 2·hidden], the embedding's half first
  LayerDescription layer;       // full attention; its cache group is the executor's to give
  std::int32_t depth_max = 3;   // levels worth chaining
};

struct ModelDescription {
  std::string family, title;
  std::string checkpoint_id;  // see checkpoint_id.h
  std::int32_t vocabulary_size = 0;
  std::int64_t hidden_size = 0;
  std::int32_t context_max = 0;
  LinearDescription embedding;          // a table: rows = vocabulary
  float embedding_scale = 1.0f;
  std::vector<LayerDescription> layers;
  NormDescription final_norm;
  std::optional<LinearDescription> head;  // absent: tied to the embedding
  float logit_soft_cap = 0.0f;          // 0 = none
  std::optional<MtpDescription> mtp;
  /// Ids that drafts are chosen from, ascending ranges; empty: all. A head of those rows alone is packed for drafters.
  std::vector<IdRange> draft_vocabulary;
  std::vector<RopeDescription> ropes;
  std::vector<CacheGroup> cache_groups; // page_bytes and slot_bytes are filled in by the loader
  /// Tensors (canonical or file names; a trailing '*' matches any rest) that may be present and are not read.
  std::vector<std::string> ignored_tensors;
};

}  // namespace tensorfold
