// Handing a made-up model to another engine, as a GGUF file or as the folder of an MLX conversion.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "convert/synthetic/synthetic_checkpoint.h"

namespace tensorfold {

using SyntheticProgress = std::function<void(double fraction, const std::string& what)>;

/// Throws Error(kInvalidArgument) when the model isn't in GGUF's names or the file exists.
void write_synthetic_gguf(const SyntheticModel& model, const std::filesystem::path& file,
                          const SyntheticProgress& progress = {});

/// Writes the new folder `folder`: config.json, safetensors, and `files` (name -> text: a tokenizer). Throws
/// Error(kInvalidArgument) when the model is in GGUF's names or the folder exists.
void write_synthetic_mlx(const SyntheticModel& model, const std::filesystem::path& folder,
                         std::map<std::string, std::string> files, const SyntheticProgress& progress = {});

}  // namespace tensorfold
