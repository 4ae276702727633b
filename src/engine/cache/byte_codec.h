// Little-endian numbers and strings into and out of byte buffers, for the files of the disk store. A reader never
// passes the end of its bytes: it throws Error(kInvalidCheckpoint) instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace tensorfold {

class ByteWriter {
 public:
  template <typename T>
  void number(T value) {
    static_assert(std::is_integral_v<T>);
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i)));
    }
  }
  void text(const std::string& value) {
    const auto* data = reinterpret_cast<const std::byte*>(value.data());
    bytes_.insert(bytes_.end(), data, data + value.size());
  }
  void tokens(std::span<const std::int32_t> values) {
    for (const std::int32_t value : values) number(static_cast<std::uint32_t>(value));
  }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T number() {
    static_assert(std::is_integral_v<T>);
    const std::span<const std::byte> raw = take(sizeof(T));
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<std::uint64_t>(raw[i]) << (8 * i);
    return static_cast<T>(value);
  }
  std::string text(std::size_t size) {
    const std::span<const std::byte> raw = take(size);
    return std::string(reinterpret_cast<const char*>(raw.data()), raw.size());
  }
  std::vector<std::int32_t> tokens(std::size_t count) {
    if (count > left() / sizeof(std::int32_t)) too_short();
    std::vector<std::int32_t> values(count);
    for (std::int32_t& value : values) value = static_cast<std::int32_t>(number<std::uint32_t>());
    return values;
  }
  std::size_t left() const { return bytes_.size() - at_; }

 private:
  [[noreturn]] static void too_short() { fail(ErrorCode::kInvalidCheckpoint, "it ends too early"); }
  std::span<const std::byte> take(std::size_t size) {
    if (size > left()) too_short();
    const std::span<const std::byte> taken = bytes_.subspan(at_, size);
    at_ += size;
    return taken;
  }

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

}  // namespace tensorfold
