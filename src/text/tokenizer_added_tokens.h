// Added tokens: texts that become one id wherever they stand in text that may hold control tokens, before the model
// sees anything. Matched leftmost-longest, with the package's rules for neighbouring white space and words.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_regex.h"
#include "text/tokenizer_vocabulary.h"

namespace tensorfold {

struct AddedToken {
  std::string content;
  std::int32_t id = kNoToken;
  bool special = false, normalized = false, strip_left = false, strip_right = false, single_word = false;
};

/// A stretch of text: an added token, or (id kNoToken) text for the model.
struct TextPart {
  TextRange range;
  std::int32_t id = kNoToken;
};

class AddedTokenMatcher {
 public:
  /// `pattern` is the token's content as it stands in the text searched (normalized or not). Earlier ones win over
  /// equal later ones.
  void add(std::string pattern, const AddedToken& token);
  void finish();
  bool empty() const { return entries_.empty(); }

  /// Cuts `text` at the tokens that lie wholly inside one of the `allowed` ranges (in order, disjoint).
  std::vector<TextPart> split(std::string_view text, std::span<const TextRange> allowed) const;

 private:
  struct Entry {
    std::string pattern;
    std::int32_t id;
    bool strip_left, strip_right, single_word;
  };
  struct Range {
    std::uint32_t begin = 0, end = 0;
  };

  const Entry* longest_match(std::string_view text) const;
  void take(std::string_view text, std::size_t position, const Entry& entry, std::size_t& consumed,
            std::vector<TextPart>& parts) const;

  std::vector<Entry> entries_;            // sorted by pattern
  std::array<Range, 256> by_first_byte_;  // entries that begin with a byte
};

}  // namespace tensorfold
