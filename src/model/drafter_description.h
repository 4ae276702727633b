// A block drafter (DFlash2, DFlash; families-a.md 4) as a description: what a drafter folder's config.json comes down
// to, checked against the model it drafts for. Tensor names are canonical; model/drafter_weights maps them to the
// file's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/description.h"

namespace tensorfold {

/// Two-tap convolutions around a block of a layer: a learnt kernel, and a projection that yields a dynamic one.
struct BlockConvolution {
  std::string base_kernel;       // [2 sides, 2 taps, hidden]
  LinearDescription projection;  // [2 sides · 2 taps · groups, hidden]
};

struct DrafterLayer {
  std::int32_t window = 0;       // context and block keys (p − window, p] are visible; 0 = all
  bool causal = false;           // a block's row sees only the rows before it; otherwise the whole block
  std::int32_t cache_group = 0;  // the executor's to give
  NormDescription input_norm, feed_forward_norm, q_norm, k_norm;
  LinearDescription query, key_value, attention_output;  // key_value: k | v, for context rows and block rows
  LinearDescription gate_up, down;
  std::optional<BlockConvolution> attention_convolution, feed_forward_convolution;
};

/// Pair scores: sum over rank of predecessor[t] · hidden_projection · successor[c].
struct CandidateSelector {
  std::int64_t rank = 0;
  std::string predecessors, successors;  // tables [vocabulary, rank]
  LinearDescription hidden_projection;
};

struct DrafterDescription {
  std::string path;                         // the folder, for people
  std::string title;                        // "DFlash2", "DFlash"
  std::int64_t hidden_size = 0, width = 0;  // width: of the gated feed-forward
  ops::ActivationKind activation = ops::ActivationKind::kSilu;
  std::int32_t heads = 0, kv_heads = 0, head_dim = 0;
  RopeDescription rope;
  std::vector<std::int32_t>
      taps;  // layers of the target whose residual stream is read, in the order of the context's columns
  LinearDescription context;  // [hidden, taps · hidden]
  NormDescription context_norm, final_norm;
  std::vector<DrafterLayer> layers;
  std::int32_t block_rows = 0;  // rows it was trained for, the pending token's included
  std::int32_t mask_token = 0;
  float embedding_scale = 1.0f;
  float logit_scale = 1.0f;
  std::int64_t convolution_group = 0;  // channels that share a dynamic weight; 0 = no convolutions
  std::int32_t candidates = 0;         // per depth
  std::optional<CandidateSelector> selector;
};

/// Reads and checks a drafter's config.json. Throws Error(kInvalidCheckpoint | kUnsupported) that names the key and
/// what of `target` it doesn't fit.
DrafterDescription describe_drafter(const Checkpoint& drafter, const ModelDescription& target);

/// The folder of the drafter that lies beside a checkpoint ("dflash2"), where there is one.
std::optional<std::filesystem::path> find_drafter_folder(const Checkpoint& checkpoint);

}  // namespace tensorfold
