// Golden cases (tests/golden/models/*): a small checkpoint and what an independent implementation computed from it. Read
// here with a reader of its own, so that a fault in src/checkpoint can't hide in both sides of a comparison.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/source_folder.h"

namespace tensorfold::test {

struct GoldenTensor {
  std::vector<std::int64_t> shape;
  std::vector<char> bytes;
  template <typename T>
  std::vector<T> as() const {
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    return values;
  }
};

struct GoldenCase {
  std::string name;
  std::filesystem::path model;  // directory or .gguf file
  std::map<std::string, GoldenTensor> expected;
  nlohmann::json metadata;
};

inline GoldenCase read_golden_case(const std::filesystem::path& directory) {
  GoldenCase result;
  result.name = directory.filename().string();
  const auto gguf = directory / "model.gguf";
  result.model = std::filesystem::exists(gguf) ? gguf : directory;
  std::ifstream file(directory / "expected.safetensors", std::ios::binary);
  if (!file) throw std::runtime_error("no expected.safetensors in " + directory.string());
  std::uint64_t header_bytes = 0;
  file.read(reinterpret_cast<char*>(&header_bytes), 8);
  std::string header(header_bytes, '\0');
  file.read(header.data(), static_cast<std::streamsize>(header_bytes));
  const auto json = nlohmann::json::parse(header);
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") {
      result.metadata = entry;
      continue;
    }
    GoldenTensor tensor;
    tensor.shape = entry["shape"].get<std::vector<std::int64_t>>();
    const auto offsets = entry["data_offsets"].get<std::vector<std::uint64_t>>();
    tensor.bytes.resize(offsets[1] - offsets[0]);
    file.seekg(static_cast<std::streamoff>(8 + header_bytes + offsets[0]));
    file.read(tensor.bytes.data(), static_cast<std::streamsize>(tensor.bytes.size()));
    result.expected[name] = std::move(tensor);
  }
  return result;
}

/// In the GPU's programs: golden checkpoints with heads that no kernel takes (CudaMemory.HeadsWithoutAKernelAreRefusedByName).
inline bool backend_refuses([[maybe_unused]] const std::string& golden) {
#if defined(TENSORFOLD_TEST_CUDA)
  return golden == "llama_biases";
#else
  return false;
#endif
}

inline std::vector<std::string> golden_case_names() {
  std::vector<std::string> names;
  const std::filesystem::path root = source_folder() / "tests/golden/models";
  if (!std::filesystem::exists(root)) return names;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    if (std::filesystem::exists(entry.path() / "expected.safetensors") && !backend_refuses(name)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

inline std::filesystem::path golden_directory(const std::string& name) {
  return source_folder() / "tests/golden/models" / name;
}

}  // namespace tensorfold::test
