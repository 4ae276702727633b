// See json_grammar.h.
#include "grammar/json_grammar.h"

#include <string>
#include <vector>

#include "base/error.h"
#include "base/limits.h"

namespace tensorfold {
namespace {

constexpr int kNumberDigitsMax = 18;  // of a number's whole part and of its fraction: fits 64 bits

CharacterSet ascii_set(std::string_view characters) {
  std::vector<CharacterRange> ranges;
  for (const char c : characters) {
    const auto character = static_cast<unsigned char>(c);
    ranges.push_back({character, character});
  }
  return CharacterSet(std::move(ranges));
}

const CharacterSet& digit_set() {
  static const CharacterSet set{{'0', '9'}};
  return set;
}
const CharacterSet& hexadecimal_set() {
  static const CharacterSet set{{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
  return set;
}

}  // namespace

const CharacterSet& JsonGrammar::escaped_set() {
  static const CharacterSet set{{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};
  return set;
}

template <typename Make>
GrammarNode JsonGrammar::shared(std::optional<int>& rule, Make make) {
  if (!rule) {
    rule = tree_.add_rule();
    tree_.set_rule(*rule, make());
  }
  return tree_.reference(*rule);
}

GrammarNode JsonGrammar::blanks() {
  return shared(blanks_,
                [this] { return tree_.repeat(tree_.characters(ascii_set(" \t\n")), 0, limits::kGrammarBlanksMax); });
}

GrammarNode JsonGrammar::plain_character() {
  return tree_.characters(escaped_set().complement());
}

GrammarNode JsonGrammar::escape() {
  return shared(escape_, [this] {
    const GrammarNode hexadecimal = tree_.characters(hexadecimal_set());
    const auto four = [&](std::string_view first, std::string_view second) {
      return tree_.sequence({tree_.literal("\\u"), tree_.characters(ascii_set(first)),
                             tree_.characters(ascii_set(second)), hexadecimal, hexadecimal});
    };
    return tree_.choice({
        tree_.sequence({tree_.literal("\\"), tree_.characters(ascii_set("\"\\/bfnrt"))}),
        four("0123456789abcefABCEF", "0123456789abcdefABCDEF"),
        four("dD", "01234567"),
        tree_.sequence({four("dD", "89abAB"), four("dD", "cdefCDEF")}),
    });
  });
}

GrammarNode JsonGrammar::string() {
  return shared(string_, [this] {
    return tree_.sequence({tree_.literal("\""), any_then(CharacterSet::all(), tree_.literal("\""))});
  });
}

GrammarNode JsonGrammar::spelled_escapes(const CharacterSet& set) {
  std::vector<GrammarNode> parts;
  // The short escapes where there are any, \u00XX for other control characters.
  std::string letters;
  std::string last_digits[2];
  const CharacterSet escaped = set.intersected_with(escaped_set());
  for (const CharacterRange& range : escaped.ranges()) {
    for (std::uint32_t character = range.first; character <= range.last; ++character) {
      static constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t";
      const std::size_t found = kEscaped.find(static_cast<char>(character));
      if (found != std::string_view::npos) {
        letters += "\"\\bfnrt"[found];
      } else {
        last_digits[character >> 4] += "0123456789abcdef"[character & 15];
      }
    }
  }
  const auto add = [&](const char* prefix, const std::string& ends) {
    if (!ends.empty()) parts.push_back(tree_.sequence({tree_.literal(prefix), tree_.characters(ascii_set(ends))}));
  };
  add("\\", letters);
  add("\\u000", last_digits[0]);
  add("\\u001", last_digits[1]);
  return tree_.choice(std::move(parts));
}

GrammarNode JsonGrammar::one(const CharacterSet& set) {
  const CharacterSet plain = set.without(escaped_set());
  if (set.intersected_with(escaped_set()).is_empty()) return tree_.characters(plain);
  const GrammarNode escapes = spelled_escapes(set);
  return plain.is_empty() ? escapes : tree_.choice({tree_.characters(plain), escapes});
}

GrammarNode JsonGrammar::any_then(const CharacterSet& set, GrammarNode next) {
  const CharacterSet plain = set.without(escaped_set());
  const bool all = set.ranges() == CharacterSet::all().ranges();
  const bool escapes = !set.intersected_with(escaped_set()).is_empty();
  const GrammarNode run =
      plain.is_empty() ? tree_.empty() : tree_.repeat(tree_.characters(plain), 0, GrammarTree::kUnbounded);
  if (!escapes) return tree_.sequence({run, next});
  const int rule = tree_.add_rule();
  const GrammarNode escaped = all ? escape() : spelled_escapes(set);
  tree_.set_rule(rule,
                 tree_.choice({tree_.sequence({run, next}), tree_.sequence({run, escaped, tree_.reference(rule)})}));
  return tree_.reference(rule);
}

GrammarNode JsonGrammar::integer() {
  return shared(integer_, [this] {
    const GrammarNode digits = tree_.repeat(tree_.characters(digit_set()), 0, kNumberDigitsMax - 1);
    const GrammarNode nonzero = tree_.sequence({tree_.characters(CharacterSet{{'1', '9'}}), digits});
    return tree_.sequence({tree_.optional(tree_.literal("-")), tree_.choice({tree_.literal("0"), nonzero})});
  });
}

GrammarNode JsonGrammar::number() {
  return shared(number_, [this] {
    const GrammarNode digit = tree_.characters(digit_set());
    const GrammarNode fraction = tree_.sequence({tree_.literal("."), tree_.repeat(digit, 1, kNumberDigitsMax)});
    const GrammarNode exponent =
        tree_.sequence({tree_.characters(ascii_set("eE")), tree_.optional(tree_.characters(ascii_set("+-"))),
                        tree_.repeat(digit, 1, 2)});
    return tree_.sequence({integer(), tree_.optional(fraction), tree_.optional(exponent)});
  });
}

GrammarNode JsonGrammar::list(const char* open, GrammarNode entry, int minimum, int maximum, const char* close) {
  const bool bounded = maximum != GrammarTree::kUnbounded;
  std::vector<GrammarNode> forms;
  if (minimum == 0) forms.push_back(tree_.sequence({tree_.literal(open), blanks(), tree_.literal(close)}));
  if (!bounded || maximum > 0) {
    const GrammarNode more = tree_.sequence({blanks(), tree_.literal(","), blanks(), entry});
    const int least = std::max(minimum, 1) - 1;
    const GrammarNode rest = tree_.repeat(more, least, bounded ? maximum - 1 : GrammarTree::kUnbounded);
    forms.push_back(tree_.sequence({tree_.literal(open), blanks(), entry, rest, blanks(), tree_.literal(close)}));
  }
  return tree_.choice(std::move(forms));
}

GrammarNode JsonGrammar::member(GrammarNode key, GrammarNode value) {
  return tree_.sequence({key, blanks(), tree_.literal(":"), blanks(), value});
}

GrammarNode JsonGrammar::value() {
  if (value_) return tree_.reference(*value_);  // it contains itself: the rule exists before its body
  value_ = tree_.add_rule();
  tree_.set_rule(*value_, tree_.choice({object(), array(), string(), number(), tree_.literal("true"),
                                        tree_.literal("false"), tree_.literal("null")}));
  return tree_.reference(*value_);
}

GrammarNode JsonGrammar::object() {
  if (object_) return tree_.reference(*object_);
  object_ = tree_.add_rule();
  const GrammarNode entry = member(string(), value());
  tree_.set_rule(*object_, list("{", entry, 0, GrammarTree::kUnbounded, "}"));
  return tree_.reference(*object_);
}

GrammarNode JsonGrammar::array() {
  if (array_) return tree_.reference(*array_);
  array_ = tree_.add_rule();
  tree_.set_rule(*array_, list("[", value(), 0, GrammarTree::kUnbounded, "]"));
  return tree_.reference(*array_);
}

}  // namespace tensorfold
