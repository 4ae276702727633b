// See plan.h. Families differ from each other, for a converter, only in what mlx-lm's own converters do to names and
// norms (families-a.md 1.2): a short list of facts below, not code a family.
#include "convert/plan.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"
#include "base/limits.h"
#include "checkpoint/json_file.h"
#include "checkpoint/tensor_table.h"
#include "convert/gguf_plan.h"
#include "model/families/family.h"

namespace tensorfold {
namespace {

constexpr AffineSetting kRouterSetting{8, 64};  // mlx-lm's: a wrong expert costs more than the bytes

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](std::string_view ending) { return name.ends_with(ending); });
}

bool is_skipped(std::string_view name, bool tied) {
  for (const char* part : {"visual.", "vision_tower.", "multi_modal_projector.", "rotary_emb.inv_freq"}) {
    if (name.find(part) != name.npos) return true;
  }
  return tied && ends_with_any(name, {"lm_head.weight"});
}

bool is_router(std::string_view path) {
  return ends_with_any(path, {"mlp.gate", "mlp.shared_expert_gate"});
}

struct Conventions {
  bool drafter = false;
  bool qwen3_5 = false;  // names under language_model., norms with their 1 folded in, convolutions turned
  bool tied = false;
};

// The stored name without the body's prefix, whatever wrapper the checkpoint was saved from.
std::string canonical_name(std::string_view name) {
  for (const std::string_view prefix :
       {"model.language_model.", "language_model.model.", "language_model.", "model."}) {
    if (name.starts_with(prefix)) return std::string(name.substr(prefix.size()));
  }
  return std::string(name);
}

std::string output_name(const Conventions& conventions, std::string_view stored) {
  if (!conventions.qwen3_5) return std::string(stored);
  const std::string canonical = canonical_name(stored);
  const bool outside_body = canonical.starts_with("lm_head") || canonical.starts_with("mtp.");
  return (outside_body ? "language_model." : "language_model.model.") + canonical;
}

bool is_zero_centred_norm(std::string_view name) {
  if (name.ends_with("linear_attn.norm.weight")) return false;
  return ends_with_any(name, {"norm.weight"}) ||
         ends_with_any(name, {"pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight"});
}

// "….mlp.experts.7.gate_proj" -> "….mlp.switch_mlp.gate_proj" and 7.
struct ExpertName {
  std::string stack;
  std::int64_t expert = 0;
};
std::optional<ExpertName> expert_name(const std::string& path) {
  constexpr std::string_view kMarker = ".mlp.experts.";
  const auto at = path.find(kMarker);
  if (at == path.npos) return std::nullopt;
  const std::string rest = path.substr(at + kMarker.size());
  const auto dot = rest.find('.');
  if (dot == rest.npos || dot == 0 || dot > 9 || rest.find_first_not_of("0123456789") != dot) return std::nullopt;
  return ExpertName{path.substr(0, at) + ".mlp.switch_mlp." + rest.substr(dot + 1), std::stoll(rest.substr(0, dot))};
}

class Planner {
 public:
  Planner(ConversionPlan& plan, QuantisationRules& rules, const Conventions& conventions)
      : plan_(plan), rules_(rules), conventions_(conventions) {}

  void run() {
    for (const TensorInfo& tensor : plan_.checkpoint->tensors()) {
      if (is_skipped(tensor.name, conventions_.tied)) {
        plan_.skipped.push_back(tensor.name);
        continue;
      }
      if (tensor.name.find(".mlp.experts.") != std::string::npos) {
        take_expert(tensor);
      } else if (tensor.shape.size() == 2 && tensor.name.ends_with(".weight")) {
        take_matrix(tensor);
      } else {
        take_vector(tensor);
      }
    }
    finish_experts();
  }

 private:
  WeightView view_of(const TensorInfo& tensor, std::int64_t experts, std::int64_t rows, std::int64_t columns) const {
    const auto format = matrix_format(tensor.dtype);
    if (!format || weight_format_block(*format).elements != 1) {
      fail(ErrorCode::kUnsupported, "the tensor {} has dtype {}; only BF16, F16 and F32 checkpoints can be converted",
           in_quotes(tensor.name), tensor.dtype);
    }
    if (experts <= 0 || rows <= 0 || columns <= 0) {
      fail(ErrorCode::kInvalidCheckpoint, "the tensor {} is empty: shape {}", in_quotes(tensor.name),
           shape_text(tensor.shape));
    }
    WeightView view;
    view.name = tensor.name;
    view.format = *format;
    view.experts = experts;
    view.rows = rows;
    view.columns = columns;
    view.data = tensor.data;
    view.data_bytes = tensor.bytes;
    return view;
  }

  void add_matrix(const std::string& stored_path, std::vector<std::int64_t> leading, std::vector<RowSource> sources) {
    PlannedMatrix matrix;
    matrix.path = output_name(conventions_, stored_path);
    matrix.leading = std::move(leading);
    matrix.columns = sources.front().view.columns;
    matrix.dense = sources.front().view.format;
    matrix.sources = std::move(sources);
    const std::string canonical = canonical_name(stored_path);
    const auto decision = rules_.decide(canonical);
    matrix.setting = decision.setting;
    if (!decision.by_rule && is_router(canonical)) matrix.setting = kRouterSetting;
    if (matrix.setting && matrix.columns % matrix.setting->group_size != 0) {
      if (decision.by_rule) {
        fail(ErrorCode::kInvalidArgument, "--mixed: {} has {} columns, no multiple of the group {}",
             in_quotes(canonical), matrix.columns, matrix.setting->group_size);
      }
      matrix.setting.reset();  // as mlx-lm leaves it
    }
    plan_.matrices.push_back(std::move(matrix));
  }

  void take_matrix(const TensorInfo& tensor) {
    const std::string path = tensor.name.substr(0, tensor.name.size() - std::string_view(".weight").size());
    const std::int64_t rows = tensor.shape[0];
    add_matrix(path, {rows}, {{view_of(tensor, 1, rows, tensor.shape[1]), 0, 0, rows, 0}});
  }

  void take_vector(const TensorInfo& tensor) {
    PlannedVector vector;
    vector.name = output_name(conventions_, tensor.name);
    vector.source = &tensor;
    vector.shape = tensor.shape;
    vector.verbatim = true;
    if (conventions_.qwen3_5 && tensor.name.ends_with("conv1d.weight")) {
      if (vector.shape.size() != 3 || vector.shape[1] != 1) {
        fail(ErrorCode::kInvalidCheckpoint, "the convolution {} has shape {}, not [channels, 1, taps]",
             in_quotes(tensor.name), shape_text(tensor.shape));
      }
      std::swap(vector.shape[1], vector.shape[2]);  // one channel a group: the bytes stay where they are
    } else if (conventions_.qwen3_5 && is_zero_centred_norm(tensor.name)) {
      vector.format = view_of(tensor, 1, 1, static_cast<std::int64_t>(*element_count(tensor.shape))).format;
      vector.added = 1.0f;
      vector.verbatim = false;
    }
    plan_.vectors.push_back(std::move(vector));
  }

  // Experts come stacked (gate over up in one tensor) or one tensor an expert and projection; MLX has a stack each.
  void take_expert(const TensorInfo& tensor) {
    std::string path = tensor.name;
    if (path.ends_with(".weight")) path.resize(path.size() - std::string_view(".weight").size());
    if (const auto name = expert_name(path)) {
      if (tensor.shape.size() != 2 || name->expert >= limits::kExpertCountMax) {
        fail(ErrorCode::kInvalidCheckpoint, "the expert {} has shape {}", in_quotes(tensor.name),
             shape_text(tensor.shape));
      }
      stacks_[name->stack][name->expert] = &tensor;
      return;
    }
    const std::string base = path.substr(0, path.rfind('.')), part = path.substr(path.rfind('.') + 1);
    if (tensor.shape.size() != 3 || (part != "gate_up_proj" && part != "down_proj") ||
        (part == "gate_up_proj" && tensor.shape[1] % 2 != 0)) {
      fail(ErrorCode::kUnsupported, "the expert tensor {} of shape {} is of no known layout", in_quotes(tensor.name),
           shape_text(tensor.shape));
    }
    const std::string stack = base.substr(0, base.size() - std::string_view("experts").size()) + "switch_mlp.";
    const std::int64_t experts = tensor.shape[0], rows = tensor.shape[1];
    const WeightView view = view_of(tensor, experts, rows, tensor.shape[2]);
    const auto add = [&](const char* name, std::int64_t first, std::int64_t count) {
      std::vector<RowSource> sources;
      for (std::int64_t expert = 0; expert < experts; ++expert) sources.push_back({view, expert, first, count, 0});
      add_matrix(stack + name, {experts, count}, std::move(sources));
    };
    if (part == "down_proj") return add("down_proj", 0, rows);
    add("gate_proj", 0, rows / 2);
    add("up_proj", rows / 2, rows / 2);
  }

  void finish_experts() {
    for (const auto& [path, experts] : stacks_) {
      const TensorInfo& first = *experts.begin()->second;
      std::vector<RowSource> sources;
      for (const auto& [expert, tensor] : experts) {
        if (expert != static_cast<std::int64_t>(sources.size()) || tensor->shape != first.shape ||
            tensor->dtype != first.dtype) {
          fail(ErrorCode::kInvalidCheckpoint, "{}: expert {} is missing or unlike the others", in_quotes(path),
               sources.size());
        }
        sources.push_back({view_of(*tensor, 1, first.shape[0], first.shape[1]), 0, 0, first.shape[0], 0});
      }
      const auto count = static_cast<std::int64_t>(sources.size());
      add_matrix(path, {count, first.shape[0]}, std::move(sources));
    }
  }

  ConversionPlan& plan_;
  QuantisationRules& rules_;
  Conventions conventions_;
  std::map<std::string, std::map<std::int64_t, const TensorInfo*>> stacks_;
};

const nlohmann::json& text_config(const nlohmann::json& config) {
  const auto found = config.find("text_config");
  return found != config.end() && found->is_object() ? *found : config;
}

bool flag(const nlohmann::json& config, const char* key) {
  for (const nlohmann::json* each : {&text_config(config), &config}) {
    const auto found = each->find(key);
    if (found != each->end() && found->is_boolean()) return found->get<bool>();
  }
  return false;
}

std::string text(const nlohmann::json& config, const char* key) {
  const auto found = config.find(key);
  return found != config.end() && found->is_string() ? found->get<std::string>() : std::string();
}

Conventions conventions_of(const Checkpoint& checkpoint) {
  const auto& config = checkpoint.config();
  Conventions result;
  result.drafter =
      config.contains("dflash_config") ||
      (config.contains("architectures") && config["architectures"].is_array() && !config["architectures"].empty() &&
       config["architectures"][0].is_string() && config["architectures"][0].get<std::string>().starts_with("DFlash"));
  if (result.drafter) return result;
  std::string kind = text(text_config(config), "model_type");
  if (kind.empty()) kind = text(config, "model_type");
  if (find_family(kind) == nullptr) {
    fail(ErrorCode::kUnsupported, "{}: model_type {} can't be converted by this build", checkpoint.path().string(),
         in_quotes(kind));
  }
  result.qwen3_5 = kind.starts_with("qwen3_5");
  result.tied = flag(config, "tie_word_embeddings");
  return result;
}

// MLX conversions of this family have the multimodal wrapper's config, also when the source was a text model alone.
nlohmann::json wrapped(const nlohmann::json& config) {
  if (config.contains("text_config")) return config;
  const bool mixture = text(config, "model_type").find("moe") != std::string::npos;
  nlohmann::json result{
      {"architectures", {mixture ? "Qwen3_5MoeForConditionalGeneration" : "Qwen3_5ForConditionalGeneration"}},
      {"model_type", mixture ? "qwen3_5_moe" : "qwen3_5"},
      {"text_config", config}};
  for (const char* key : {"tie_word_embeddings", "eos_token_id", "pad_token_id"}) {
    if (config.contains(key)) result[key] = config[key];
  }
  return result;
}

nlohmann::json setting_json(const AffineSetting& setting) {
  return {{"bits", setting.bits}, {"group_size", setting.group_size}};
}

void state_quantisation(ConversionPlan& plan, const AffineSetting& global) {
  nlohmann::json quantisation = setting_json(global);
  quantisation["mode"] = "affine";
  for (const PlannedMatrix& matrix : plan.matrices) {
    if (!matrix.setting) {
      quantisation[matrix.path] = false;
    } else if (matrix.setting->bits != global.bits || matrix.setting->group_size != global.group_size) {
      quantisation[matrix.path] = setting_json(*matrix.setting);
    }
  }
  plan.config["quantization"] = quantisation;
  plan.config["quantization_config"] = quantisation;
}

}  // namespace

ConversionPlan plan_conversion(std::shared_ptr<const Checkpoint> checkpoint, QuantisationRules& rules) {
  ConversionPlan plan;
  plan.checkpoint = std::move(checkpoint);
  const Checkpoint& source = *plan.checkpoint;
  if (source.container() == Container::kMlx || source.config().contains("quantization_config")) {
    fail(ErrorCode::kUnsupported, "{}: quantised already; convert from the full-precision checkpoint",
         source.path().string());
  }
  if (source.container() == Container::kGguf) {
    plan_gguf(plan, rules);
  } else {
    const Conventions conventions = conventions_of(source);
    plan.config = conventions.qwen3_5 ? wrapped(source.config()) : source.config();
    Planner(plan, rules, conventions).run();
  }
  const auto unused = rules.unused();
  if (!unused.empty()) {
    fail(ErrorCode::kInvalidArgument,
         "--mixed: no matrix meets the rule {}; paths look like \"layers.0.mlp.down_proj\"", in_quotes(unused.front()));
  }
  state_quantisation(plan, rules.global());
  return plan;
}

}  // namespace tensorfold
