// See checkpoint_id.h.
#include "model/checkpoint_id.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

namespace tensorfold {
namespace {

constexpr std::size_t kBlockBytes = 4096, kBlocks = 16;

/// Two independent 64-bit hashes over a sequence of byte strings.
class Hash {
 public:
  void add(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    mix(size);
    for (; size >= 8; size -= 8, bytes += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes, 8);
      mix(word);
    }
    std::uint64_t rest = 0;
    if (size > 0) std::memcpy(&rest, bytes, size);
    mix(rest);
  }
  void add(std::string_view text) { add(text.data(), text.size()); }
  std::string hex() const { return fmt::format("{:016x}{:016x}", first_, second_); }

 private:
  void mix(std::uint64_t word) {
    first_ = (first_ ^ word) * 0x9E3779B97F4A7C15u;
    first_ ^= first_ >> 32;
    second_ = (std::rotl(second_, 27) + word) * 0xD1B54A32D192ED03u;
    second_ ^= second_ >> 29;
  }
  std::uint64_t first_ = 0x243F6A8885A308D3u, second_ = 0x13198A2E03707344u;
};

void add_content(const TensorInfo& tensor, Hash& hash) {
  if (tensor.bytes <= kBlockBytes * kBlocks) {
    hash.add(tensor.data, tensor.bytes);
    return;
  }
  const std::size_t last = tensor.bytes - kBlockBytes;
  for (std::size_t block = 0; block < kBlocks; ++block) {
    hash.add(tensor.data + last / (kBlocks - 1) * block, kBlockBytes);
  }
  hash.add(tensor.data + last, kBlockBytes);
}

}  // namespace

std::string checkpoint_id(const Checkpoint& checkpoint) {
  Hash hash;
  hash.add(checkpoint.config().dump());
  std::vector<const TensorInfo*> tensors;
  for (const TensorInfo& tensor : checkpoint.tensors()) tensors.push_back(&tensor);
  std::sort(tensors.begin(), tensors.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
  for (const TensorInfo* tensor : tensors) {
    hash.add(tensor->name);
    hash.add(tensor->dtype);
    hash.add(tensor->shape.data(), tensor->shape.size() * sizeof(std::int64_t));
    add_content(*tensor, hash);
  }
  return hash.hex();
}

}  // namespace tensorfold
