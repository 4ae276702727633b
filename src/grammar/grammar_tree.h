// The one form that every kind of grammar is turned into before xgrammar sees it: rules over literal texts, character
// sets, sequences, choices, repetitions and references. JSON schemas, regular expressions, choices and EBNF texts have
// front ends of their own that build it, so that what a client sent never reaches xgrammar's parsers, every limit is
// checked in one place, and dead ends (rules that no text can finish) are removed before a token is drawn.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/character_set.h"

namespace tensorfold {

/// Index of an expression in its tree.
using GrammarNode = std::int32_t;

class GrammarTree {
 public:
  static constexpr int kUnbounded = -1;

  // Building. Every function throws Error(kInvalidArgument) beyond the limits of base/limits.h.
  GrammarNode empty() { return sequence({}); }
  GrammarNode nothing() { return choice({}); }  // matches no text, not even the empty one
  /// `text` is UTF-8; refuses what isn't.
  GrammarNode literal(std::string_view text);
  GrammarNode characters(const CharacterSet& set);
  GrammarNode sequence(std::vector<GrammarNode> parts);
  GrammarNode choice(std::vector<GrammarNode> parts);
  /// `minimum` to `maximum` times; kUnbounded = no end. At most kGrammarRepeatMax, for a character set
  /// kGrammarCharacterRepeatMax times.
  GrammarNode repeat(GrammarNode part, int minimum, int maximum);
  /// Characters outside `excluded`, `minimum` to `maximum` of them, then `end`, an ASCII text that begins with one of
  /// the excluded: the one form in which xgrammar counts instead of unrolling.
  GrammarNode counted_until(const CharacterSet& excluded, int minimum, int maximum, std::string_view end);
  GrammarNode optional(GrammarNode part) { return repeat(part, 0, 1); }
  GrammarNode reference(int rule);

  int add_rule();
  void set_rule(int rule, GrammarNode body);
  int rule_count() const { return static_cast<int>(rules_.size()); }
  void set_root(int rule) { root_ = rule; }

  /// A grammar text for xgrammar, root rule "root". Parts that can't be finished are left out. Throws
  /// Error(kInvalidArgument) when nothing is left, or when the grammar is larger than the limits once it is written
  /// out.
  std::string to_ebnf() const;

 private:
  enum class Kind { kLiteral, kCharacters, kSequence, kChoice, kRepeat, kCounted, kReference };
  struct Expression {
    Kind kind = Kind::kSequence;
    std::string text;
    CharacterSet set;
    std::vector<GrammarNode> parts;
    int rule = -1;
    int minimum = 0;
    int maximum = 0;
    int depth = 1;  // of nesting below, rules not followed
  };
  class Writer;

  GrammarNode add(Expression expression);
  GrammarNode unrolled(GrammarNode part, int minimum, int maximum);
  /// Of the expression and its parts, rules not followed; counts a little past `limit` at most.
  int count_nodes(GrammarNode node, int limit) const;
  const Expression& at(GrammarNode node) const { return expressions_[static_cast<std::size_t>(node)]; }

  std::vector<Expression> expressions_;
  std::vector<GrammarNode> rules_;  // body of each rule; -1: none yet
  std::size_t literal_bytes_ = 0;
  std::size_t part_count_ = 0;
  int root_ = -1;
};

}  // namespace tensorfold
