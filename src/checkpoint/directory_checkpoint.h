// A Hugging Face or MLX directory as a checkpoint: config.json, generation_config.json and its safetensors files; or one
// safetensors file alone.
#pragma once

#include <filesystem>
#include <memory>

#include "checkpoint/checkpoint.h"

namespace tensorfold {

std::shared_ptr<const Checkpoint> open_directory(const std::filesystem::path& path);
std::shared_ptr<const Checkpoint> open_lone_file(const std::filesystem::path& path);

}  // namespace tensorfold
