#include "checkpoint/directory_checkpoint.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/limits.h"
#include "checkpoint/affine.h"
#include "checkpoint/json_file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_files.h"
#include "checkpoint/stored_checkpoint.h"

namespace tensorfold {
namespace {

constexpr int kDirectoryEntriesMax = 100'000;

// The sum of all files, links followed (api.md 1.5); directories that are links aren't entered, so that no loop of
// links can hold the load up.
std::uint64_t directory_bytes(const std::filesystem::path& directory) {
  std::uint64_t total = 0;
  int entries = 0;
  std::error_code error;
  const auto options = std::filesystem::directory_options::skip_permission_denied;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory, options, error)) {
    if (++entries > kDirectoryEntriesMax) break;
    std::error_code entry_error;
    if (!entry.is_regular_file(entry_error)) continue;
    const std::uint64_t bytes = entry.file_size(entry_error);
    if (!entry_error) total += bytes;
  }
  return total;
}

class DirectoryCheckpoint final : public StoredCheckpoint {
 public:
  explicit DirectoryCheckpoint(const std::filesystem::path& directory) : StoredCheckpoint(directory) {
    if (!std::filesystem::exists(directory / "config.json")) {
      fail(ErrorCode::kNotFound, "{}: no config.json in this folder; pass a checkpoint's folder or a .gguf file",
           directory.string());
    }
    config_ = read_json_object(directory / "config.json");
    if (std::filesystem::exists(directory / "generation_config.json")) {
      generation_config_ = read_json_object(directory / "generation_config.json");
    }
    bool is_mlx = affine_configuration(config_) != nullptr;
    for (const auto& [name, promised] : find_safetensors_files(directory).promised_tensors) {
      auto file = std::make_unique<MappedFile>(directory / name);
      SafetensorsFile contents = read_safetensors(*file);
      refuse_broken_promises(*file, contents, promised);
      is_mlx = is_mlx || contents.format == "mlx";
      add_file(std::move(file), std::move(contents.tensors));
    }
    container_ = is_mlx ? Container::kMlx : Container::kHuggingFace;
    index_tensors();
    file_bytes_ = directory_bytes(directory);
  }

  std::vector<std::string> gguf_strings(std::string_view) const override { return {}; }
  std::vector<double> gguf_numbers(std::string_view) const override { return {}; }

 private:
  static void refuse_broken_promises(const MappedFile& file, const SafetensorsFile& contents,
                                     std::vector<std::string> promised) {
    std::vector<std::string_view> present;
    present.reserve(contents.tensors.size());
    for (const TensorInfo& tensor : contents.tensors) present.push_back(tensor.name);
    std::sort(present.begin(), present.end());
    for (const std::string& name : promised) {
      if (std::binary_search(present.begin(), present.end(), std::string_view(name))) continue;
      fail(ErrorCode::kInvalidCheckpoint,
           "{}: the index promises the tensor {} in this file, but it isn't there; download "
           "the checkpoint again",
           file.path().string(), in_quotes(name));
    }
  }
};

class LoneFileCheckpoint final : public StoredCheckpoint {
 public:
  explicit LoneFileCheckpoint(const std::filesystem::path& path) : StoredCheckpoint(path) {
    auto file = std::make_unique<MappedFile>(path);
    file_bytes_ = file->size();
    SafetensorsFile contents = read_safetensors(*file);
    container_ = contents.format == "mlx" ? Container::kMlx : Container::kHuggingFace;
    add_file(std::move(file), std::move(contents.tensors));
    index_tensors();
  }

  std::vector<std::string> gguf_strings(std::string_view) const override { return {}; }
  std::vector<double> gguf_numbers(std::string_view) const override { return {}; }
};

}  // namespace

std::shared_ptr<const Checkpoint> open_lone_file(const std::filesystem::path& path) {
  return std::make_shared<LoneFileCheckpoint>(path);
}

std::shared_ptr<const Checkpoint> open_directory(const std::filesystem::path& path) {
  return std::make_shared<DirectoryCheckpoint>(path);
}

}  // namespace tensorfold
