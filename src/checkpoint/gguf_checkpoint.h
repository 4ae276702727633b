// One GGUF file as a checkpoint: header, metadata, tensor infos and the data section (formats.md section 14).
#pragma once

#include <filesystem>
#include <memory>

#include "checkpoint/checkpoint.h"

namespace tensorfold {

std::shared_ptr<const Checkpoint> open_gguf(const std::filesystem::path& path);

}  // namespace tensorfold
