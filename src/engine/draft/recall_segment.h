// The bytes of one file of the recall store: a header and records of token ids, each with checksums of its own. Pure
// functions over memory, so that a fuzzer can walk them; files, folders and threads are recall_store's.
//
//   header   40 bytes: magic "TFRECALL", version, CRC of the fields after it, segment number, identity (16 bytes)
//   record   32 bytes: magic "TFRR", token count, scope (16 bytes), CRC of the tokens, CRC of the fields before it;
//            then the tokens, 4 bytes each
// All numbers are little-endian. A record whose checksums don't hold is skipped; where a record's own header is broken
// the search goes on at the next place that holds a whole header.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace tensorfold {

/// Whose tokens a record holds: a hash of the owner's name. Records of other scopes are never read for a stream.
struct RecallScope {
  std::uint64_t high = 0, low = 0;
  bool operator==(const RecallScope&) const = default;
};
RecallScope recall_scope(std::string_view owner);

/// What the ids mean: a hash of the tokenizer.
using RecallIdentity = std::array<std::uint8_t, 16>;

inline constexpr std::size_t kRecallHeaderBytes = 40;
inline constexpr std::size_t kRecallRecordHeaderBytes = 32;

/// Where a record's tokens lie in its segment's bytes.
struct RecallRecord {
  RecallScope scope;
  std::size_t tokens_at = 0;  // byte offset
  std::size_t token_count = 0;
};

std::vector<std::byte> recall_header(std::uint64_t segment_number, const RecallIdentity& identity);
/// Appends a record to `bytes`; 1 <= tokens <= limits::kRecallRecordTokensMax.
void append_recall_record(std::vector<std::byte>& bytes, const RecallScope& scope,
                          std::span<const std::int32_t> tokens);

struct RecallScan {
  bool is_segment = false;  // the header is whole, of this version and of this identity
  std::uint64_t segment_number = 0;
  std::vector<RecallRecord> records;
  std::size_t valid_end = 0;      // end of the last whole record (or of the header)
  std::size_t damaged_bytes = 0;  // skipped before valid_end
};

/// Finds the whole records of a segment. Tokens outside [0, vocabulary_size) make a record damaged.
RecallScan scan_recall_segment(std::span<const std::byte> bytes, const RecallIdentity& identity,
                               std::int32_t vocabulary_size);

}  // namespace tensorfold
