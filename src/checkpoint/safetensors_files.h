// Which safetensors files make up a directory's checkpoint, and which tensors each must hold: the index, or every
// model*.safetensors when there is none (formats.md section 1). Paths in an index are hostile until checked here.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace tensorfold {

struct SafetensorsFiles {
  /// In the order of their names. A file's promised tensors are empty when no index promises anything.
  std::map<std::string, std::vector<std::string>> promised_tensors;
};

/// Throws Error(kInvalidCheckpoint | kNotFound) for a missing shard, a path that leaves the folder, too many shards, or
/// when there are no weights at all.
SafetensorsFiles find_safetensors_files(const std::filesystem::path& directory);

}  // namespace tensorfold
