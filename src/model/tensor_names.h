// From a family's canonical tensor names to what a file calls them. Containers differ only in names: body prefixes of
// Hugging Face and MLX conversions (families-a.md 0.2), and GGUF's own short names. A family therefore states each name
// once, and a new container is a row here.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace tensorfold {

class TensorNames {
 public:
  explicit TensorNames(const Checkpoint& checkpoint);

  /// "layers.0.self_attn.q_proj" -> "model.layers.0.self_attn.q_proj" or "blk.0.attn_q" (no ".weight").
  std::string file_name(const std::string& canonical) const;
  /// Names under which an expert matrix "layers.0.mlp.experts.down_proj" may be stored as one stack, best first.
  std::vector<std::string> expert_stack_names(const std::string& canonical) const;
  /// Name of one expert's matrix when the file has one tensor per expert.
  std::string expert_name(const std::string& canonical, std::int64_t expert) const;

 private:
  std::string gguf_name(const std::string& canonical) const;

  Container container_;
  bool gguf_gemma_ = false;
  std::string body_prefix_;  // "model.", "language_model.model.", ...
  std::string head_name_;
};

}  // namespace tensorfold
