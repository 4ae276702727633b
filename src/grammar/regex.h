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
  /// Any number of the set, then `next`.
  virtual GrammarNode any_then(const CharacterSet& set, GrammarNode next) = 0;
};

enum class RegexMatch {
  kWhole,   // the pattern describes the whole text
  kSearch,  // it describes a part of the text unless it is anchored (JSON schema's `pattern`)
};

/// The pattern, then `next`. The whole is written so that whatever follows stands at the end of each rule (a choice of
/// what comes next, as in an automaton): masks are then the same wherever the rule is used, which is what makes them
/// cheap. Throws Error(kInvalidArgument) that says what isn't supported and where.
GrammarNode parse_regex(GrammarTree& tree, std::string_view pattern, RegexMatch match, CharacterSpelling& spelling,
                        GrammarNode next);

/// Characters as they are.
class PlainSpelling final : public CharacterSpelling {
 public:
  explicit PlainSpelling(GrammarTree& tree) : tree_(tree) {}
  GrammarNode one(const CharacterSet& set) override { return tree_.characters(set); }
  GrammarNode any_then(const CharacterSet& set, GrammarNode next) override {
    return tree_.sequence({tree_.repeat(tree_.characters(set), 0, GrammarTree::kUnbounded), next});
  }

 private:
  GrammarTree& tree_;
};

}  // namespace tensorfold
