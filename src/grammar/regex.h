// Regular expressions as grammars: the common subset of ECMAScript's and Python's syntax that describes regular
// languages. What isn't one (look-around, back references) or would be read differently by the two is refused by name.
// Where the two differ in which characters a class holds, the class is what both hold.
#pragma once

#include <string_view>

#include "grammar/grammar_tree.h"

namespace tensorfold {

/// How characters of the pattern are spelled in the text that is generated.
class CharacterSpelling {
 public:
  virtual ~CharacterSpelling() = default;
  virtual GrammarNode one(const CharacterSet& set) = 0;
  virtual GrammarNode any_number(const CharacterSet& set) = 0;
};

enum class RegexMatch {
  kWhole,   // the pattern describes the whole text
  kSearch,  // it describes a part of the text unless it is anchored (JSON schema's `pattern`)
};

/// Throws Error(kInvalidArgument) that says what isn't supported and where.
GrammarNode parse_regex(GrammarTree& tree, std::string_view pattern, RegexMatch match, CharacterSpelling& spelling);

/// Characters as they are.
class PlainSpelling final : public CharacterSpelling {
 public:
  explicit PlainSpelling(GrammarTree& tree) : tree_(tree) {}
  GrammarNode one(const CharacterSet& set) override { return tree_.characters(set); }
  GrammarNode any_number(const CharacterSet& set) override {
    return tree_.repeat(tree_.characters(set), 0, GrammarTree::kUnbounded);
  }

 private:
  GrammarTree& tree_;
};

}  // namespace tensorfold
