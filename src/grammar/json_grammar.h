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
  GrammarNode character();        // one character inside a string
  GrammarNode plain_character();  // one that isn't escaped
  /// One of the set, any number of them, as a string's value spells them. A run without escapes is one loop, so that
  /// what has been written needn't be remembered character by character.
  GrammarNode one(const CharacterSet& set) override;
  GrammarNode any_number(const CharacterSet& set) override;
  /// The exact text.
  GrammarNode literal(std::string_view text) { return tree_.literal(text); }

  /// open, entries parted by commas, close. `entries` may be none.
  GrammarNode list(const char* open, GrammarNode entry, int minimum, int maximum, const char* close);
  GrammarNode member(GrammarNode key, GrammarNode value);

 private:
  GrammarNode text();  // characters of any string
  GrammarNode escape();                                  // any escape sequence
  GrammarNode spelled_escapes(const CharacterSet& set);  // of its members that need one
  GrammarNode runs(GrammarNode plain, GrammarNode escape);
  /// The rule is made when it is first used.
  template <typename Make>
  GrammarNode shared(std::optional<int>& rule, Make make);

  GrammarTree& tree_;
  std::optional<int> blanks_, value_, object_, array_, string_, number_, integer_, character_, escape_, text_;
};

}  // namespace tensorfold
