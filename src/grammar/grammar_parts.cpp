// See grammar_parts.h.
#include "grammar/grammar_parts.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "base/error.h"
#include "grammar/json_grammar.h"
#include "grammar/json_schema.h"

namespace tensorfold {
namespace {

class PartAssembler {
 public:
  explicit PartAssembler(GrammarTree& tree) : tree_(tree), json_(tree) {}

  GrammarNode assemble(const GrammarPart& part) {
    switch (part.kind) {
      case GrammarPart::Kind::kText:
        return tree_.literal(part.text);
      case GrammarPart::Kind::kBlanks:
        return tree_.repeat(tree_.characters(CharacterSet{{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}}), 0, part.maximum);
      case GrammarPart::Kind::kJsonSchema:
        return parse_json_schema(tree_, part.json);
      case GrammarPart::Kind::kJsonObject:
        return json_.object();
      case GrammarPart::Kind::kTextUntil:
        return text_until(part.text);
      case GrammarPart::Kind::kSequence:
        return tree_.sequence(assemble_all(part.parts));
      case GrammarPart::Kind::kChoice:
        return tree_.choice(assemble_all(part.parts));
      case GrammarPart::Kind::kRepeat:
        return tree_.repeat(assemble(part.parts.at(0)), part.minimum, part.maximum);
    }
    return tree_.nothing();
  }

 private:
  std::vector<GrammarNode> assemble_all(const std::vector<GrammarPart>& parts) {
    std::vector<GrammarNode> nodes;
    nodes.reserve(parts.size());
    for (const GrammarPart& part : parts) nodes.push_back(assemble(part));
    return nodes;
  }

  /// A rule for each number of the mark's characters that the text ends with (Knuth, Morris and Pratt's automaton), so
  /// that the first mark ends it and nothing before is ambiguous.
  GrammarNode text_until(const std::string& mark) {
    const auto known = until_rules_.find(mark);
    if (known != until_rules_.end()) return tree_.reference(known->second);
    std::vector<int> rules;
    for (std::size_t state = 0; state < mark.size(); ++state) rules.push_back(tree_.add_rule());
    until_rules_[mark] = rules.front();
    for (std::size_t state = 0; state < mark.size(); ++state) {
      tree_.set_rule(rules[state], after(mark, state, rules));
    }
    return tree_.reference(rules.front());
  }

  GrammarNode after(const std::string& mark, std::size_t state, const std::vector<int>& rules) {
    std::vector<GrammarNode> ways;
    std::vector<CharacterRange> named;
    std::string seen;
    for (const char character : mark) {
      if (seen.find(character) != std::string::npos) continue;
      seen += character;
      const auto code = static_cast<unsigned char>(character);
      const std::size_t next = next_state(mark.substr(0, state) + character, mark);
      if (next == 0) continue;
      named.push_back({code, code});
      const GrammarNode taken = tree_.literal(std::string(1, character));
      ways.push_back(next == mark.size() ? taken : tree_.sequence({taken, tree_.reference(rules[next])}));
    }
    ways.push_back(tree_.sequence(
        {tree_.characters(CharacterSet(std::move(named)).complement()), tree_.reference(rules.front())}));
    return tree_.choice(std::move(ways));
  }

  /// How many of the mark's characters `text` ends with.
  static std::size_t next_state(const std::string& text, const std::string& mark) {
    std::size_t length = std::min(text.size(), mark.size());
    while (!text.ends_with(std::string_view(mark).substr(0, length))) --length;
    return length;
  }

  GrammarTree& tree_;
  JsonGrammar json_;
  std::map<std::string, int> until_rules_;
};

}  // namespace

GrammarNode assemble_parts(GrammarTree& tree, const GrammarPart& part) {
  return PartAssembler(tree).assemble(part);
}

}  // namespace tensorfold
