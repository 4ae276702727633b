// What the values of one JSON type look like under a schema whose references and combinations are already resolved: the
// part of the schema front end that turns keywords into expressions. The walk over schemas is json_schema.cpp's.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/grammar_tree.h"
#include "grammar/json_grammar.h"
#include "grammar/schema_merge.h"

namespace tensorfold {

class SchemaRules {
 public:
  explicit SchemaRules(GrammarTree& tree) : tree_(tree), json_(tree) {}
  virtual ~SchemaRules() = default;

 protected:
  /// A reference to the rule of a schema inside this one.
  virtual GrammarNode rule_for(const SchemaJson& schema, const std::string& path) = 0;

  GrammarTree& tree() { return tree_; }
  JsonGrammar& json() { return json_; }

  /// enum and const.
  GrammarNode listed_values(const SchemaJson& schema, const std::string& path);
  GrammarNode object(const SchemaJson& schema, const std::string& path);
  GrammarNode array(const SchemaJson& schema, const std::string& path);
  GrammarNode string(const SchemaJson& schema, const std::string& path);
  GrammarNode number(const SchemaJson& schema, bool whole_only, const std::string& path);

 private:
  struct Property {
    std::string name;
    GrammarNode member;  // key, colon, value
    bool required;
  };
  std::vector<Property> declared_properties(const SchemaJson& schema, const SchemaJson& additional,
                                            const std::string& path);
  /// What "additionalProperties" and "unevaluatedProperties" come to: false, true or a schema.
  SchemaJson additional_schema(const SchemaJson& schema, const std::string& path);
  GrammarNode members_in_order(const std::vector<Property>& properties, std::optional<GrammarNode> additional);
  GrammarNode key_except(const std::vector<Property>& properties);
  GrammarNode dictionary(const SchemaJson& schema, GrammarNode entry, int minimum, const std::string& path);
  GrammarNode prefixed_array(const SchemaJson& schema, int minimum, int maximum, const std::string& path);
  GrammarNode key_of_pattern(const std::string& pattern, const std::string& path);
  /// Characters of a string, escapes included, and the closing quote.
  GrammarNode bounded_text(int minimum, int maximum);
  GrammarNode string_of_pattern(const std::string& pattern, const std::string& keyword, const std::string& path);

  GrammarTree& tree_;
  JsonGrammar json_;
  std::map<std::pair<int, int>, int> bounded_texts_;
};

/// A nonnegative integer keyword; `otherwise` when absent.
int count_keyword(const SchemaJson& schema, const char* keyword, int otherwise, const std::string& path);

}  // namespace tensorfold
