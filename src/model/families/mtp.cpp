// Descriptions of MTP heads: where a checkpoint keeps one, which convention its norms follow, and its parts. Apart from
// blocks.cpp because a head may lie in a file of its own that other tools made, with rules of its own.
#include <initializer_list>

#include "base/error.h"
#include "model/families/blocks.h"

namespace tensorfold::blocks {
namespace {

constexpr const char* kSideFiles[] = {"mtp-4bit.safetensors", "mtp.safetensors"};  // best first

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

// Which norms are stored zero-centred, so that 1 is added at load.
struct NormConventions {
  bool joined = false;  // the two before the joining layer
  bool layer = false;
  bool last = false;
};

double mean_of(const Checkpoint& checkpoint, const TensorNames& names, std::initializer_list<const char*> norms,
               std::int64_t width) {
  double sum = 0.0;
  for (const char* norm : norms) {
    for (const float value : checkpoint.values(names.file_name(norm), width)) sum += static_cast<double>(value);
  }
  return sum / static_cast<double>(width * static_cast<std::int64_t>(norms.size()));
}

// A norm multiplies by about 1, but for a last one, which grows as the model's own does: it is folded when its values
// are nearer to that than they would be with 1 added. Converters fold by the ends of names, so the parts may differ.
NormConventions conventions_of(const FamilyInput& input, const Checkpoint& file, const TensorNames& names,
                               bool body_adds_one, std::int64_t width) {
  const double body = mean_of(input.checkpoint, input.names, {"norm.weight"}, width) + (body_adds_one ? 1.0 : 0.0);
  const auto is_raw = [&](std::initializer_list<const char*> norms, double expected) {
    return mean_of(file, names, norms, width) < expected - 0.5;
  };
  return {
      is_raw({"mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"}, 1.0),
      is_raw({"mtp.layers.0.input_layernorm.weight", "mtp.layers.0.post_attention_layernorm.weight"}, 1.0),
      is_raw({"mtp.norm.weight"}, body),
  };
}

NormConventions find_conventions(const FamilyInput& input, const std::string& side_file, bool body_adds_one,
                                 std::int64_t width) {
  if (!side_file.empty()) {
    const auto file = Checkpoint::open_side_file(side_file);
    return conventions_of(input, *file, TensorNames::of_mtp_file(*file), body_adds_one, width);
  }
  // The vendor's own file has one convention; a conversion may have dealt with the head in its own way.
  if (input.checkpoint.container() == Container::kHuggingFace) return {body_adds_one, body_adds_one, body_adds_one};
  return conventions_of(input, input.checkpoint, input.names, body_adds_one, width);
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
  const NormConventions raw = find_conventions(input, side_file, body_adds_one, sizes.hidden);
  MtpDescription head;
  head.side_file = side_file;
  head.embedding_norm = norm("mtp.pre_fc_norm_embedding", sizes.hidden, sizes.epsilon, raw.joined);
  head.hidden_norm = norm("mtp.pre_fc_norm_hidden", sizes.hidden, sizes.epsilon, raw.joined);
  head.final_norm = norm("mtp.norm", sizes.hidden, sizes.epsilon, raw.last);
  head.join = linear("mtp.fc", sizes.hidden, 2 * sizes.hidden);
  head.layer = layer(raw.layer);
  TF_ASSERT(std::holds_alternative<AttentionMixer>(head.layer.mixer));
  prefix_names(head.layer, "mtp.");
  return head;
}

}  // namespace tensorfold::blocks
