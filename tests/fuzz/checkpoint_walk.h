// What the two checkpoint targets do with a file that opens: read every byte a tensor claims and decode what can be
// decoded, so that a size that slipped through the checks meets the sanitizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/temporary_folder.h"
#include "checkpoint/checkpoint.h"

namespace tensorfold::fuzz {

/// A folder of this process alone, in memory where the machine has that; removed at exit.
inline const std::filesystem::path& folder() {
  const std::filesystem::path memory = "/dev/shm";
  static const TemporaryFolder instance(std::filesystem::exists(memory) ? memory
                                                                        : std::filesystem::temp_directory_path());
  return instance.path();
}

inline void write_file(const std::filesystem::path& path, const std::uint8_t* data, std::size_t size) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
}

inline void read_all(const TensorInfo& tensor) {
  volatile std::byte sum{0};
  for (std::size_t i = 0; i < tensor.bytes; ++i) sum = sum ^ tensor.data[i];
}

inline void decode_rows(const WeightView& view) {
  constexpr std::int64_t kColumnsMax = 1 << 16;
  if (view.columns > kColumnsMax) return;
  std::vector<float> row(static_cast<std::size_t>(view.columns));
  decode_row(view, 0, 0, row.data());
  decode_row(view, view.experts - 1, view.rows - 1, row.data());
}

/// Asks for `base` as a caller with the right expectation would: dense from the shape, affine for every width.
inline void decode_matrix(const Checkpoint& checkpoint, const TensorInfo& tensor) {
  const std::size_t dimensions = tensor.shape.size();
  if (dimensions != 2 && dimensions != 3) return;
  for (const std::int64_t dimension : tensor.shape) {
    if (dimension <= 0) return;
  }
  const std::int64_t experts = dimensions == 3 ? tensor.shape[0] : 0;
  const std::int64_t rows = tensor.shape[dimensions - 2], last = tensor.shape[dimensions - 1];
  std::string base = tensor.name;
  if (base.ends_with(".weight")) base.resize(base.size() - 7);
  std::vector<std::int64_t> columns{last};
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    if (tensor.dtype == "U32" && last < (1 << 20)) columns.push_back(last * 32 / bits);
  }
  for (const std::int64_t expected : columns) {
    try {
      decode_rows(checkpoint.weight(base, rows, expected, experts));
    } catch (const std::exception&) {
    }
  }
}

inline void walk(const std::filesystem::path& path) {
  const auto checkpoint = Checkpoint::open(path);
  for (const TensorInfo& tensor : checkpoint->tensors()) {
    read_all(tensor);
    decode_matrix(*checkpoint, tensor);
    checkpoint->drop_pages(tensor.data, tensor.bytes);
  }
  for (const char* key : {"tokenizer.ggml.tokens", "tokenizer.ggml.scores", "a"}) {
    try {
      checkpoint->gguf_strings(key);
      checkpoint->gguf_numbers(key);
    } catch (const std::exception&) {
    }
  }
}

}  // namespace tensorfold::fuzz
