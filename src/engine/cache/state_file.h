// The format of one kept state on disk: a segment of a prefix. A segment covers the tokens [begin, end) with the pages
// of the full groups; as a resume point it also has the pages that the sliding windows need at `end` and the recurrent
// state of `end`. The tokens before `begin` are its parent's: a conversation's next turn adds a segment and writes
// nothing twice. Everything in a file is hostile until checked here: sizes before they are used, a CRC over the header
// and one over each page and snapshot. What a state is for (identity, owner, tokens) is in it in full and is compared,
// not hashed.
//
//   magic "TFSTATE\x01"; u32 header bytes (all of it); u32 CRC-32 of the header from byte 16 on;
//   u64 id, parent; u32 begin, end; u64 snapshot bytes; u32 identity bytes, scope bytes, groups; u32 zero;
//   identity; scope; i32 tokens[end - begin]; per group { u32 first block, u32 blocks; u64 page bytes };
//   u32 CRC-32 of each page (groups in order, blocks ascending), of the snapshot (if any);
//   then the pages and the snapshot, in that order. Little-endian, unaligned.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tensorfold {

inline constexpr std::size_t kStateFilePrefixBytes = 16;  // magic, header size, header CRC

struct StateGroup {
  std::uint32_t first_block = 0;
  std::uint32_t blocks = 0;
  std::uint64_t page_bytes = 0;
};

struct StateHeader {
  std::uint64_t id = 0;
  std::uint64_t parent = 0;  // 0: none, begin is 0
  std::uint32_t begin = 0;   // a multiple of a page's tokens
  std::uint32_t end = 0;
  std::uint64_t snapshot_bytes = 0;
  std::string identity;
  std::string scope;
  std::vector<std::int32_t> tokens;   // [begin, end)
  std::vector<StateGroup> groups;     // per cache group; none where blocks is 0
  std::vector<std::uint32_t> checks;  // CRC of each page, then of the snapshot

  std::uint64_t page_count() const;
  std::uint64_t payload_bytes() const;
  /// Of page `block` of `group` in the payload.
  std::uint64_t page_offset(std::size_t group, std::uint32_t block) const;
  std::size_t page_index(std::size_t group, std::uint32_t block) const;
};

std::vector<std::byte> encode_state_header(const StateHeader& header);

/// Size of the header as its first kStateFilePrefixBytes say. Throws Error(kInvalidCheckpoint) for what can't be one.
std::size_t state_header_bytes(std::span<const std::byte> prefix);
/// Reads a whole header. `file_bytes`: the file's size, which must be what the header says. Throws
/// Error(kInvalidCheckpoint).
StateHeader decode_state_header(std::span<const std::byte> bytes, std::uint64_t file_bytes);

}  // namespace tensorfold
