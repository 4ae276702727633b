// See ebnf.h.
#include "grammar/ebnf.h"

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/limits.h"
#include "grammar/hexadecimal_escape.h"
#include "grammar/utf8.h"

namespace tensorfold {
namespace {

constexpr int kGroupDepthMax = limits::kGrammarDepthMax / 4;  // a group takes up to three levels
constexpr std::size_t kNameBytesMax = 256;

bool is_name_start(std::uint32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_name_character(std::uint32_t c) {
  return is_name_start(c) || (c >= '0' && c <= '9') || c == '-' || c == '.';
}

class EbnfParser {
 public:
  EbnfParser(GrammarTree& tree, std::string_view text) : tree_(tree), characters_(decode_utf8(text)) {}

  int parse() {
    for (skip_blanks(); !at_end(); skip_blanks()) parse_rule();
    for (const auto& [name, rule] : rules_) {
      if (!rule.is_defined) {
        fail(ErrorCode::kInvalidArgument, "the grammar uses the rule '{}' (line {}) and doesn't define it", name,
             rule.line);
      }
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) fail(ErrorCode::kInvalidArgument, "the grammar has no rule 'root'");
    return root->second.index;
  }

 private:
  struct Rule {
    int index = 0;
    bool is_defined = false;
    int line = 0;
  };

  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorCode::kInvalidArgument, "the grammar has {} in line {}", what, line_);
  }
  bool at_end() const { return position_ == characters_.size(); }
  std::uint32_t peek(std::size_t ahead = 0) const {
    return position_ + ahead < characters_.size() ? characters_[position_ + ahead] : 0;
  }
  std::uint32_t take(const char* missing) {
    if (at_end()) refuse(missing);
    const std::uint32_t character = characters_[position_++];
    if (character == '\n') ++line_;
    return character;
  }
  bool take_if(std::uint32_t character) {
    if (at_end() || peek() != character) return false;
    take("");
    return true;
  }

  void skip_blanks() {
    while (!at_end()) {
      const std::uint32_t c = peek();
      if (c == '#') {
        while (!at_end() && peek() != '\n') ++position_;
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
        take("");
      } else {
        return;
      }
    }
  }

  std::string parse_name() {
    if (!is_name_start(peek())) refuse("something else where a rule's name is expected");
    std::string name;
    while (is_name_character(peek())) {
      name += static_cast<char>(take(""));
      if (name.size() > kNameBytesMax) refuse("a rule name that is too long");
    }
    return name;
  }

  bool take_definition_mark() {
    if (peek() != ':' || peek(1) != ':' || peek(2) != '=') return false;
    position_ += 3;
    return true;
  }

  /// A name followed by ::= begins the next rule.
  bool at_rule_start() {
    const std::size_t position = position_;
    const int line = line_;
    bool found = false;
    if (is_name_start(peek())) {
      while (is_name_character(peek())) ++position_;
      skip_blanks();
      found = peek() == ':' && peek(1) == ':' && peek(2) == '=';
    }
    position_ = position;
    line_ = line;
    return found;
  }

  Rule& rule_named(const std::string& name) {
    const auto [entry, is_new] = rules_.try_emplace(name);
    if (is_new) {
      entry->second.index = tree_.add_rule();
      entry->second.line = line_;
    }
    return entry->second;
  }

  void parse_rule() {
    const std::string name = parse_name();
    skip_blanks();
    if (!take_definition_mark()) refuse(fmt::format("the rule '{}' without '::='", name));
    if (rule_named(name).is_defined) refuse(fmt::format("a second definition of the rule '{}'", name));
    rule_named(name).is_defined = true;
    const GrammarNode body = parse_choice(0);
    tree_.set_rule(rule_named(name).index, body);
  }

  GrammarNode parse_choice(int depth) {
    if (depth > kGroupDepthMax) refuse("groups nested too deeply");
    std::vector<GrammarNode> parts;
    do {
      parts.push_back(parse_sequence(depth));
      skip_blanks();
    } while (take_if('|'));
    return tree_.choice(std::move(parts));
  }

  GrammarNode parse_sequence(int depth) {
    std::vector<GrammarNode> parts;
    for (skip_blanks(); !at_end() && peek() != '|' && peek() != ')' && !at_rule_start(); skip_blanks()) {
      parts.push_back(parse_quantified(depth));
    }
    return tree_.sequence(std::move(parts));
  }

  GrammarNode parse_quantified(int depth) {
    const GrammarNode part = parse_element(depth);
    skip_blanks();
    if (take_if('*')) return tree_.repeat(part, 0, GrammarTree::kUnbounded);
    if (take_if('+')) return tree_.repeat(part, 1, GrammarTree::kUnbounded);
    if (take_if('?')) return tree_.optional(part);
    if (!take_if('{')) return part;
    skip_blanks();
    const std::optional<int> minimum = parse_count();
    if (!minimum) refuse("a '{' without a number");
    int maximum = *minimum;
    skip_blanks();
    if (take_if(',')) {
      skip_blanks();
      maximum = parse_count().value_or(GrammarTree::kUnbounded);
      skip_blanks();
    }
    if (!take_if('}')) refuse("a '{' without '}'");
    if (maximum != GrammarTree::kUnbounded && maximum < *minimum) {
      refuse("a repetition whose maximum is below its minimum");
    }
    return tree_.repeat(part, *minimum, maximum);
  }

  std::optional<int> parse_count() {
    std::optional<int> count;
    while (peek() >= '0' && peek() <= '9') {
      count = count.value_or(0) * 10 + static_cast<int>(take("") - '0');
      if (*count > limits::kGrammarRepeatMax) {
        refuse(fmt::format("a repetition of more than {} times", limits::kGrammarRepeatMax));
      }
    }
    return count;
  }

  GrammarNode parse_element(int depth) {
    if (take_if('(')) {
      if (peek() == '=') refuse("a look-ahead, which isn't supported,");
      const GrammarNode inner = parse_choice(depth + 1);
      if (!take_if(')')) refuse("a '(' without ')'");
      return inner;
    }
    if (take_if('"')) return parse_text();
    if (take_if('[')) return parse_class();
    if (take_if('.')) return tree_.characters(CharacterSet::of('\n').complement());
    return tree_.reference(rule_named(parse_name()).index);
  }

  GrammarNode parse_text() {
    std::string text;
    while (!take_if('"')) {
      if (at_end() || peek() == '\n') refuse("a '\"' that isn't closed");
      append_utf8(take_if('\\') ? parse_escape() : take(""), text);
    }
    return tree_.literal(text);
  }

  GrammarNode parse_class() {
    const bool negated = take_if('^');
    std::vector<CharacterRange> ranges;
    while (!take_if(']')) {
      if (at_end() || peek() == '\n') refuse("a '[' that isn't closed");
      const std::uint32_t first = parse_class_character();
      std::uint32_t last = first;
      if (peek() == '-' && peek(1) != ']' && peek(1) != 0) {
        take("");
        last = parse_class_character();
        if (last < first) refuse("a class range whose end is before its start");
      }
      ranges.push_back({first, last});
    }
    const CharacterSet set(std::move(ranges));
    return tree_.characters(negated ? set.complement() : set);
  }

  std::uint32_t parse_class_character() {
    if (!take_if('\\')) return take("a '[' that isn't closed");
    const std::uint32_t c = peek();
    if (c == 'd' || c == 'D' || c == 'w' || c == 'W' || c == 's' || c == 'S') {
      refuse("a class such as \\d inside [...], which isn't supported: write the range");
    }
    return parse_escape();
  }

  std::uint32_t parse_escape() {
    const std::uint32_t character = take("a '\\' at its end");
    switch (character) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'b':
        return '\b';
      case 'a':
        return '\a';
      case '0':
        return 0;
      case 'x':
        return parse_hexadecimal(2);
      case 'u':
        return parse_hexadecimal(4);
      case 'U':
        return parse_hexadecimal(8);
      default:
        break;
    }
    if (is_name_start(character) || (character >= '1' && character <= '9')) refuse("an unknown escape");
    return character;
  }

  std::uint32_t parse_hexadecimal(int length) {
    return parse_hexadecimal_escape(
        length, [this](const char* what) { return take(what); }, [this](const char* what) { refuse(what); });
  }

  GrammarTree& tree_;
  std::vector<std::uint32_t> characters_;
  std::size_t position_ = 0;
  int line_ = 1;
  std::unordered_map<std::string, Rule> rules_;
};

}  // namespace

int parse_ebnf(GrammarTree& tree, std::string_view text) {
  if (text.size() > limits::kGrammarSourceBytesMax) {
    fail(ErrorCode::kInvalidArgument, "the grammar is longer than {} bytes", limits::kGrammarSourceBytesMax);
  }
  return EbnfParser(tree, text).parse();
}

}  // namespace tensorfold
