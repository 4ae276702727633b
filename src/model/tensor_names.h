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
  /// Names of a file that holds an MTP head alone: canonical names begin with "mtp.", the file's with that or nothing.
  static TensorNames of_mtp_file(const Checkpoint& side_file);
  /// Names of a block drafter's folder: canonical ones, with "model." before them in some files.
  static TensorNames of_drafter(const Checkpoint& drafter);
  /// Whether the checkpoint has tensors of an MTP head ("mtp.*" under one of the known prefixes).
  bool has_mtp() const { return has_mtp_; }

  /// "layers.0.self_attn.q_proj" -> "model.layers.0.self_attn.q_proj" or "blk.0.attn_q" (no ".weight").
  std::string file_name(const std::string& canonical) const;
  /// Names under which an expert matrix "layers.0.mlp.experts.down_proj" may be stored as one stack, best first.
  std::vector<std::string> expert_stack_names(const std::string& canonical) const;
  /// Name of one expert's matrix when the file has one tensor per expert.
  std::string expert_name(const std::string& canonical, std::int64_t expert) const;

 private:
  TensorNames() = default;
  std::string gguf_name(const std::string& canonical) const;

  Container container_ = Container::kHuggingFace;
  bool gguf_gemma_ = false;
  std::string body_prefix_;  // "model.", "language_model.model.", ...
  std::string head_name_;
  bool has_mtp_ = false;
  std::string mtp_prefix_ = "mtp.";
};

}  // namespace tensorfold
