// See gguf_plan.h.
#include "convert/gguf_plan.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "base/limits.h"
#include "checkpoint/json_file.h"
#include "checkpoint/tensor_table.h"
#include "model/gguf_config.h"
#include "model/tensor_names.h"

namespace tensorfold {
namespace {

constexpr std::array kLayerMatrices{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                                    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj",    "mlp.gate"};
constexpr std::array kLayerStacks{"mlp.experts.gate_proj", "mlp.experts.up_proj", "mlp.experts.down_proj"};
constexpr std::array kLayerVectors{"input_layernorm.weight",
                                   "post_attention_layernorm.weight",
                                   "pre_feedforward_layernorm.weight",
                                   "post_feedforward_layernorm.weight",
                                   "self_attn.q_norm.weight",
                                   "self_attn.k_norm.weight",
                                   "self_attn.q_proj.bias",
                                   "self_attn.k_proj.bias",
                                   "self_attn.v_proj.bias"};

class GgufPlanner {
 public:
  GgufPlanner(ConversionPlan& plan, QuantisationRules& rules)
      : plan_(plan), rules_(rules), checkpoint_(*plan.checkpoint), names_(checkpoint_) {}

  void run() {
    plan_.config = gguf_to_config(checkpoint_);
    const std::string kind = plan_.config["model_type"].get<std::string>();
    gemma_ = kind.starts_with("gemma");
    if (kind == "llama") interleaved_dim_ = head_dim();
    if (checkpoint_.find("rope_freqs.weight") != nullptr) {
      fail(ErrorCode::kUnsupported,
           "{}: its rope factors are stored as a tensor, which no config.json expresses; convert from the "
           "original checkpoint",
           checkpoint_.path().string());
    }
    plan_.config["tie_word_embeddings"] = checkpoint_.find("output.weight") == nullptr;
    copy_ids();
    matrix("embed_tokens", "token_embd");
    if (checkpoint_.find("output.weight") != nullptr) matrix("lm_head", "output");
    vector("norm.weight");
    for (std::int64_t layer = 0, count = layer_count(); layer < count; ++layer)
      add_layer("layers." + std::to_string(layer) + ".");
    for (const TensorInfo& tensor : checkpoint_.tensors()) {
      if (seen_.count(tensor.name) > 0) continue;
      fail(ErrorCode::kUnsupported, "{}: no place for the tensor {} in a converted checkpoint",
           checkpoint_.path().string(), in_quotes(tensor.name));
    }
  }

 private:
  std::int64_t config_integer(const char* key, std::int64_t otherwise, std::int64_t high) const {
    const auto found = plan_.config.find(key);
    if (found == plan_.config.end()) return otherwise;
    const bool fits =
        found->is_number_integer() && found->get<std::int64_t>() >= 1 && found->get<std::int64_t>() <= high;
    if (!fits)
      fail(ErrorCode::kInvalidCheckpoint, "{}: {} is {}, not 1 to {}", checkpoint_.path().string(), key, found->dump(),
           high);
    return found->get<std::int64_t>();
  }
  std::int64_t layer_count() const { return config_integer("num_hidden_layers", 1, limits::kLayerCountMax); }
  std::int64_t head_dim() const {
    const std::int64_t heads = config_integer("num_attention_heads", 1, limits::kHeadCountMax);
    const std::int64_t dim = config_integer(
        "head_dim", config_integer("hidden_size", 1, limits::kHiddenSizeMax) / heads, limits::kHeadDimensionMax);
    if (dim < 2 || dim % 2 != 0)
      fail(ErrorCode::kInvalidCheckpoint, "{}: a head of {} values", checkpoint_.path().string(), dim);
    return dim;
  }

  void copy_ids() {
    const auto& metadata = checkpoint_.config();
    for (const auto& [to, from] : {std::pair{"bos_token_id", "tokenizer.ggml.bos_token_id"},
                                   std::pair{"eos_token_id", "tokenizer.ggml.eos_token_id"},
                                   std::pair{"pad_token_id", "tokenizer.ggml.padding_token_id"}}) {
      const auto found = metadata.find(from);
      if (found != metadata.end() && found->is_number_integer()) plan_.config[to] = *found;
    }
  }

  void add_layer(const std::string& base) {
    for (const char* name : kLayerMatrices) {
      const std::string stored = names_.file_name(base + name);
      if (checkpoint_.find(stored + ".weight") != nullptr) matrix(base + name, stored);
    }
    for (const char* name : kLayerStacks) {
      const std::string stored = names_.file_name(base + name);
      if (checkpoint_.find(stored + ".weight") != nullptr) matrix(base + name, stored);
    }
    for (const char* name : kLayerVectors) {
      if (checkpoint_.find(names_.file_name(base + name)) != nullptr) vector(base + name);
    }
  }

  void matrix(std::string path, const std::string& stored) {
    const TensorInfo* tensor = checkpoint_.find(stored + ".weight");
    if (tensor == nullptr || tensor->shape.size() < 2 || tensor->shape.size() > 3) {
      fail(ErrorCode::kInvalidCheckpoint, "{}: the matrix {} is missing or not one", checkpoint_.path().string(),
           in_quotes(stored));
    }
    seen_.insert(tensor->name);
    const bool stack = tensor->shape.size() == 3;
    const std::int64_t experts = stack ? tensor->shape[0] : 0, rows = tensor->shape[stack ? 1 : 0],
                       columns = tensor->shape.back();
    if (rows <= 0 || columns <= 0 || (stack && (experts <= 0 || experts > limits::kExpertCountMax))) {
      fail(ErrorCode::kInvalidCheckpoint, "{}: the tensor {} has shape {}", checkpoint_.path().string(),
           in_quotes(tensor->name), shape_text(tensor->shape));
    }
    if (stack) path.replace(path.find(".experts."), 9, ".switch_mlp.");
    PlannedMatrix result;
    result.path = (path == "lm_head" ? "" : "model.") + path;
    const WeightView view = checkpoint_.weight(stored, rows, columns, experts);
    const bool turned = path.ends_with("q_proj") || path.ends_with("k_proj");
    const std::int64_t interleaved = turned ? interleaved_dim_ : 0;
    if (interleaved > 0 && rows % interleaved != 0) {
      fail(ErrorCode::kInvalidCheckpoint, "{}: {} rows of {} are no whole heads", checkpoint_.path().string(), rows,
           in_quotes(stored));
    }
    for (std::int64_t expert = 0; expert < view.experts; ++expert)
      result.sources.push_back({view, expert, 0, rows, interleaved});
    result.leading = stack ? std::vector<std::int64_t>{experts, rows} : std::vector<std::int64_t>{rows};
    result.columns = columns;
    const bool scalar = weight_format_block(view.format).elements == 1;
    result.dense = scalar && view.format != WeightFormat::kF32 ? view.format : WeightFormat::kBF16;
    const auto decision = rules_.decide(path);
    result.setting = decision.setting;
    if (!decision.by_rule && path.ends_with("mlp.gate")) result.setting = AffineSetting{8, 64};
    if (result.setting && columns % result.setting->group_size != 0) {
      if (decision.by_rule) {
        fail(ErrorCode::kInvalidArgument, "--mixed: {} has {} columns, no multiple of the group {}", in_quotes(path),
             columns, result.setting->group_size);
      }
      result.setting.reset();
    }
    plan_.matrices.push_back(std::move(result));
  }

  // llama.cpp folds gemma's 1 into its norms; Hugging Face and MLX files of that family don't.
  void vector(const std::string& name) {
    PlannedVector result;
    result.source = checkpoint_.find(names_.file_name(name));
    if (result.source == nullptr) {
      fail(ErrorCode::kInvalidCheckpoint, "{}: the tensor {} is missing", checkpoint_.path().string(),
           in_quotes(names_.file_name(name)));
    }
    if (interleaved_dim_ > 0 && (name.ends_with("q_proj.bias") || name.ends_with("k_proj.bias"))) {
      fail(ErrorCode::kUnsupported, "{}: biases of llama's queries and keys", checkpoint_.path().string());
    }
    seen_.insert(result.source->name);
    result.name = "model." + name;
    result.shape = result.source->shape;
    result.format = WeightFormat::kBF16;
    result.added = gemma_ && name.ends_with("norm.weight") ? -1.0f : 0.0f;
    plan_.vectors.push_back(std::move(result));
  }

  ConversionPlan& plan_;
  QuantisationRules& rules_;
  const Checkpoint& checkpoint_;
  TensorNames names_;
  std::set<std::string> seen_;
  bool gemma_ = false;
  std::int64_t interleaved_dim_ = 0;
};

}  // namespace

void plan_gguf(ConversionPlan& plan, QuantisationRules& rules) {
  GgufPlanner(plan, rules).run();
}

}  // namespace tensorfold
