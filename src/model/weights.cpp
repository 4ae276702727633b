// The generic weight loader: walks a description and fills a model's weights in its shape. It has no family in it, and
// what it takes to find, check and pack one tensor is model/tensor_loader's.
#include "model/weights.h"

#include <cmath>

#include "base/error.h"
#include "model/tensor_loader.h"

namespace tensorfold {
namespace {

class WeightLoader {
 public:
  WeightLoader(const Checkpoint& checkpoint, TensorNames names, const ModelDescription& description,
               ops::Backend& backend, const std::function<void(double, const std::string&)>& progress)
      : checkpoint_(checkpoint), description_(description), tensors_(checkpoint, std::move(names), backend, progress) {}

  ModelWeights load(bool for_drafters);
  /// Of a file that holds the description's MTP head alone.
  ModelWeights load_mtp_file();

 private:
  LayerWeights layer(const LayerDescription& layer);
  std::unique_ptr<MtpWeights> mtp(const MtpDescription& head);
  AttentionWeights attention(const AttentionMixer& mixer);
  GatedDeltaWeights gated_delta(const GatedDeltaMixer& mixer);
  MoeWeights moe(const MoeFeedForward& feed_forward);
  ModelWeights finish();

  std::unique_ptr<ops::Linear> linear(const LinearDescription& description, LinearUse use = LinearUse::kOrdinary) {
    return tensors_.linear(description, use);
  }
  const float* vector(const std::string& canonical, std::int64_t count,
                      const std::function<float(float)>& transform = {}) {
    return tensors_.vector(canonical, count, transform);
  }
  const float* norm(const NormDescription& description) { return tensors_.norm(description); }

  const Checkpoint& checkpoint_;
  const ModelDescription& description_;
  TensorLoader tensors_;
  ModelWeights weights_;
};

AttentionWeights WeightLoader::attention(const AttentionMixer& mixer) {
  AttentionWeights result;
  result.qkv = linear(mixer.qkv);
  result.output = linear(mixer.output, LinearUse::kSplitColumns);
  if (mixer.q_norm) result.q_norm = norm(*mixer.q_norm);
  if (mixer.k_norm) result.k_norm = norm(*mixer.k_norm);
  return result;
}

GatedDeltaWeights WeightLoader::gated_delta(const GatedDeltaMixer& mixer) {
  GatedDeltaWeights result;
  const auto& geometry = mixer.geometry;
  result.input = linear(mixer.input);
  result.output = linear(mixer.output, LinearUse::kSplitColumns);
  result.conv_weight = vector(mixer.conv_weight, geometry.conv_channels() * geometry.conv_kernel);
  result.decay = vector(mixer.a_log, geometry.v_heads,
                        [](float value) { return static_cast<float>(-std::exp(static_cast<double>(value))); });
  result.dt_bias = vector(mixer.dt_bias, geometry.v_heads);
  result.norm = norm(mixer.norm);
  return result;
}

MoeWeights WeightLoader::moe(const MoeFeedForward& feed_forward) {
  MoeWeights result;
  LinearDescription router = feed_forward.router;
  if (feed_forward.shared) {
    const auto& gate = feed_forward.shared->gate.parts;
    router.parts.insert(router.parts.end(), gate.begin(), gate.end());
  }
  result.router = linear(router);
  result.gate_up = linear(feed_forward.gate_up, LinearUse::kGateUp);
  result.down = linear(feed_forward.down, LinearUse::kSplitColumns);
  if (feed_forward.shared) {
    result.shared_gate_up = linear(feed_forward.shared->gate_up, LinearUse::kGateUp);
    result.shared_down = linear(feed_forward.shared->down, LinearUse::kSplitColumns);
  }
  return result;
}

ModelWeights WeightLoader::finish() {
  weights_.vectors = tensors_.take_vectors();
  weights_.packed_bytes = tensors_.packed_bytes();
  return std::move(weights_);
}

LayerWeights WeightLoader::layer(const LayerDescription& layer) {
  LayerWeights result;
  result.input_norm = norm(layer.input_norm);
  result.feed_forward_norm = norm(layer.feed_forward_norm);
  if (layer.post_mixer_norm) result.post_mixer_norm = norm(*layer.post_mixer_norm);
  if (layer.post_feed_forward_norm) result.post_feed_forward_norm = norm(*layer.post_feed_forward_norm);
  if (const auto* mixer = std::get_if<AttentionMixer>(&layer.mixer)) {
    result.mixer = attention(*mixer);
  } else {
    result.mixer = gated_delta(std::get<GatedDeltaMixer>(layer.mixer));
  }
  if (const auto* dense = std::get_if<DenseFeedForward>(&layer.feed_forward)) {
    DenseWeights dense_weights;
    dense_weights.gate_up = linear(dense->gate_up, LinearUse::kGateUp);
    dense_weights.down = linear(dense->down, LinearUse::kSplitColumns);
    result.feed_forward = std::move(dense_weights);
  } else {
    result.feed_forward = moe(std::get<MoeFeedForward>(layer.feed_forward));
  }
  return result;
}

std::unique_ptr<MtpWeights> WeightLoader::mtp(const MtpDescription& head) {
  auto result = std::make_unique<MtpWeights>();
  result->embedding_norm = norm(head.embedding_norm);
  result->hidden_norm = norm(head.hidden_norm);
  result->final_norm = norm(head.final_norm);
  result->join = linear(head.join);
  result->layer = layer(head.layer);
  return result;
}

ModelWeights WeightLoader::load(bool for_drafters) {
  weights_.embedding = linear(description_.embedding, LinearUse::kEmbedding);
  if (description_.head) weights_.head = linear(*description_.head);
  if (for_drafters && !description_.draft_vocabulary.empty()) {
    weights_.draft_head =
        tensors_.rows_of(description_.head.value_or(description_.embedding), description_.draft_vocabulary);
  }
  weights_.final_norm = norm(description_.final_norm);
  for (const auto& each : description_.layers) weights_.layers.push_back(layer(each));
  if (description_.mtp && description_.mtp->side_file.empty()) weights_.mtp = mtp(*description_.mtp);
  auto ignored = description_.ignored_tensors;
  if (!description_.head) ignored.insert(ignored.end(), {"lm_head.*", "language_model.lm_head.*", "output.weight"});
  if (checkpoint_.container() == Container::kGguf) ignored.push_back("rope_freqs.weight");  // read by describe_model
  tensors_.check_every_tensor_used(ignored, "family " + description_.family);
  return finish();
}

ModelWeights WeightLoader::load_mtp_file() {
  weights_.mtp = mtp(*description_.mtp);
  tensors_.check_every_tensor_used({}, "the MTP head");
  return finish();
}

// A head in a file of its own joins the model's weights.
void add_mtp_file(const ModelDescription& description, ops::Backend& backend, ModelWeights& weights) {
  const auto file = Checkpoint::open_side_file(description.mtp->side_file);
  auto part = WeightLoader(*file, TensorNames::of_mtp_file(*file), description, backend, {}).load_mtp_file();
  weights.mtp = std::move(part.mtp);
  weights.packed_bytes += part.packed_bytes;
  for (auto& vector : part.vectors) weights.vectors.push_back(std::move(vector));
}

}  // namespace

ModelWeights load_weights(const Checkpoint& checkpoint, const ModelDescription& description, ops::Backend& backend,
                          bool for_drafters, const std::function<void(double, const std::string&)>& progress) {
  auto weights = WeightLoader(checkpoint, TensorNames(checkpoint), description, backend, progress).load(for_drafters);
  if (description.mtp && !description.mtp->side_file.empty()) add_mtp_file(description, backend, weights);
  return weights;
}

}  // namespace tensorfold
