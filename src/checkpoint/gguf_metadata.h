// The key-value part of a GGUF file: every length checked while walking it once, small values copied into one flat JSON
// object, long arrays left where they lie in the mapping and read when asked for (a vocabulary of 256k strings costs
// nothing until the tokenizer wants it).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/gguf_types.h"
#include "checkpoint/mapped_file.h"

namespace tensorfold {

/// Reads little-endian values from a mapped file and refuses, with the file's name, to read past its end.
class GgufCursor {
 public:
  GgufCursor(const MappedFile& file, std::size_t position) : file_(file), position_(position) {}

  std::size_t position() const { return position_; }
  std::size_t remaining() const { return file_.size() - position_; }
  const MappedFile& file() const { return file_; }
  std::uint32_t read_u32(std::string_view what);
  std::uint64_t read_u64(std::string_view what);
  std::string_view read_string(std::string_view what, std::uint64_t bytes_max);
  const std::byte* skip(std::uint64_t bytes, std::string_view what);

 private:
  const MappedFile& file_;
  std::size_t position_;
};

class GgufMetadata {
 public:
  /// Reads `count` pairs from `cursor`, which ends after the last.
  GgufMetadata(GgufCursor& cursor, std::uint64_t count);

  /// Scalars and short arrays. The tokenizer's arrays are left out, and arrays from where their elements would be more
  /// than limits::kGgufConfigArrayLengthMax altogether.
  const nlohmann::json& config() const { return config_; }
  /// Empty when the file has no such key; throws when it is an array of something else.
  std::vector<std::string> strings(std::string_view key) const;
  std::vector<double> numbers(std::string_view key) const;

 private:
  struct Array {
    GgufValueType element_type;
    std::uint64_t count;
    std::size_t position;
  };

  void read_pair(GgufCursor& cursor);
  Array read_array(GgufCursor& cursor, const std::string& key);

  const MappedFile& file_;
  nlohmann::json config_ = nlohmann::json::object();
  std::unordered_map<std::string, Array> arrays_;
  std::uint64_t config_elements_ = 0;
};

}  // namespace tensorfold
