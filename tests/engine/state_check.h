// Every kept state of a learn folder, read and checked without the store: what survives a kill or a broken disk must be
// whole.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "base/crc32.h"
#include "base/error.h"
#include "engine/cache/state_file.h"

namespace tensorfold::testing {

/// The first state of `folder`/v1/states that isn't whole, with what is wrong; "" when all are. `count` grows by their
/// number. For a folder whose store has been opened since the damage, as opening sweeps what a crash left behind.
inline std::string first_damaged_state(const std::string& folder, std::size_t& count) {
  const std::filesystem::path states = std::filesystem::path(folder) / "v1" / "states";
  if (!std::filesystem::exists(states)) return "";
  for (const auto& entry : std::filesystem::directory_iterator(states)) {
    if (entry.path().extension() != ".state") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    const auto bytes = std::as_bytes(std::span(text));
    try {
      if (bytes.size() < kStateFilePrefixBytes) fail(ErrorCode::kInvalidCheckpoint, "it is cut short");
      const std::size_t header_bytes = state_header_bytes(bytes.first(kStateFilePrefixBytes));
      if (header_bytes > bytes.size()) fail(ErrorCode::kInvalidCheckpoint, "its header is cut short");
      const StateHeader header = decode_state_header(bytes.first(header_bytes), bytes.size());
      const std::byte* at = bytes.data() + header_bytes;
      std::size_t index = 0;
      const auto check = [&](std::uint64_t size) {
        if (crc32(at, size) != header.checks.at(index++)) fail(ErrorCode::kInvalidCheckpoint, "a checksum is wrong");
        at += size;
      };
      for (const StateGroup& group : header.groups) {
        for (std::uint32_t block = 0; block < group.blocks; ++block) check(group.page_bytes);
      }
      if (header.snapshot_bytes > 0) check(header.snapshot_bytes);
    } catch (const std::exception& error) {
      return entry.path().string() + ": " + error.what();
    }
    ++count;
  }
  return "";
}

}  // namespace tensorfold::testing
