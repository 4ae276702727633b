// A checkpoint with a configuration and no weights, to ask a family what weights there should be: it says yes to every
// name of its container's style. Only describe_model() may look at it.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace tensorfold {

class ShapeProbe final : public Checkpoint {
 public:
  ShapeProbe(Container container, const nlohmann::json& config, bool tied, bool mtp);

  Container container() const override { return container_; }
  const std::filesystem::path& path() const override { return path_; }
  const nlohmann::json& config() const override { return config_; }
  const nlohmann::json& generation_config() const override { return nothing_; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* find(std::string_view name) const override;
  std::uint64_t file_bytes() const override { return 0; }
  WeightView weight(std::string_view base, std::int64_t rows, std::int64_t columns, std::int64_t experts) const override;
  bool has_weight(std::string_view base) const override;
  std::vector<float> values(std::string_view name, std::int64_t count) const override;
  std::vector<std::string> gguf_strings(std::string_view) const override { return {}; }
  std::vector<double> gguf_numbers(std::string_view) const override { return {}; }
  void drop_pages(const std::byte*, std::size_t) const override {}

 private:
  Container container_;
  std::filesystem::path path_ = "synthetic";
  nlohmann::json config_, nothing_ = nlohmann::json::object();
  bool tied_;
  std::string body_prefix_, outer_prefix_;  // of an MLX conversion's names
  std::vector<TensorInfo> tensors_;         // what names alone must show: an MTP head
  TensorInfo convolution_;
};

}  // namespace tensorfold
