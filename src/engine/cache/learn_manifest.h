// The disk store's append-only log: which state files are whole, what tokens they hold, when they were used, and what
// was written today. A record counts only if its CRC does; the log ends at the first one that doesn't, so that a torn
// tail costs what was being written and no more. A state file without a record is an orphan, a record without a file is
// dropped.
//
//   magic "TFLEARN\x01"; records { u32 size, u32 CRC-32 of the body, body }; body: u8 type and its fields.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace tensorfold {

inline constexpr std::size_t kManifestMagicBytes = 8;

/// What the store knows of a state file.
struct StoredState {
  std::uint64_t id = 0;
  std::uint64_t parent = 0;
  std::uint32_t begin = 0, end = 0;
  bool is_written = true;     // false: on its way (never in a manifest)
  bool resume_point = false;  // it has the windows and the state of `end`
  std::uint64_t file_bytes = 0;
  std::uint64_t last_use = 0;  // grows with each use
  std::string identity, scope;
  std::vector<std::int32_t> tokens;
};

/// What a manifest adds up to.
struct ManifestContent {
  std::map<std::uint64_t, StoredState> states;
  std::uint64_t next_id = 1;
  std::uint64_t next_use = 1;
  std::uint32_t day = 0;  // since 1970-01-01
  std::uint64_t day_bytes = 0;
  std::uint64_t valid_bytes = 0;  // of the file; what follows is torn or rotten
};

std::vector<std::byte> manifest_magic();
std::vector<std::byte> encode_added(const StoredState& state);
std::vector<std::byte> encode_removed(std::uint64_t id);
std::vector<std::byte> encode_used(std::uint64_t id, std::uint64_t use);
std::vector<std::byte> encode_day(std::uint32_t day, std::uint64_t bytes);

/// Reads as far as records are whole and make sense. Throws Error(kUnsupported) when the file is of another version.
ManifestContent decode_manifest(std::span<const std::byte> bytes);

}  // namespace tensorfold
