// Sets of Unicode characters as sorted, disjoint ranges: what character classes of regular expressions and grammars are
// computed with. Surrogates are never members, as no UTF-8 text holds them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

namespace tensorfold {

struct CharacterRange {
  std::uint32_t first = 0;
  std::uint32_t last = 0;  // inclusive
  bool operator==(const CharacterRange&) const = default;
};

class CharacterSet {
 public:
  CharacterSet() = default;
  CharacterSet(std::initializer_list<CharacterRange> ranges) : CharacterSet(std::vector<CharacterRange>(ranges)) {}
  explicit CharacterSet(std::vector<CharacterRange> ranges);

  static CharacterSet all();
  static CharacterSet ascii() { return CharacterSet{{0, 0x7f}}; }
  static CharacterSet of(std::uint32_t character) { return CharacterSet{{character, character}}; }

  bool is_empty() const { return ranges_.empty(); }
  bool contains(std::uint32_t character) const;
  const std::vector<CharacterRange>& ranges() const { return ranges_; }

  CharacterSet complement() const;
  CharacterSet united_with(const CharacterSet& other) const;
  CharacterSet intersected_with(const CharacterSet& other) const;
  CharacterSet without(const CharacterSet& other) const { return intersected_with(other.complement()); }

 private:
  std::vector<CharacterRange> ranges_;
};

}  // namespace tensorfold
