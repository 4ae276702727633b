// The files of the disk store. Input: a byte that chooses, then a state file's header or a manifest. Each is tried as it
// is, and with its checksums put right, so that what lies behind them is reached.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "base/crc32.h"
#include "base/error.h"
#include "engine/cache/learn_manifest.h"
#include "engine/cache/state_file.h"

namespace {

using Bytes = std::vector<std::byte>;

void put_u32(Bytes& bytes, std::size_t at, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<std::byte>(value >> (8 * i));
}

std::uint32_t get_u32(const Bytes& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value |= static_cast<std::uint32_t>(bytes[at + i]) << (8 * i);
  return value;
}

void require(bool condition) {
  if (!condition) std::abort();
}

void try_state(const Bytes& bytes, std::uint64_t file_bytes) {
  try {
    const tensorfold::StateHeader header = tensorfold::decode_state_header(bytes, file_bytes);
    require(header.tokens.size() == header.end - header.begin);
    require(header.payload_bytes() + bytes.size() == file_bytes);
    for (std::size_t g = 0; g < header.groups.size(); ++g) {
      const tensorfold::StateGroup& group = header.groups[g];
      if (group.blocks == 0) continue;
      const std::uint32_t last = group.first_block + group.blocks - 1;
      require(header.page_offset(g, last) + group.page_bytes <= header.payload_bytes());
      require(header.page_index(g, last) < header.checks.size());
    }
    require(tensorfold::encode_state_header(header) == bytes);
  } catch (const tensorfold::Error&) {
    // A refusal is the expected answer.
  }
}

void fuzz_state(Bytes bytes) {
  try_state(bytes, bytes.size());
  if (bytes.size() < tensorfold::kStateFilePrefixBytes + 8) return;
  // The last eight bytes stand for the file's size beyond the header.
  std::uint64_t payload = 0;
  std::memcpy(&payload, bytes.data() + bytes.size() - 8, 8);
  bytes.resize(bytes.size() - 8);
  const char magic[8] = {'T', 'F', 'S', 'T', 'A', 'T', 'E', 1};
  std::memcpy(bytes.data(), magic, sizeof(magic));
  put_u32(bytes, 8, static_cast<std::uint32_t>(bytes.size()));
  put_u32(bytes, 12, tensorfold::crc32(bytes.data() + 16, bytes.size() - 16));
  try_state(bytes, bytes.size() + payload % (1ull << 48));
}

void try_manifest(const Bytes& bytes) {
  try {
    const tensorfold::ManifestContent content = tensorfold::decode_manifest(bytes);
    require(content.valid_bytes <= bytes.size());
    for (const auto& [id, state] : content.states) {
      require(id != 0 && id < content.next_id && state.tokens.size() == state.end - state.begin);
      require(state.parent == 0 || content.states.count(state.parent) == 1);
    }
  } catch (const tensorfold::Error&) {
    // Another version.
  }
}

void fuzz_manifest(Bytes bytes) {
  try_manifest(bytes);
  const Bytes magic = tensorfold::manifest_magic();
  if (bytes.size() < magic.size()) return;
  std::copy(magic.begin(), magic.end(), bytes.begin());
  for (std::size_t at = magic.size(); bytes.size() - at > 8;) {
    const std::size_t left = bytes.size() - at - 8;
    const std::size_t size = std::min<std::size_t>(get_u32(bytes, at) % 512 + 1, left);
    put_u32(bytes, at, static_cast<std::uint32_t>(size));
    put_u32(bytes, at + 4, tensorfold::crc32(bytes.data() + at + 8, size));
    at += 8 + size;
  }
  try_manifest(bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  const Bytes bytes(begin + 1, begin + size);
  if (data[0] % 2 == 0) fuzz_state(bytes);
  if (data[0] % 2 == 1) fuzz_manifest(bytes);
  return 0;
}
