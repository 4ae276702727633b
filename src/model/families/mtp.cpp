// Descriptions of MTP heads: where a checkpoint keeps one, which convention its norms follow, and its parts. Apart from
// blocks.cpp because a head may lie in a file of its own that other tools made, with rules of its own.
#include "base/error.h"
#include "model/families/blocks.h"

namespace tensorfold::blocks {
namespace {

constexpr const char* kSideFiles[] = {"mtp-4bit.safetensors", "mtp.safetensors"};  // best first
constexpr double kFoldedMeanMin = 0.5;

void prefix_linear(LinearDescription& linear, const std::string& prefix) {
  linear.name = prefix + linear.name;
  for (auto& part : linear.parts) part.name = prefix + part.name;
}

void prefix_norm(std::optional<NormDescription>& norm, const std::string& prefix) {
  if (norm) norm->weight = prefix + norm->weight;
}

void prefix_feed_forward(LayerDescription& layer, const std::string& prefix) {
  if (auto* dense = std::get_if<DenseFeedForward>(&layer.feed_forward)) {
    prefix_linear(dense->gate_up, prefix);
    prefix_linear(dense->down, prefix);
    return;
  }
  auto& moe = std::get<MoeFeedForward>(layer.feed_forward);
  for (auto* linear : {&moe.router, &moe.gate_up, &moe.down}) prefix_linear(*linear, prefix);
  if (!moe.shared) return;
  for (auto* linear : {&moe.shared->gate_up, &moe.shared->down, &moe.shared->gate}) prefix_linear(*linear, prefix);
}

// A zero-centred norm hovers around 0, a folded one around 1.
bool norms_are_folded(const Checkpoint& checkpoint, const TensorNames& names, std::int64_t width) {
  double sum = 0.0;
  for (const char* name : {"mtp.layers.0.input_layernorm.weight", "mtp.layers.0.post_attention_layernorm.weight"}) {
    for (const float value : checkpoint.values(names.file_name(name), width)) sum += static_cast<double>(value);
  }
  return sum / (2.0 * static_cast<double>(width)) > kFoldedMeanMin;
}

bool norms_need_one(const FamilyInput& input, const std::string& side_file, bool body_adds_one, std::int64_t width) {
  if (side_file.empty()) {
    if (input.checkpoint.container() == Container::kHuggingFace) return body_adds_one;  // one writer, one convention
    return !norms_are_folded(input.checkpoint, input.names, width);
  }
  const auto file = Checkpoint::open_side_file(side_file);
  return !norms_are_folded(*file, TensorNames::of_mtp_file(*file), width);
}

}  // namespace

void prefix_names(LayerDescription& layer, const std::string& prefix) {
  layer.input_norm.weight = prefix + layer.input_norm.weight;
  layer.feed_forward_norm.weight = prefix + layer.feed_forward_norm.weight;
  prefix_norm(layer.post_mixer_norm, prefix);
  prefix_norm(layer.post_feed_forward_norm, prefix);
  auto& mixer = std::get<AttentionMixer>(layer.mixer);
  prefix_norm(mixer.q_norm, prefix);
  prefix_norm(mixer.k_norm, prefix);
  prefix_linear(mixer.qkv, prefix);
  prefix_linear(mixer.output, prefix);
  prefix_feed_forward(layer, prefix);
}

std::optional<std::string> find_mtp(const FamilyInput& input, bool in_checkpoint) {
  if (input.checkpoint.container() == Container::kGguf) return std::nullopt;
  if (in_checkpoint && input.names.has_mtp()) return "";
  for (const char* name : kSideFiles) {
    const auto path = input.checkpoint.path() / name;
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored)) return path.string();
  }
  return std::nullopt;
}

MtpDescription mtp(const FamilyInput& input, const Sizes& sizes, const std::string& side_file, bool body_adds_one,
                   const std::function<LayerDescription(bool add_one)>& layer) {
  const bool add_one = norms_need_one(input, side_file, body_adds_one, sizes.hidden);
  MtpDescription head;
  head.side_file = side_file;
  head.embedding_norm = norm("mtp.pre_fc_norm_embedding", sizes.hidden, sizes.epsilon, add_one);
  head.hidden_norm = norm("mtp.pre_fc_norm_hidden", sizes.hidden, sizes.epsilon, add_one);
  head.final_norm = norm("mtp.norm", sizes.hidden, sizes.epsilon, add_one);
  head.join = linear("mtp.fc", sizes.hidden, 2 * sizes.hidden);
  head.layer = layer(add_one);
  TF_ASSERT(std::holds_alternative<AttentionMixer>(head.layer.mixer));
  prefix_names(head.layer, "mtp.");
  return head;
}

}  // namespace tensorfold::blocks
