// See character_set.h.
#include "grammar/character_set.h"

#include <algorithm>

namespace tensorfold {
namespace {

constexpr std::uint32_t kLastCharacter = 0x10ffff;
constexpr CharacterRange kSurrogates = {0xd800, 0xdfff};

/// Sorts and joins ranges that touch.
std::vector<CharacterRange> normalized(std::vector<CharacterRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const CharacterRange& a, const CharacterRange& b) { return a.first < b.first; });
  std::vector<CharacterRange> joined;
  for (const CharacterRange& range : ranges) {
    if (range.first > range.last) continue;
    if (!joined.empty() && range.first <= joined.back().last + 1) {
      joined.back().last = std::max(joined.back().last, range.last);
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

void add_without_surrogates(CharacterRange range, std::vector<CharacterRange>& out) {
  range.last = std::min(range.last, kLastCharacter);
  if (range.first > range.last) return;
  if (range.last < kSurrogates.first || range.first > kSurrogates.last) {
    out.push_back(range);
    return;
  }
  if (range.first < kSurrogates.first) out.push_back({range.first, kSurrogates.first - 1});
  if (range.last > kSurrogates.last) out.push_back({kSurrogates.last + 1, range.last});
}

}  // namespace

CharacterSet::CharacterSet(std::vector<CharacterRange> ranges) {
  std::vector<CharacterRange> kept;
  for (const CharacterRange& range : ranges) add_without_surrogates(range, kept);
  ranges_ = normalized(std::move(kept));
}

CharacterSet CharacterSet::all() {
  return CharacterSet{{0, kLastCharacter}};
}

bool CharacterSet::contains(std::uint32_t character) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [character](const CharacterRange& range) {
    return range.first <= character && character <= range.last;
  });
}

CharacterSet CharacterSet::complement() const {
  std::vector<CharacterRange> gaps;
  std::uint32_t next = 0;
  for (const CharacterRange& range : ranges_) {
    if (range.first > next) gaps.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCharacter) gaps.push_back({next, kLastCharacter});
  return CharacterSet(std::move(gaps));
}

CharacterSet CharacterSet::united_with(const CharacterSet& other) const {
  std::vector<CharacterRange> both = ranges_;
  both.insert(both.end(), other.ranges_.begin(), other.ranges_.end());
  return CharacterSet(std::move(both));
}

CharacterSet CharacterSet::intersected_with(const CharacterSet& other) const {
  std::vector<CharacterRange> common;
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < ranges_.size() && j < other.ranges_.size()) {
    const CharacterRange& a = ranges_[i];
    const CharacterRange& b = other.ranges_[j];
    const CharacterRange overlap = {std::max(a.first, b.first), std::min(a.last, b.last)};
    if (overlap.first <= overlap.last) common.push_back(overlap);
    if (a.last < b.last) {
      ++i;
    } else {
      ++j;
    }
  }
  CharacterSet result;
  result.ranges_ = normalized(std::move(common));
  return result;
}

}  // namespace tensorfold
