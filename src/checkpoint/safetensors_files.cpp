#include "checkpoint/safetensors_files.h"

#include "base/error.h"
#include "base/limits.h"
#include "checkpoint/json_file.h"

namespace tensorfold {
namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";

// A relative path of plain components. Links are followed: the Hugging Face cache is made of links that leave the
// folder.
bool stays_inside(const std::string& name) {
  const std::filesystem::path path(name);
  if (name.empty() || name.find('\0') != std::string::npos || name.find('\\') != std::string::npos) return false;
  if (path.is_absolute()) return false;
  for (const auto& component : path) {
    if (component.empty() || component == "." || component == "..") return false;
  }
  return true;
}

SafetensorsFiles read_index(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kIndexName;
  const nlohmann::json index = read_json_object(path, RepeatedKeys::kRefuse);
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object() || map->empty()) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: no weight_map object; download the file again", path.string());
  }
  SafetensorsFiles files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) {
      fail(ErrorCode::kInvalidCheckpoint, "{}: the tensor {} is mapped to something that isn't a file name",
           path.string(), in_quotes(tensor));
    }
    const auto& name = file.get_ref<const std::string&>();
    if (!stays_inside(name)) {
      fail(ErrorCode::kInvalidCheckpoint,
           "{}: the tensor {} is mapped to {}, which leaves the folder; don't use this checkpoint", path.string(),
           in_quotes(tensor), in_quotes(name));
    }
    files.promised_tensors[name].push_back(tensor);
  }
  for (const auto& [name, tensors] : files.promised_tensors) {
    if (!std::filesystem::exists(directory / name)) {
      fail(ErrorCode::kNotFound, "{}: the shard {} named in {} is missing; download the checkpoint again",
           directory.string(), in_quotes(name), kIndexName);
    }
  }
  return files;
}

}  // namespace

SafetensorsFiles find_safetensors_files(const std::filesystem::path& directory) {
  SafetensorsFiles files;
  if (std::filesystem::exists(directory / kIndexName)) {
    files = read_index(directory);
  } else {
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("model") && name.ends_with(".safetensors")) files.promised_tensors[name];
    }
  }
  if (files.promised_tensors.empty()) {
    fail(ErrorCode::kNotFound,
         "{}: no model*.safetensors and no {}; download the checkpoint again, or pass a .gguf file", directory.string(),
         kIndexName);
  }
  if (files.promised_tensors.size() > static_cast<std::size_t>(limits::kShardCountMax)) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: {} shards; the limit is {}", directory.string(),
         files.promised_tensors.size(), limits::kShardCountMax);
  }
  return files;
}

}  // namespace tensorfold
