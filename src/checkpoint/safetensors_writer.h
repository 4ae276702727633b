// Writing one safetensors file whose layout is known before its data: the header goes first, then any part of any
// tensor in any order, so that a checkpoint larger than memory can be written as it is computed. The file has its name
// only once everything is in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/partial_file.h"

namespace tensorfold {

struct TensorLayout {
  std::string name;
  std::string dtype;  // "U32", "BF16", "F16", "F32", ...
  std::vector<std::int64_t> shape;
};

/// Bytes of the tensor's data. Throws Error(kInvalidCheckpoint) on an unknown dtype or an overflow.
std::uint64_t tensor_bytes(const TensorLayout& tensor);

class SafetensorsWriter {
 public:
  /// Starts `path` + ".partial". Tensors are laid out by element size, then by name, as the format's own library does.
  /// `format` is the metadata's "format" ("mlx"). Throws Error(kInvalidArgument) when the file can't be made or a name
  /// comes twice.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorLayout> tensors, const std::string& format);

  /// Places `bytes` bytes at `offset` of the data of the tensor `name`. Every byte must be written exactly once.
  void write(const std::string& name, std::uint64_t offset, const void* data, std::size_t bytes);
  /// Checks that everything was written, syncs, and gives the file its name.
  void finish();
  std::uint64_t file_bytes() const { return data_start_ + data_bytes_; }

 private:
  struct Place {
    std::uint64_t offset = 0;  // in the data
    std::uint64_t bytes = 0;
    std::uint64_t written = 0;
  };
  Place& place(const std::string& name);

  PartialFile file_;
  std::uint64_t data_start_ = 0, data_bytes_ = 0;
  std::vector<TensorLayout> tensors_;  // sorted by name, for place()
  std::vector<Place> places_;
};

}  // namespace tensorfold
