// The recall store's memory: the token ids of its segments and a table that finds where eight given tokens stood last.
// The table is a fixed array of positions without keys: a newer text overwrites an older one that falls on the same
// place, and what a position holds is compared token by token (and scope by scope) before it is believed. So its size
// is bounded, dropping a segment needs no clean-up, and a wrong entry costs a miss, never a wrong draft. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "engine/draft/recall_segment.h"

namespace tensorfold {

class RecallIndex {
 public:
  static constexpr std::int32_t kGramTokens = 8;

  /// A place in the store: the token at `offset` of a segment. Stale when that segment has been dropped.
  struct Place {
    std::uint64_t segment = 0;  // number; 0: no place
    std::size_t offset = 0;
    std::int32_t match_length = 0;  // tokens before it that equal the end of the text that was looked up
  };

  /// Room for `bytes_max` bytes of ids, and a table of twice as many bytes or a little more.
  explicit RecallIndex(std::uint64_t bytes_max);

  /// Segments come in ascending order of number; the place of one that fell out of the ring is taken over.
  void begin_segment(std::uint64_t number);
  void drop_segment(std::uint64_t number);
  /// Adds a record to the newest segment.
  void append(const RecallScope& scope, std::span<const std::int32_t> tokens);

  /// Where the last kGramTokens of `text` stood in this scope with something after them; the longest match of the
  /// few that the table remembers. match_length counts up to limits::kRecallMatchTokensMax.
  Place find(const RecallScope& scope, std::span<const std::int32_t> text) const;
  /// The place after `tokens`, if they are what stands at `place`; else no place.
  Place follow(const RecallScope& scope, const Place& place, std::span<const std::int32_t> tokens) const;
  /// The tokens from `place` to its record's end, at most `count`.
  std::span<const std::int32_t> read(const RecallScope& scope, const Place& place, std::size_t count) const;

  std::size_t token_count() const { return token_count_; }

 private:
  struct Record {
    RecallScope scope;
    std::size_t begin = 0, end = 0;
  };
  struct Segment {
    std::uint64_t number = 0;  // 0: nothing here
    std::vector<std::int32_t> tokens;
    std::vector<Record> records;
  };
  struct FreeMemory {
    void operator()(std::uint32_t* memory) const { std::free(memory); }
  };

  static std::uint64_t hash_gram(const RecallScope& scope, const std::int32_t* tokens);
  const Segment* segment_of(std::uint64_t number) const;
  /// The record of `scope` that holds the token at `offset`, or null.
  static const Record* record_at(const Segment& segment, const RecallScope& scope, std::size_t offset);

  std::vector<Segment> ring_;
  std::uint64_t newest_ = 0;
  std::size_t token_count_ = 0;
  std::size_t bucket_mask_ = 0;
  std::unique_ptr<std::uint32_t[], FreeMemory> table_;  // per bucket positions + 1, newest first; 0: none
};

}  // namespace tensorfold
