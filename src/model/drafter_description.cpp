// From a drafter's config.json to its description; see drafter_description.h.
#include "model/drafter_description.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/limits.h"
#include "model/config_reader.h"
#include "model/families/blocks.h"
#include "model/rope.h"

namespace tensorfold {
namespace {

constexpr const char* kFolderName = "dflash2";
constexpr std::int64_t kCandidatesDefault = 16;

void refuse_unequal(const ConfigReader& config, const char* key, std::int64_t own, std::int64_t target) {
  if (own == target) return;
  fail(ErrorCode::kInvalidCheckpoint,
       "{}: \"{}\" is {}, but the model it would draft for has {}; this drafter is for another model", config.where(),
       key, own, target);
}

// The drafter's own keys stand in "dflash_config" or, in older files, beside the others.
class DrafterConfig {
 public:
  DrafterConfig(const nlohmann::json& json, const std::string& where)
      : top_(json, where), own_(top_.object("dflash_config").value_or(top_)) {}
  const ConfigReader& top() const { return top_; }
  const ConfigReader& of(const char* key) const { return own_.has(key) ? own_ : top_; }

 private:
  ConfigReader top_, own_;
};

std::vector<std::int32_t> taps(const DrafterConfig& config, const ModelDescription& target) {
  const auto& reader = config.of("target_layer_ids");
  const auto layers = static_cast<std::int64_t>(target.layers.size());
  std::vector<std::int32_t> result;
  for (const std::int64_t id : reader.integers("target_layer_ids")) {
    const bool again = std::find(result.begin(), result.end(), id) != result.end();
    if (id < 0 || id >= layers || again) {
      fail(ErrorCode::kInvalidCheckpoint, "{}: target_layer_ids names layer {}{}; the model has layers 0 to {}",
           reader.where(), id, again ? " twice" : "", layers - 1);
    }
    result.push_back(static_cast<std::int32_t>(id));
  }
  if (result.empty() || result.size() > static_cast<std::size_t>(limits::kDrafterTapsMax)) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: target_layer_ids has {} layers; 1 to {} are served", reader.where(),
         result.size(), limits::kDrafterTapsMax);
  }
  return result;
}

// "is_causal" speaks for every layer; without it sliding layers are causal inside a block and full ones are not.
void read_masks(const ConfigReader& config, DrafterDescription& drafter) {
  const auto full =
      blocks::full_attention_layers(config, static_cast<std::int64_t>(drafter.layers.size()), "sliding_attention", 1);
  const bool any_sliding = std::find(full.begin(), full.end(), false) != full.end();
  const auto window = any_sliding ? config.integer("sliding_window", 1, limits::kContextTokensMax) : 0;
  for (std::size_t index = 0; index < full.size(); ++index) {
    auto& layer = drafter.layers[index];
    layer.window = full[index] ? 0 : static_cast<std::int32_t>(window);
    layer.causal = config.boolean_or("is_causal", !full[index]);
  }
  if (any_sliding && window < drafter.block_rows) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: sliding_window {} is smaller than a block of {} rows", config.where(),
         window, drafter.block_rows);
  }
}

BlockConvolution convolution(const DrafterDescription& drafter, const std::string& name) {
  BlockConvolution result;
  result.base_kernel = name + ".base_kernel";
  result.projection = blocks::linear(name + ".kernel_projection", 4 * (drafter.hidden_size / drafter.convolution_group),
                                     drafter.hidden_size);
  return result;
}

DrafterLayer layer(const DrafterDescription& drafter, std::int64_t index, float epsilon) {
  const auto name = [&](const char* rest) { return blocks::layer_name(index, rest); };
  const std::int64_t hidden = drafter.hidden_size;
  const std::int64_t q_rows = static_cast<std::int64_t>(drafter.heads) * drafter.head_dim;
  const std::int64_t kv_rows = static_cast<std::int64_t>(drafter.kv_heads) * drafter.head_dim;
  DrafterLayer result;
  result.input_norm = blocks::norm(name("input_layernorm"), hidden, epsilon);
  result.feed_forward_norm = blocks::norm(name("post_attention_layernorm"), hidden, epsilon);
  result.q_norm = blocks::norm(name("self_attn.q_norm"), drafter.head_dim, epsilon);
  result.k_norm = blocks::norm(name("self_attn.k_norm"), drafter.head_dim, epsilon);
  result.query = blocks::linear(name("self_attn.q_proj"), q_rows, hidden);
  result.key_value.name = name("self_attn.{k,v}_proj");
  result.key_value.columns = hidden;
  result.key_value.parts = {{name("self_attn.k_proj"), kv_rows, false, 0},
                            {name("self_attn.v_proj"), kv_rows, false, 0}};
  result.attention_output = blocks::linear(name("self_attn.o_proj"), hidden, q_rows);
  result.gate_up = blocks::gate_up(index, "mlp.", drafter.width, hidden, false);
  result.down = blocks::linear(name("mlp.down_proj"), hidden, drafter.width);
  if (drafter.convolution_group > 0) {
    result.attention_convolution = convolution(drafter, name("attention_conv"));
    result.feed_forward_convolution = convolution(drafter, name("mlp_conv"));
  }
  return result;
}

void read_convolution(const DrafterConfig& config, DrafterDescription& drafter) {
  const auto& reader = config.of("conv_group_size");
  if (!reader.has("conv_group_size")) return;
  drafter.convolution_group = reader.integer("conv_group_size", 1, drafter.hidden_size);
  if (drafter.hidden_size % drafter.convolution_group != 0) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: conv_group_size {} doesn't divide hidden_size {}", reader.where(),
         drafter.convolution_group, drafter.hidden_size);
  }
  const auto taps = config.of("conv_kernel_size").integer_or("conv_kernel_size", 2, 1, 64);
  if (taps != 2) {
    fail(ErrorCode::kUnsupported, "{}: conv_kernel_size {} is not served (2 is)", reader.where(), taps);
  }
}

void read_selector(const DrafterConfig& config, const ModelDescription& target, DrafterDescription& drafter) {
  const std::int64_t most = std::min<std::int64_t>(limits::kDraftCandidatesMax, target.vocabulary_size);
  const std::int64_t otherwise = std::min(kCandidatesDefault, most);
  drafter.candidates =
      static_cast<std::int32_t>(config.of("selector_top_k").integer_or("selector_top_k", otherwise, 1, most));
  const auto& reader = config.of("selector_rank");
  if (!reader.has("selector_rank")) return;
  CandidateSelector selector;
  selector.rank = reader.integer("selector_rank", 1, limits::kHiddenSizeMax);
  selector.predecessors = "candidate_selector.predecessor_codebook";
  selector.successors = "candidate_selector.successor_codebook";
  selector.hidden_projection =
      blocks::linear("candidate_selector.hidden_projection", selector.rank, drafter.hidden_size);
  drafter.selector = std::move(selector);
}

bool is_drafter(const ConfigReader& config) {
  if (config.has("dflash_config")) return true;
  const auto names = config.texts("architectures");
  return !names.empty() && (names[0] == "DFlashDraftModel" || names[0] == "DFlash2DraftModel");
}

}  // namespace

DrafterDescription describe_drafter(const Checkpoint& checkpoint, const ModelDescription& target) {
  const std::string where = checkpoint.path().filename().string() + "/config.json";
  const DrafterConfig config(checkpoint.config(), where);
  const ConfigReader& top = config.top();
  if (checkpoint.container() == Container::kGguf || !is_drafter(top)) {
    fail(ErrorCode::kUnsupported, "{} is no block drafter (a DFlash folder with \"dflash_config\" in its config.json)",
         checkpoint.path().string());
  }
  const auto sizes = blocks::read_sizes(top);
  refuse_unequal(top, "hidden_size", sizes.hidden, target.hidden_size);
  refuse_unequal(top, "vocab_size", sizes.vocabulary, target.vocabulary_size);
  const auto layers = static_cast<std::int64_t>(target.layers.size());
  refuse_unequal(top, "num_target_layers",
                 config.of("num_target_layers").integer_or("num_target_layers", layers, 1, limits::kLayerCountMax),
                 layers);

  DrafterDescription drafter;
  drafter.path = checkpoint.path().string();
  drafter.hidden_size = sizes.hidden;
  drafter.width = top.integer("intermediate_size", 1, limits::kIntermediateSizeMax);
  drafter.activation = blocks::activation_kind(top, "hidden_act", "silu");
  drafter.heads = sizes.heads;
  drafter.kv_heads = sizes.kv_heads;
  drafter.head_dim = sizes.head_dim;
  drafter.rope = blocks::rope(top, sizes.head_dim, sizes.context, 1e7);
  drafter.taps = taps(config, target);
  drafter.context = blocks::linear("fc", sizes.hidden, static_cast<std::int64_t>(drafter.taps.size()) * sizes.hidden);
  drafter.context_norm = blocks::norm("hidden_norm", sizes.hidden, sizes.epsilon);
  drafter.final_norm = blocks::norm("norm", sizes.hidden, sizes.epsilon);
  drafter.block_rows =
      static_cast<std::int32_t>(config.of("block_size").integer("block_size", 2, limits::kDraftBlockRowsMax));
  drafter.mask_token =
      static_cast<std::int32_t>(config.of("mask_token_id").integer("mask_token_id", 0, target.vocabulary_size - 1));
  drafter.embedding_scale =
      static_cast<float>(config.of("input_embedding_scale").number_or("input_embedding_scale", 1.0, 1e-6, 1e6));
  drafter.logit_scale =
      static_cast<float>(config.of("output_multiplier").number_or("output_multiplier", 1.0, 1e-6, 1e6));
  read_convolution(config, drafter);
  read_selector(config, target, drafter);
  drafter.title = drafter.selector || drafter.convolution_group > 0 ? "DFlash2" : "DFlash";
  for (std::int64_t index = 0; index < sizes.layers; ++index) {
    drafter.layers.push_back(layer(drafter, index, sizes.epsilon));
  }
  read_masks(top, drafter);
  return drafter;
}

std::optional<std::filesystem::path> find_drafter_folder(const Checkpoint& checkpoint) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(checkpoint.path(), ignored);
  const auto folder = (is_folder ? checkpoint.path() : checkpoint.path().parent_path()) / kFolderName;
  if (!std::filesystem::is_regular_file(folder / "config.json", ignored)) return std::nullopt;
  return folder;
}

}  // namespace tensorfold
