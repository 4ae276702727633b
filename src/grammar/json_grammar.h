// The parts of JSON texts as grammar expressions: blanks, strings, numbers, any value. Shared by json_object and by
// schemas. What is generated is JSON that every parser reads alike: no lone surrogates, numbers within a double's
// range.
#pragma once

#include <optional>
#include <string_view>

#include "grammar/grammar_tree.h"

namespace tensorfold {

class JsonGrammar {
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
  GrammarNode character();        // one character inside a string
  GrammarNode plain_character();  // one that isn't escaped
  /// `characters` of a string's value as they are spelled in it.
  GrammarNode spell(const CharacterSet& set);
  /// The exact text.
  GrammarNode literal(std::string_view text) { return tree_.literal(text); }

  /// open, entries parted by commas, close. `entries` may be none.
  GrammarNode list(const char* open, GrammarNode entry, int minimum, int maximum, const char* close);
  GrammarNode member(GrammarNode key, GrammarNode value);

 private:
  /// The rule is made when it is first used.
  template <typename Make>
  GrammarNode shared(std::optional<int>& rule, Make make);

  GrammarTree& tree_;
  std::optional<int> blanks_, value_, object_, array_, string_, number_, integer_, character_;
};

}  // namespace tensorfold
