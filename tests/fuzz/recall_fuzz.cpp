// Bytes of a recall segment -> its records. Anything may be damaged; what comes out must lie inside the bytes, hold ids
// of the vocabulary only, and stay the same once the torn end is cut off.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "base/limits.h"
#include "engine/draft/recall_index.h"
#include "engine/draft/recall_segment.h"

namespace {

constexpr std::int32_t kVocabulary = 1000;
constexpr tensorfold::RecallIdentity kIdentity = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > tensorfold::limits::kRecallSegmentBytes) return 0;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  const tensorfold::RecallScan scan = tensorfold::scan_recall_segment(bytes, kIdentity, kVocabulary);
  if (!scan.is_segment) {
    require(scan.records.empty());
    return 0;
  }
  require(scan.valid_end <= size && scan.damaged_bytes <= scan.valid_end);
  // The smallest index that is allowed; made once, emptied for each input.
  static tensorfold::RecallIndex index(tensorfold::limits::kRecallBytesMin);
  static std::uint64_t number = 0;
  index.drop_segment(number);
  index.begin_segment(++number);
  std::size_t end = tensorfold::kRecallHeaderBytes;
  for (const tensorfold::RecallRecord& record : scan.records) {
    require(record.tokens_at >= end + tensorfold::kRecallRecordHeaderBytes);
    end = record.tokens_at + record.token_count * sizeof(std::int32_t);
    require(end <= scan.valid_end && record.token_count > 0);
    std::vector<std::int32_t> tokens(record.token_count);
    std::memcpy(tokens.data(), data + record.tokens_at, tokens.size() * sizeof(std::int32_t));
    for (const std::int32_t token : tokens) require(token >= 0 && token < kVocabulary);
    index.append(record.scope, tokens);
    for (std::size_t at = 0; at <= tokens.size(); ++at) {
      const auto place = index.find(record.scope, std::span<const std::int32_t>(tokens).first(at));
      require(place.segment == 0 || !index.read(record.scope, place, 4).empty());
    }
  }
  require(end == scan.valid_end);
  const auto again = tensorfold::scan_recall_segment(bytes.first(scan.valid_end), kIdentity, kVocabulary);
  require(again.is_segment && again.records.size() == scan.records.size() && again.valid_end == scan.valid_end);
  return 0;
}
