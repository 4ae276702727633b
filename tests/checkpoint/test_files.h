// Small checkpoints written at run time, right or wrong on purpose: a folder that is removed with the test, a
// safetensors writer that takes the header as text, and a GGUF writer that takes every count as told.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/temporary_folder.h"
#include "checkpoint/checkpoint.h"

namespace tensorfold {

/// A temporary folder with files in it.
class TestFolder : public TemporaryFolder {
 public:
  std::filesystem::path write(const std::string& name, std::string_view content) const {
    const std::filesystem::path file = path() / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << content;
    return file;
  }
};

template <typename Value>
std::string bytes_of(Value value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

inline std::string safetensors_bytes(std::string_view header, std::size_t data_bytes) {
  return bytes_of<std::uint64_t>(header.size()) + std::string(header) + std::string(data_bytes, '\x01');
}

inline std::string gguf_string(std::string_view text) {
  return bytes_of<std::uint64_t>(text.size()) + std::string(text);
}

/// A GGUF file under construction; a test bends one field and keeps the rest right.
struct GgufFile {
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::uint64_t tensor_count = 0;
  std::uint64_t pair_count = 0;
  std::string pairs;
  std::string infos;
  std::size_t data_bytes = 0;

  GgufFile& pair(std::string_view key, std::uint32_t type, const std::string& value) {
    pairs += gguf_string(key) + bytes_of(type) + value;
    ++pair_count;
    return *this;
  }
  GgufFile& tensor(std::string_view name, const std::vector<std::uint64_t>& dimensions, std::uint32_t type,
                   std::uint64_t offset) {
    infos += gguf_string(name) + bytes_of(static_cast<std::uint32_t>(dimensions.size()));
    for (const std::uint64_t dimension : dimensions) infos += bytes_of(dimension);
    infos += bytes_of(type) + bytes_of(offset);
    ++tensor_count;
    return *this;
  }
  GgufFile& data(std::size_t bytes) {
    data_bytes = bytes;
    return *this;
  }
  std::string bytes() const {
    std::string text = magic + bytes_of(version) + bytes_of(tensor_count) + bytes_of(pair_count) + pairs + infos;
    text.resize((text.size() + 31) / 32 * 32, '\0');
    return text + std::string(data_bytes, '\x01');
  }
};

/// The message of the Error that `action` throws; fails the test when none comes, or another kind.
inline std::string error_of(const std::function<void()>& action, ErrorCode code = ErrorCode::kInvalidCheckpoint) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

}  // namespace tensorfold

// The message must hold every part: file, tensor and reason.
#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)
