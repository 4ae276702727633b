// A block drafter's weights on a backend, in the shape of its description.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/drafter_description.h"
#include "ops/backend.h"

namespace tensorfold {

struct BlockConvolutionWeights {
  const float* base_kernel = nullptr;  // [2 sides, 2 taps, hidden]
  std::unique_ptr<ops::Linear> projection;
};

struct DrafterLayerWeights {
  const float* input_norm = nullptr;
  const float* feed_forward_norm = nullptr;
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  std::unique_ptr<ops::Linear> query, key_value, attention_output, gate_up, down;
  BlockConvolutionWeights attention_convolution, feed_forward_convolution;  // empty without convolutions
};

struct DrafterWeights {
  std::unique_ptr<ops::Linear> context;
  const float* context_norm = nullptr;
  const float* final_norm = nullptr;
  std::vector<DrafterLayerWeights> layers;
  std::unique_ptr<ops::Linear> hidden_projection;  // null without a selector
  /// The code-books stay in the mapped file: a pair score reads a row of each.
  WeightView predecessors, successors;
  std::shared_ptr<const Checkpoint> checkpoint;       // what they point into
  std::vector<std::unique_ptr<ops::Buffer>> vectors;  // owns what the pointers above point to
  std::uint64_t packed_bytes = 0;
};

/// A drafter as it joins a model.
struct LoadedDrafter {
  DrafterDescription description;
  DrafterWeights weights;
};

/// Opens a drafter's folder, checks it against `target` and packs its weights. `bits` 4 quantises dense projections of
/// at least 2^20 elements, 0 keeps them as they are; matrices that are quantised in the file stay so. Every tensor of
/// the file is used, or stops the load with its name.
std::unique_ptr<LoadedDrafter> load_drafter(const std::filesystem::path& folder, const ModelDescription& target,
                                            ops::Backend& backend, std::int32_t bits,
                                            const std::function<void(double, const std::string&)>& progress);

}  // namespace tensorfold
