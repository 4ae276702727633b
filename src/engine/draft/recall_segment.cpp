// See recall_segment.h.
#include "engine/draft/recall_segment.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/crc32.h"
#include "base/error.h"
#include "base/limits.h"
#include "ops/sampler.h"

namespace tensorfold {
namespace {

static_assert(std::endian::native == std::endian::little, "segments are little-endian");

constexpr std::array<char, 8> kSegmentMagic = {'T', 'F', 'R', 'E', 'C', 'A', 'L', 'L'};
constexpr std::uint32_t kSegmentVersion = 1;
constexpr std::uint32_t kRecordMagic = 0x52524654u;  // "TFRR"

struct SegmentHeader {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t crc;  // of what follows
  std::uint64_t number;
  RecallIdentity identity;
};
static_assert(sizeof(SegmentHeader) == kRecallHeaderBytes);
constexpr std::size_t kSegmentCrcFrom = offsetof(SegmentHeader, number);

struct RecordHeader {
  std::uint32_t magic;
  std::uint32_t token_count;
  std::uint64_t scope_high, scope_low;
  std::uint32_t tokens_crc;
  std::uint32_t crc;  // of what precedes
};
static_assert(sizeof(RecordHeader) == kRecallRecordHeaderBytes);
constexpr std::size_t kRecordCrcUntil = offsetof(RecordHeader, crc);

template <typename Header>
void append_bytes(std::vector<std::byte>& bytes, const Header& header) {
  const std::size_t size = bytes.size();
  bytes.resize(size + sizeof(header));
  std::memcpy(bytes.data() + size, &header, sizeof(header));
}

/// A whole record header at `at` whose tokens lie inside the bytes.
bool read_record_header(std::span<const std::byte> bytes, std::size_t at, RecordHeader& header) {
  if (bytes.size() - at < sizeof(header)) return false;
  std::memcpy(&header, bytes.data() + at, sizeof(header));
  if (header.magic != kRecordMagic || header.crc != crc32(&header, kRecordCrcUntil)) return false;
  if (header.token_count < 1 || header.token_count > limits::kRecallRecordTokensMax) return false;
  return header.token_count * sizeof(std::int32_t) <= bytes.size() - at - sizeof(header);
}

bool tokens_are_whole(std::span<const std::byte> tokens, const RecordHeader& header, std::int32_t vocabulary_size) {
  if (crc32(tokens.data(), tokens.size()) != header.tokens_crc) return false;
  for (std::size_t at = 0; at < tokens.size(); at += sizeof(std::int32_t)) {
    std::int32_t token = 0;
    std::memcpy(&token, tokens.data() + at, sizeof(token));
    if (token < 0 || token >= vocabulary_size) return false;
  }
  return true;
}

}  // namespace

RecallScope recall_scope(std::string_view owner) {
  RecallScope scope{0x6a09e667f3bcc908u, 0xbb67ae8584caa73bu};
  for (const char c : owner) {
    const auto byte = static_cast<std::uint64_t>(static_cast<unsigned char>(c));
    scope.high = sampling::mix(scope.high + byte + 1);
    scope.low = sampling::mix(scope.low ^ ((byte + 1) * 0x9E3779B97F4A7C15u));
  }
  return {sampling::mix(scope.high ^ owner.size()), sampling::mix(scope.low + owner.size())};
}

std::vector<std::byte> recall_header(std::uint64_t segment_number, const RecallIdentity& identity) {
  SegmentHeader header{kSegmentMagic, kSegmentVersion, 0, segment_number, identity};
  header.crc = crc32(reinterpret_cast<const char*>(&header) + kSegmentCrcFrom, sizeof(header) - kSegmentCrcFrom);
  std::vector<std::byte> bytes;
  append_bytes(bytes, header);
  return bytes;
}

void append_recall_record(std::vector<std::byte>& bytes, const RecallScope& scope,
                          std::span<const std::int32_t> tokens) {
  TF_ASSERT(!tokens.empty() && tokens.size() <= limits::kRecallRecordTokensMax);
  RecordHeader header{kRecordMagic, static_cast<std::uint32_t>(tokens.size()), scope.high, scope.low, 0, 0};
  header.tokens_crc = crc32(tokens.data(), tokens.size_bytes());
  header.crc = crc32(&header, kRecordCrcUntil);
  append_bytes(bytes, header);
  const auto token_bytes = std::as_bytes(tokens);
  bytes.insert(bytes.end(), token_bytes.begin(), token_bytes.end());
}

RecallScan scan_recall_segment(std::span<const std::byte> bytes, const RecallIdentity& identity,
                               std::int32_t vocabulary_size) {
  RecallScan scan;
  SegmentHeader header{};
  if (bytes.size() < sizeof(header)) return scan;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const std::uint32_t crc = crc32(bytes.data() + kSegmentCrcFrom, sizeof(header) - kSegmentCrcFrom);
  scan.is_segment = header.magic == kSegmentMagic && header.version == kSegmentVersion && header.crc == crc &&
                    header.identity == identity;
  if (!scan.is_segment) return scan;
  scan.segment_number = header.number;
  scan.valid_end = sizeof(header);
  std::size_t damaged = 0;  // since the last whole record
  for (std::size_t at = sizeof(header); bytes.size() - at >= sizeof(RecordHeader);) {
    RecordHeader record{};
    if (!read_record_header(bytes, at, record)) {
      at += sizeof(std::int32_t);  // everything is written in whole words
      damaged += sizeof(std::int32_t);
      continue;
    }
    const std::size_t tokens_at = at + sizeof(record);
    const std::size_t token_bytes = record.token_count * sizeof(std::int32_t);
    at = tokens_at + token_bytes;
    if (!tokens_are_whole(bytes.subspan(tokens_at, token_bytes), record, vocabulary_size)) {
      damaged += sizeof(record) + token_bytes;
      continue;
    }
    scan.records.push_back({{record.scope_high, record.scope_low}, tokens_at, record.token_count});
    scan.damaged_bytes += damaged;
    damaged = 0;
    scan.valid_end = at;
  }
  return scan;
}

}  // namespace tensorfold
