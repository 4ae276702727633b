// What both containers have in common once their headers are read: a table of tensors by name over mapped files, and
// the questions that model/ asks of it. Each container's own file fills it in.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/mapped_file.h"

namespace tensorfold {

class StoredCheckpoint : public Checkpoint {
 public:
  Container container() const override { return container_; }
  const std::filesystem::path& path() const override { return path_; }
  const nlohmann::json& config() const override { return config_; }
  const nlohmann::json& generation_config() const override { return generation_config_; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* find(std::string_view name) const override;
  std::uint64_t file_bytes() const override { return file_bytes_; }
  WeightView weight(std::string_view base, std::int64_t rows, std::int64_t columns,
                    std::int64_t experts) const override;
  bool has_weight(std::string_view base) const override;
  std::vector<float> values(std::string_view name, std::int64_t count) const override;
  void drop_pages(const std::byte* data, std::size_t bytes) const override;

 protected:
  explicit StoredCheckpoint(std::filesystem::path path) : path_(std::move(path)) {}

  /// Takes over one file and its tensors. Refuses a name that an earlier file already had.
  void add_file(std::unique_ptr<MappedFile> file, std::vector<TensorInfo> tensors);
  /// Tensors whose memory is the derived class's own.
  void add_tensors(std::vector<TensorInfo> tensors);
  /// Call once, after the last of these: names are looked up only from here on.
  void index_tensors();

  std::filesystem::path path_;
  Container container_ = Container::kHuggingFace;
  nlohmann::json config_ = nlohmann::json::object();
  nlohmann::json generation_config_ = nlohmann::json::object();
  std::uint64_t file_bytes_ = 0;
  std::vector<std::unique_ptr<MappedFile>> files_;

 private:
  const TensorInfo* find_matrix(std::string_view base) const;
  const std::filesystem::path& file_of(const TensorInfo& tensor) const;

  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, const TensorInfo*> by_name_;
};

}  // namespace tensorfold
