// Writing a GGUF file (version 3, little-endian) of tensors that lie in memory: what hands a model of ours to programs
// that read that container. The counterpart of gguf_checkpoint.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace tensorfold {

/// The kinds of values that a model's metadata is made of.
using GgufValue =
    std::variant<std::uint32_t, float, bool, std::string, std::vector<std::string>, std::vector<std::int32_t>>;

struct GgufEntry {
  std::string key;  // "llama.block_count"
  GgufValue value;
};

/// Writes metadata, then `tensors` in their order (their dtypes are GGUF's: "F32", "Q4_0", ...). The file has its name
/// only when all of it is on disk. Throws Error(kInvalidArgument | kResourceExhausted).
void write_gguf(const std::filesystem::path& path, std::span<const GgufEntry> metadata,
                std::span<const TensorInfo> tensors,
                const std::function<void(double fraction, const std::string& what)>& progress = {});

}  // namespace tensorfold
