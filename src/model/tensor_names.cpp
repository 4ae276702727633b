#include "model/tensor_names.h"

#include <array>
#include <optional>
#include <utility>

#include "base/error.h"

namespace tensorfold {
namespace {

constexpr std::array kMtpPrefixes{"mtp.", "language_model.mtp.", "model.mtp.", "model.language_model.mtp."};
constexpr std::array kBodyPrefixes{"model.", "model.language_model.", "language_model.model.", "language_model.", ""};

using NamePair = std::pair<const char*, const char*>;
constexpr std::array kGgufLayerNames{
    NamePair{"self_attn.q_proj", "attn_q"},
    NamePair{"self_attn.k_proj", "attn_k"},
    NamePair{"self_attn.v_proj", "attn_v"},
    NamePair{"self_attn.o_proj", "attn_output"},
    NamePair{"self_attn.q_norm", "attn_q_norm"},
    NamePair{"self_attn.k_norm", "attn_k_norm"},
    NamePair{"input_layernorm", "attn_norm"},
    NamePair{"mlp.gate_proj", "ffn_gate"},
    NamePair{"mlp.up_proj", "ffn_up"},
    NamePair{"mlp.down_proj", "ffn_down"},
    NamePair{"mlp.gate", "ffn_gate_inp"},
    NamePair{"mlp.experts.gate_proj", "ffn_gate_exps"},
    NamePair{"mlp.experts.up_proj", "ffn_up_exps"},
    NamePair{"mlp.experts.down_proj", "ffn_down_exps"},
    NamePair{"pre_feedforward_layernorm", "ffn_norm"},
    NamePair{"post_feedforward_layernorm", "post_ffw_norm"},
};

bool ends_with(const std::string& text, const std::string& suffix) {
  return text.size() >= suffix.size() && text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

// The first of the known prefixes that a tensor has.
std::optional<std::string> mtp_prefix_of(const Checkpoint& checkpoint) {
  for (const char* prefix : kMtpPrefixes) {
    for (const auto& tensor : checkpoint.tensors()) {
      if (tensor.name.starts_with(prefix)) return prefix;
    }
  }
  return std::nullopt;
}

}  // namespace

TensorNames::TensorNames(const Checkpoint& checkpoint) : container_(checkpoint.container()) {
  if (container_ == Container::kGguf) {
    const auto& config = checkpoint.config();
    const auto architecture = config.find("general.architecture");
    gguf_gemma_ = architecture != config.end() && architecture->is_string() &&
                  architecture->get<std::string>().rfind("gemma", 0) == 0;
    return;
  }
  bool found = false;
  for (const char* prefix : kBodyPrefixes) {
    if (!checkpoint.has_weight(std::string(prefix) + "embed_tokens")) continue;
    body_prefix_ = prefix;
    found = true;
    break;
  }
  if (!found) {
    fail(ErrorCode::kInvalidCheckpoint,
         "{}: no embedding table (\"model.embed_tokens.weight\" or a known variant); is this a complete text model?",
         checkpoint.path().string());
  }
  head_name_ = checkpoint.has_weight("language_model.lm_head") ? "language_model.lm_head" : "lm_head";
  if (const auto prefix = mtp_prefix_of(checkpoint)) {
    has_mtp_ = true;
    mtp_prefix_ = *prefix;
  }
}

TensorNames TensorNames::of_mtp_file(const Checkpoint& side_file) {
  TensorNames names;
  names.container_ = side_file.container();
  names.has_mtp_ = true;
  names.mtp_prefix_ = mtp_prefix_of(side_file).value_or("");
  return names;
}

TensorNames TensorNames::of_drafter(const Checkpoint& drafter) {
  TensorNames names;
  names.container_ = drafter.container();
  if (drafter.has_weight("model.fc")) names.body_prefix_ = "model.";
  return names;
}

std::string TensorNames::file_name(const std::string& canonical) const {
  if (container_ == Container::kGguf) return gguf_name(canonical);
  if (canonical == "lm_head") return head_name_;
  if (canonical.starts_with("mtp.")) return mtp_prefix_ + canonical.substr(4);
  return body_prefix_ + canonical;
}

std::string TensorNames::gguf_name(const std::string& canonical) const {
  // The suffix of vectors and biases (".weight", ".bias") passes through unchanged.
  std::string suffix, base = canonical;
  for (const char* ending : {".weight", ".bias"}) {
    if (!ends_with(base, ending)) continue;
    suffix = ending;
    base.resize(base.size() - suffix.size());
  }
  if (base == "embed_tokens") return "token_embd" + suffix;
  if (base == "norm") return "output_norm" + suffix;
  if (base == "lm_head") return "output" + suffix;
  if (base.rfind("layers.", 0) == 0) {
    const auto dot = base.find('.', 7);
    const std::string layer = base.substr(7, dot - 7), rest = base.substr(dot + 1);
    if (rest == "post_attention_layernorm") {
      return "blk." + layer + (gguf_gemma_ ? ".post_attention_norm" : ".ffn_norm") + suffix;
    }
    for (const auto& [name, gguf] : kGgufLayerNames) {
      if (rest == name) return "blk." + layer + "." + gguf + suffix;
    }
  }
  fail(ErrorCode::kUnsupported, "tensor \"{}\" has no GGUF name in this build", canonical);
}

std::vector<std::string> TensorNames::expert_stack_names(const std::string& canonical) const {
  if (container_ == Container::kGguf) return {gguf_name(canonical)};
  std::string mlx = canonical;
  const std::string marker = ".mlp.experts.";
  const auto at = mlx.find(marker);
  TF_ASSERT(at != std::string::npos);
  mlx.replace(at, marker.size(), ".mlp.switch_mlp.");
  return {file_name(mlx), file_name(canonical)};
}

std::string TensorNames::expert_name(const std::string& canonical, std::int64_t expert) const {
  const auto at = canonical.rfind(".experts.");
  TF_ASSERT(at != std::string::npos);
  std::string name = canonical;
  name.insert(at + 9, std::to_string(expert) + ".");
  return file_name(name);
}

}  // namespace tensorfold
