// See drafter_weights.h.
#include "model/drafter_weights.h"

#include "base/error.h"
#include "model/quantise.h"
#include "model/tensor_loader.h"

namespace tensorfold {
namespace {

constexpr std::int64_t kQuantisedElementsMin = 1 << 20;

void quantise_projection(WeightView& view, GatheredStack& stack) {
  const bool dense =
      view.format == WeightFormat::kBF16 || view.format == WeightFormat::kF16 || view.format == WeightFormat::kF32;
  if (!dense || view.columns % kQuantisedGroup != 0 || view.rows * view.columns < kQuantisedElementsMin) return;
  view = quantise_4bit(view, stack);
}

BlockConvolutionWeights convolution(TensorLoader& tensors, const std::optional<BlockConvolution>& description,
                                    std::int64_t hidden) {
  BlockConvolutionWeights result;
  if (!description) return result;
  result.base_kernel = tensors.vector(description->base_kernel, 4 * hidden);
  result.projection = tensors.linear(description->projection);
  return result;
}

DrafterLayerWeights layer(TensorLoader& tensors, const DrafterLayer& description, std::int64_t hidden) {
  DrafterLayerWeights result;
  result.input_norm = tensors.norm(description.input_norm);
  result.feed_forward_norm = tensors.norm(description.feed_forward_norm);
  result.q_norm = tensors.norm(description.q_norm);
  result.k_norm = tensors.norm(description.k_norm);
  result.query = tensors.linear(description.query);
  result.key_value = tensors.linear(description.key_value);
  result.attention_output = tensors.linear(description.attention_output, LinearUse::kSplitColumns);
  result.gate_up = tensors.linear(description.gate_up, LinearUse::kGateUp);
  result.down = tensors.linear(description.down, LinearUse::kSplitColumns);
  result.attention_convolution = convolution(tensors, description.attention_convolution, hidden);
  result.feed_forward_convolution = convolution(tensors, description.feed_forward_convolution, hidden);
  return result;
}

}  // namespace

std::unique_ptr<LoadedDrafter> load_drafter(const std::filesystem::path& folder, const ModelDescription& target,
                                            ops::Backend& backend, std::int32_t bits,
                                            const std::function<void(double, const std::string&)>& progress) {
  if (bits != 0 && bits != 4) {
    fail(ErrorCode::kInvalidArgument, "A drafter's weights can have 4 bits, or 0 to keep them as stored; not {}.",
         bits);
  }
  const auto checkpoint = Checkpoint::open(folder);
  auto result = std::make_unique<LoadedDrafter>();
  result->description = describe_drafter(*checkpoint, target);
  const DrafterDescription& description = result->description;
  DrafterWeights& weights = result->weights;
  weights.checkpoint = checkpoint;
  TensorLoader tensors(*checkpoint, TensorNames::of_drafter(*checkpoint), backend, progress);
  if (bits == 4) tensors.set_rework(quantise_projection);
  weights.context = tensors.linear(description.context);
  weights.context_norm = tensors.norm(description.context_norm);
  weights.final_norm = tensors.norm(description.final_norm);
  for (const auto& each : description.layers) {
    weights.layers.push_back(layer(tensors, each, description.hidden_size));
  }
  if (const auto& selector = description.selector) {
    weights.hidden_projection = tensors.linear(selector->hidden_projection);
    weights.predecessors = tensors.table(selector->predecessors, target.vocabulary_size, selector->rank);
    weights.successors = tensors.table(selector->successors, target.vocabulary_size, selector->rank);
  }
  // Embedding and head are the target's; some files carry copies.
  tensors.check_every_tensor_used({"embed_tokens.*", "model.embed_tokens.*", "lm_head.*", "*rotary_emb.inv_freq"},
                                  "the drafter");
  weights.vectors = tensors.take_vectors();
  weights.packed_bytes = tensors.packed_bytes();
  return result;
}

}  // namespace tensorfold
