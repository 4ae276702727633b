// From a source to the text that xgrammar compiles: the front end for each kind, then the tree's own writer.
#include "base/error.h"
#include "base/limits.h"
#include "grammar/ebnf.h"
#include "grammar/grammar.h"
#include "grammar/grammar_parts.h"
#include "grammar/grammar_tree.h"
#include "grammar/json_grammar.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"

namespace tensorfold {
namespace {

GrammarNode choice_of(GrammarTree& tree, const std::vector<std::string>& choices) {
  if (choices.empty()) fail(ErrorCode::kInvalidArgument, "there is nothing to choose from");
  std::vector<GrammarNode> parts;
  for (const std::string& choice : choices) {
    if (choice.empty()) fail(ErrorCode::kInvalidArgument, "a choice must not be empty");
    parts.push_back(tree.literal(choice));
  }
  return tree.choice(std::move(parts));
}

GrammarNode json_text(GrammarTree& tree, GrammarNode value) {
  return tree.sequence({JsonGrammar(tree).blanks(), value});
}

GrammarNode schema_text(GrammarTree& tree, const nlohmann::ordered_json& schema) {
  if (schema.dump().size() > limits::kGrammarSourceBytesMax) {
    fail(ErrorCode::kInvalidArgument, "the schema is longer than {} bytes", limits::kGrammarSourceBytesMax);
  }
  return json_text(tree, parse_json_schema(tree, schema));
}

GrammarNode plain_regex(GrammarTree& tree, const std::string& pattern) {
  PlainSpelling spelling(tree);
  return parse_regex(tree, pattern, RegexMatch::kWhole, spelling, tree.empty());
}

GrammarNode parse(GrammarTree& tree, const GrammarSource& source) {
  switch (source.kind) {
    case GrammarSource::Kind::kJsonSchema:
      return schema_text(tree, source.json);
    case GrammarSource::Kind::kJsonObject:
      return json_text(tree, JsonGrammar(tree).object());
    case GrammarSource::Kind::kRegex:
      return plain_regex(tree, source.text);
    case GrammarSource::Kind::kChoice:
      return choice_of(tree, source.choices);
    case GrammarSource::Kind::kEbnf:
      return tree.reference(parse_ebnf(tree, source.text));
    case GrammarSource::Kind::kParts:
      return assemble_parts(tree, source.parts);
  }
  return tree.nothing();
}

}  // namespace

std::string grammar_text(const GrammarSource& source) {
  GrammarTree tree;
  const GrammarNode body = parse(tree, source);
  const int root = tree.add_rule();
  tree.set_rule(root, body);
  tree.set_root(root);
  return tree.to_ebnf();
}

}  // namespace tensorfold
