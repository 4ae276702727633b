// The search narrows a range of the sorted patterns byte by byte: no automaton to build or to blow up, and the cost for
// a text without candidates is one table lookup a byte.
#include "text/tokenizer_added_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "base/limits.h"
#include "text/unicode.h"

namespace tensorfold {
namespace {

std::size_t last_character_begin(std::string_view text) {
  std::size_t last = text.size() - 1;
  while (last > 0 && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
  return last;
}

bool ends_in_word(std::string_view text) {
  return !text.empty() && unicode::is_word(unicode::decode_valid(text.data() + last_character_begin(text)).value);
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && unicode::is_word(unicode::decode_valid(text.data()).value);
}

std::size_t trailing_spaces_begin(std::string_view text) {
  while (!text.empty()) {
    const std::size_t last = last_character_begin(text);
    if (!unicode::is_space(unicode::decode_valid(text.data() + last).value)) break;
    text = text.substr(0, last);
  }
  return text.size();
}

std::size_t leading_spaces_length(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto [value, length] = unicode::decode_valid(text.data() + i);
    if (!unicode::is_space(value)) break;
    i += length;
  }
  return i;
}

}  // namespace

void AddedTokenMatcher::add(std::string pattern, const AddedToken& token) {
  if (pattern.empty()) return;
  if (pattern.size() > limits::kAddedTokenBytesMax) {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer: the added token with id {} is longer than {} bytes", token.id,
         limits::kAddedTokenBytesMax);
  }
  entries_.push_back({std::move(pattern), token.id, token.strip_left, token.strip_right, token.single_word});
}

void AddedTokenMatcher::finish() {
  const auto by_pattern = [](const Entry& a, const Entry& b) { return a.pattern < b.pattern; };
  std::stable_sort(entries_.begin(), entries_.end(), by_pattern);
  const auto same = [](const Entry& a, const Entry& b) { return a.pattern == b.pattern; };
  entries_.erase(std::unique(entries_.begin(), entries_.end(), same), entries_.end());
  for (std::uint32_t i = 0; i < entries_.size(); ++i) {
    Range& range = by_first_byte_[static_cast<unsigned char>(entries_[i].pattern[0])];
    if (range.begin == range.end) range.begin = i;
    range.end = i + 1;
  }
}

const AddedTokenMatcher::Entry* AddedTokenMatcher::longest_match(std::string_view text) const {
  const Range first = by_first_byte_[static_cast<unsigned char>(text[0])];
  auto low = entries_.begin() + first.begin, high = entries_.begin() + first.end;
  const Entry* longest = nullptr;
  for (std::size_t depth = 1; low != high; ++depth) {
    // All of [low, high) begin with text[0, depth); the one that is exactly this sorts first.
    if (low->pattern.size() == depth) {
      longest = &*low;
      ++low;
    }
    if (depth == text.size()) break;
    const auto byte = static_cast<unsigned char>(text[depth]);
    const auto at_depth = [depth](const Entry& e) { return static_cast<unsigned char>(e.pattern[depth]); };
    low = std::lower_bound(low, high, byte, [&](const Entry& e, unsigned char b) { return at_depth(e) < b; });
    high = std::upper_bound(low, high, byte, [&](unsigned char b, const Entry& e) { return b < at_depth(e); });
  }
  return longest;
}

void AddedTokenMatcher::take(std::string_view text, std::size_t position, const Entry& entry, std::size_t& consumed,
                             std::vector<TextPart>& parts) const {
  std::size_t begin = position, end = position + entry.pattern.size();
  if (entry.single_word && (ends_in_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) return;
  if (entry.strip_left)
    begin =
        std::max(consumed + trailing_spaces_begin(text.substr(consumed, begin - std::min(begin, consumed))), consumed);
  if (entry.strip_right) end += leading_spaces_length(text.substr(end));
  if (consumed < begin) parts.push_back({{consumed, begin}, kNoToken});
  parts.push_back({{begin, end}, entry.id});
  consumed = end;
}

std::vector<TextPart> AddedTokenMatcher::split(std::string_view text, std::span<const TextRange> allowed) const {
  std::vector<TextPart> parts;
  std::size_t consumed = 0;
  if (!entries_.empty()) {
    for (const TextRange& range : allowed) {
      for (std::size_t i = range.begin; i < range.end;) {
        const Range candidates = by_first_byte_[static_cast<unsigned char>(text[i])];
        const Entry* entry =
            candidates.begin == candidates.end ? nullptr : longest_match(text.substr(i, range.end - i));
        if (entry == nullptr) {
          ++i;
          continue;
        }
        take(text, i, *entry, consumed, parts);
        i += entry->pattern.size();
      }
    }
  }
  if (consumed < text.size()) parts.push_back({{consumed, text.size()}, kNoToken});
  return parts;
}

}  // namespace tensorfold
