// See recall_index.h.
#include "engine/draft/recall_index.h"

#include <algorithm>
#include <bit>
#include <new>

#include "base/error.h"
#include "base/limits.h"
#include "ops/sampler.h"

namespace tensorfold {
namespace {

constexpr std::size_t kSegmentTokens = limits::kRecallSegmentBytes / sizeof(std::int32_t);
constexpr std::size_t kWays = 4;  // with two places for each token, 96 of 100 grams are found when it is full
static_assert(limits::kRecallBytesMax / limits::kRecallSegmentBytes * kSegmentTokens < 0xffff0000u,
              "a position fits 32 bits");

}  // namespace

RecallIndex::RecallIndex(std::uint64_t bytes_max) {
  TF_ASSERT(bytes_max >= limits::kRecallBytesMin && bytes_max <= limits::kRecallBytesMax);
  ring_.resize(static_cast<std::size_t>(bytes_max / limits::kRecallSegmentBytes) + 1);
  const std::size_t entries = 2 * std::bit_ceil(static_cast<std::size_t>(bytes_max / sizeof(std::int32_t)));
  bucket_mask_ = entries / kWays - 1;
  // calloc: pages of a table that is never filled are never touched.
  table_.reset(static_cast<std::uint32_t*>(std::calloc(entries, sizeof(std::uint32_t))));
  if (table_ == nullptr) throw std::bad_alloc();
}

std::uint64_t RecallIndex::hash_gram(const RecallScope& scope, const std::int32_t* tokens) {
  std::uint64_t hash = scope.low;
  for (std::int32_t i = 0; i < kGramTokens; ++i) {
    hash = (hash ^ static_cast<std::uint32_t>(tokens[i])) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return sampling::mix(hash);
}

const RecallIndex::Segment* RecallIndex::segment_of(std::uint64_t number) const {
  const Segment& segment = ring_[number % ring_.size()];
  return number != 0 && segment.number == number ? &segment : nullptr;
}

const RecallIndex::Record* RecallIndex::record_at(const Segment& segment, const RecallScope& scope,
                                                  std::size_t offset) {
  const auto after = std::upper_bound(segment.records.begin(), segment.records.end(), offset,
                                      [](std::size_t at, const Record& record) { return at < record.begin; });
  if (after == segment.records.begin()) return nullptr;
  const Record& record = *(after - 1);
  return offset < record.end && record.scope == scope ? &record : nullptr;
}

void RecallIndex::begin_segment(std::uint64_t number) {
  TF_ASSERT(number > newest_);
  drop_segment(ring_[number % ring_.size()].number);
  ring_[number % ring_.size()].number = number;
  newest_ = number;
}

void RecallIndex::drop_segment(std::uint64_t number) {
  if (segment_of(number) == nullptr) return;
  Segment& segment = ring_[number % ring_.size()];
  token_count_ -= segment.tokens.size();
  segment = {};
}

void RecallIndex::append(const RecallScope& scope, std::span<const std::int32_t> tokens) {
  Segment& segment = ring_[newest_ % ring_.size()];
  TF_ASSERT(newest_ != 0 && segment.number == newest_);
  const std::size_t begin = segment.tokens.size();
  TF_ASSERT(tokens.size() <= kSegmentTokens - begin);
  segment.records.push_back({scope, begin, begin + tokens.size()});
  try {
    segment.tokens.insert(segment.tokens.end(), tokens.begin(), tokens.end());
  } catch (...) {
    segment.records.pop_back();  // a record has its tokens, or there is none
    throw;
  }
  token_count_ += tokens.size();
  const std::size_t base = newest_ % ring_.size() * kSegmentTokens + begin;
  for (std::size_t next = kGramTokens; next < tokens.size(); ++next) {
    const std::uint64_t hash = hash_gram(scope, tokens.data() + next - kGramTokens);
    std::uint32_t* bucket = table_.get() + (hash & bucket_mask_) * kWays;
    std::copy_backward(bucket, bucket + kWays - 1, bucket + kWays);
    bucket[0] = static_cast<std::uint32_t>(base + next + 1);
  }
}

RecallIndex::Place RecallIndex::find(const RecallScope& scope, std::span<const std::int32_t> text) const {
  Place best;
  if (text.size() < kGramTokens) return best;
  const std::uint64_t hash = hash_gram(scope, text.data() + text.size() - kGramTokens);
  const std::uint32_t* bucket = table_.get() + (hash & bucket_mask_) * kWays;
  for (std::size_t way = 0; way < kWays; ++way) {
    if (bucket[way] == 0) continue;
    const std::size_t position = bucket[way] - 1;
    const Segment& segment = ring_[position / kSegmentTokens];
    const std::size_t offset = position % kSegmentTokens;
    const Record* record = record_at(segment, scope, offset);
    if (record == nullptr) continue;
    const std::size_t longest =
        std::min({offset - record->begin, text.size(), static_cast<std::size_t>(limits::kRecallMatchTokensMax)});
    std::size_t length = 0;
    while (length < longest && segment.tokens[offset - 1 - length] == text[text.size() - 1 - length]) ++length;
    if (length < kGramTokens || static_cast<std::int32_t>(length) <= best.match_length) continue;
    best = {segment.number, offset, static_cast<std::int32_t>(length)};
  }
  return best;
}

RecallIndex::Place RecallIndex::follow(const RecallScope& scope, const Place& place,
                                       std::span<const std::int32_t> tokens) const {
  const std::span<const std::int32_t> known = read(scope, place, tokens.size());
  if (known.size() < tokens.size() || !std::equal(tokens.begin(), tokens.end(), known.begin())) return {};
  const std::size_t length = static_cast<std::size_t>(place.match_length) + tokens.size();
  return {place.segment, place.offset + tokens.size(),
          static_cast<std::int32_t>(std::min(length, static_cast<std::size_t>(limits::kRecallMatchTokensMax)))};
}

std::span<const std::int32_t> RecallIndex::read(const RecallScope& scope, const Place& place, std::size_t count) const {
  const Segment* segment = segment_of(place.segment);
  if (segment == nullptr) return {};
  const Record* record = record_at(*segment, scope, place.offset);
  if (record == nullptr) return {};
  return std::span(segment->tokens).subspan(place.offset, std::min(count, record->end - place.offset));
}

}  // namespace tensorfold
