// The parts of JSON texts as grammar expressions: blanks, strings, numbers, any value. Shared by json_object and by
// schemas. What is generated is JSON that every parser reads alike: no lone surrogates, numbers within a double's
// range.
#pragma once

#include <optional>
#include <string_view>

#include "grammar/grammar_tree.h"
#include "grammar/regex.h"

namespace tensorfold {

class JsonGrammar final : public CharacterSpelling {
 public:
  explicit JsonGrammar(GrammarTree& tree) : tree_(tree) {}

  /// What JSON strings can't hold as it is.
  static const CharacterSet& escaped_set();

  GrammarNode blanks();           // at most kGrammarBlanksMax between two tokens
  GrammarNode value();            // any
  GrammarNode object();           // any
  GrammarNode array();            // any
  GrammarNode string();           // any
  GrammarNode number();           // any
  GrammarNode integer();          // any of up to 18 digits
  GrammarNode plain_character();  // one inside a string that isn't escaped
  GrammarNode escape();           // any escape sequence
  /// Characters as a string's value spells them (CharacterSpelling).
  GrammarNode one(const CharacterSet& set) override;
  GrammarNode any_then(const CharacterSet& set, GrammarNode next) override;
  /// The exact text.
  GrammarNode literal(std::string_view text) { return tree_.literal(text); }

  /// open, entries parted by commas, close. `entries` may be none.
  GrammarNode list(const char* open, GrammarNode entry, int minimum, int maximum, const char* close);
  GrammarNode member(GrammarNode key, GrammarNode value);

 private:
  GrammarNode spelled_escapes(const CharacterSet& set);  // of its members that need one
  /// The rule is made when it is first used.
  template <typename Make>
  GrammarNode shared(std::optional<int>& rule, Make make);

  GrammarTree& tree_;
  std::optional<int> blanks_, value_, object_, array_, string_, number_, integer_, escape_;
};

}  // namespace tensorfold
