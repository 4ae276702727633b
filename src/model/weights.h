// A model's weights on a backend, in the shape of its description. Filled by the loader, read by the executor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/description.h"
#include "ops/backend.h"

namespace tensorfold {

struct AttentionWeights {
  std::unique_ptr<ops::Linear> qkv, output;
  const float* q_norm = nullptr;  // backend memory, null when there is none
  const float* k_norm = nullptr;
};

struct GatedDeltaWeights {
  std::unique_ptr<ops::Linear> input, output;
  const float* conv_weight = nullptr;
  const float* decay = nullptr;
  const float* dt_bias = nullptr;
  const float* norm = nullptr;
};

struct DenseWeights {
  std::unique_ptr<ops::Linear> gate_up, down;
};

struct MoeWeights {
  std::unique_ptr<ops::Linear> router;  // with a shared expert: its gate is one more row, the last
  std::unique_ptr<ops::Linear> gate_up, down;
  std::unique_ptr<ops::Linear> shared_gate_up, shared_down;  // null without a shared expert
};

struct LayerWeights {
  const float* input_norm = nullptr;
  const float* post_mixer_norm = nullptr;
  const float* feed_forward_norm = nullptr;
  const float* post_feed_forward_norm = nullptr;
  std::variant<AttentionWeights, GatedDeltaWeights> mixer;
  std::variant<DenseWeights, MoeWeights> feed_forward;
};

struct MtpWeights {
  const float* embedding_norm = nullptr;
  const float* hidden_norm = nullptr;
  const float* final_norm = nullptr;
  std::unique_ptr<ops::Linear> join;
  LayerWeights layer;
};

struct ModelWeights {
  std::unique_ptr<ops::Linear> embedding;
  std::unique_ptr<ops::Linear> head;  // null when tied
  std::unique_ptr<ops::Linear> draft_head;  // the head's rows of ModelDescription::draft_vocabulary; null: all of them
  const float* final_norm = nullptr;
  std::vector<LayerWeights> layers;
  std::unique_ptr<MtpWeights> mtp;  // null without a head
  std::vector<std::unique_ptr<ops::Buffer>> vectors;  // owns what the pointers above point to
  std::uint64_t packed_bytes = 0;
};

/// Reads and packs every weight, those of an MTP head in a side file too. Afterwards every tensor of the files has been used or is on the description's list of
/// ignored ones; any other stops the load with its name.
/// `for_drafters`: something will draft, so a draft head is packed where the description asks for one.
ModelWeights load_weights(const Checkpoint& checkpoint, const ModelDescription& description, ops::Backend& backend,
                          bool for_drafters,
                          const std::function<void(double, const std::string&)>& progress);

}  // namespace tensorfold
