// MLX affine quantisation: what config.json says about a module and what its three tensors' shapes say, each checked
// against the other (formats.md section 4). It is apart because the rules for overrides are the format's, not a
// model's.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>

#include "checkpoint/checkpoint.h"

namespace tensorfold {

struct AffineSetting {
  int bits = 4;
  int group_size = 64;
};

enum class AffineRule {
  kUnstated,      // nothing in the configuration says anything: the shapes decide
  kGlobal,        // the global setting applies if the module has scales
  kQuantized,     // the module has an entry: it must have scales
  kNotQuantized,  // the module's entry is false or empty: it must have none
};

struct AffineDeclaration {
  AffineRule rule = AffineRule::kUnstated;
  std::optional<AffineSetting> setting;
};

/// The "quantization" (or MLX-style "quantization_config") object of a config.json, or null. Throws when both exist and
/// contradict each other.
const nlohmann::json* affine_configuration(const nlohmann::json& config);

/// What `configuration` says about the module `path`, with or without a "language_model." prefix.
AffineDeclaration affine_declaration(const nlohmann::json* configuration, std::string_view path);

struct AffineTensors {
  const TensorInfo* weight;
  const TensorInfo* scales;
  const TensorInfo* biases;
};

/// The view of a quantised matrix of `columns` inputs; `leading` is [rows] or [experts, rows]. Throws
/// Error(kInvalidCheckpoint) with the tensor's name and both shapes when an equation doesn't hold.
WeightView affine_view(const std::filesystem::path& file, const AffineTensors& tensors,
                       const AffineDeclaration& declaration, std::span<const std::int64_t> leading,
                       std::int64_t columns);

}  // namespace tensorfold
