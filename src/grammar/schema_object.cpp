// Objects of schema_rules.h. Declared properties come in the order of the schema, optional ones may be left out,
// additional ones follow; so no key is ever repeated where a repeated one could break the schema.
#include <algorithm>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/limits.h"
#include "grammar/regex.h"
#include "grammar/schema_rules.h"
#include "grammar/utf8.h"

namespace tensorfold {
namespace {

constexpr int kTrieLevelsInRule = 16;  // nesting of expressions inside one rule is limited

/// The names that a key must not be, by character.
struct NameTrie {
  bool is_name = false;
  std::map<std::uint32_t, std::unique_ptr<NameTrie>> next;
};

/// Keys outside a trie's names, written with characters that need no escape, so that no spelling of a name slips
/// through.
class KeyWriter {
 public:
  KeyWriter(GrammarTree& tree, JsonGrammar& json) : tree_(tree) {
    quote_ = tree.literal("\"");
    any_ = tree.add_rule();
    const GrammarNode run = tree.repeat(json.plain_character(), 0, GrammarTree::kUnbounded);
    tree.set_rule(any_, tree.sequence({run, quote_}));
  }

  GrammarNode write(const NameTrie& node, int level) {
    std::vector<GrammarNode> forms;
    if (!node.is_name) forms.push_back(quote_);
    CharacterSet taken{{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};
    std::vector<CharacterRange> branches;
    for (const auto& [character, child] : node.next) branches.push_back({character, character});
    taken = taken.united_with(CharacterSet(std::move(branches)));
    forms.push_back(tree_.sequence({tree_.characters(taken.complement()), tree_.reference(any_)}));
    for (const auto& [character, child] : node.next) {
      GrammarNode below = write(*child, level + 1);
      if (level % kTrieLevelsInRule == 0) {
        const int rule = tree_.add_rule();
        tree_.set_rule(rule, below);
        below = tree_.reference(rule);
      }
      forms.push_back(tree_.sequence({tree_.characters(CharacterSet::of(character)), below}));
    }
    return tree_.choice(std::move(forms));
  }

 private:
  GrammarTree& tree_;
  GrammarNode quote_;
  int any_;
};

constexpr std::size_t kExcludedNameCharactersMax = 512;  // a level of recursion each

}  // namespace

GrammarNode SchemaRules::key_except(const std::vector<Property>& properties) {
  NameTrie root;
  for (const Property& property : properties) {
    const std::vector<std::uint32_t> characters = decode_utf8(property.name);
    if (characters.size() > kExcludedNameCharactersMax) {
      fail(ErrorCode::kInvalidArgument,
           "a property's name is longer than {} characters, which isn't supported beside additional properties",
           kExcludedNameCharactersMax);
    }
    NameTrie* node = &root;
    for (const std::uint32_t character : characters) {
      std::unique_ptr<NameTrie>& next = node->next[character];
      if (next == nullptr) next = std::make_unique<NameTrie>();
      node = next.get();
    }
    node->is_name = true;
  }
  const GrammarNode key = KeyWriter(tree_, json_).write(root, 0);
  return tree_.sequence({tree_.literal("\""), key});
}

SchemaJson SchemaRules::additional_schema(const SchemaJson& schema, const std::string& path) {
  const bool declares = schema.contains("properties") || schema.contains("patternProperties");
  for (const char* keyword : {"additionalProperties", "unevaluatedProperties"}) {
    const auto found = schema.find(keyword);
    if (found == schema.end()) continue;
    if (!found->is_boolean() && !found->is_object()) refuse_schema(keyword, path, "must be a schema");
    return *found;
  }
  // Not said: an object that declares properties has those; one that declares none has any.
  return !declares;
}

std::vector<SchemaRules::Property> SchemaRules::declared_properties(const SchemaJson& schema,
                                                                    const SchemaJson& additional,
                                                                    const std::string& path) {
  SchemaJson required = SchemaJson::array();
  if (const auto found = schema.find("required"); found != schema.end()) {
    const bool valid = found->is_array() && std::all_of(found->begin(), found->end(),
                                                        [](const SchemaJson& name) { return name.is_string(); });
    if (!valid) refuse_schema("required", path, "must be a list of strings");
    required = *found;
  }
  SchemaJson declared = SchemaJson::object();
  if (const auto found = schema.find("properties"); found != schema.end()) {
    if (!found->is_object()) refuse_schema("properties", path, "must be an object");
    declared = *found;
  }
  // A required name that isn't declared is an additional property that must be there.
  for (const SchemaJson& name : required) {
    const std::string& text = name.get_ref<const std::string&>();
    if (!declared.contains(text))
      declared[text] = schema.contains("patternProperties") ? SchemaJson(false) : additional;
  }
  std::vector<Property> properties;
  for (const auto& [name, property] : declared.items()) {
    const bool is_required = std::find(required.begin(), required.end(), name) != required.end();
    const GrammarNode value = rule_for(property, fmt::format("{}/properties/{}", path, name));
    const GrammarNode key = tree_.literal(SchemaJson(name).dump());
    properties.push_back({name, json_.member(key, value), is_required});
  }
  return properties;
}

GrammarNode SchemaRules::members_in_order(const std::vector<Property>& properties,
                                          std::optional<GrammarNode> additional) {
  const auto comma = [this](GrammarNode member) {
    return tree_.sequence({json_.blanks(), tree_.literal(","), json_.blanks(), member});
  };
  const auto as_rule = [this](GrammarNode body) {
    const int rule = tree_.add_rule();
    tree_.set_rule(rule, body);
    return tree_.reference(rule);
  };
  // From the end: what may follow when some member stands already (`rest`), and what may come when none does (`start`).
  GrammarNode rest = tree_.empty();
  GrammarNode start = tree_.empty();
  bool start_may_be_empty = true;
  if (additional) {
    rest = as_rule(tree_.repeat(comma(*additional), 0, GrammarTree::kUnbounded));
    start = tree_.sequence({*additional, rest});
  } else {
    start = tree_.nothing();
  }
  for (std::size_t i = properties.size(); i-- > 0;) {
    const Property& property = properties[i];
    const GrammarNode first = tree_.sequence({property.member, rest});
    const GrammarNode next = tree_.sequence({comma(property.member), rest});
    start = as_rule(property.required ? first : tree_.choice({first, start}));
    rest = as_rule(property.required ? next : tree_.choice({next, rest}));
    start_may_be_empty = start_may_be_empty && !property.required;
  }
  std::vector<GrammarNode> forms;
  if (start_may_be_empty) forms.push_back(tree_.sequence({tree_.literal("{"), json_.blanks(), tree_.literal("}")}));
  forms.push_back(tree_.sequence({tree_.literal("{"), json_.blanks(), start, json_.blanks(), tree_.literal("}")}));
  return tree_.choice(std::move(forms));
}

GrammarNode SchemaRules::dictionary(const SchemaJson& schema, GrammarNode entry, int minimum, const std::string& path) {
  if (minimum > 1) {
    // Two entries may repeat a key, so that counting entries doesn't count properties.
    refuse_schema("minProperties", path, "is supported up to the number of required properties, or 1");
  }
  const int maximum = count_keyword(schema, "maxProperties", GrammarTree::kUnbounded, path);
  if (maximum != GrammarTree::kUnbounded && maximum < minimum) return tree_.nothing();
  return json_.list("{", entry, minimum, maximum, "}");
}

GrammarNode SchemaRules::object(const SchemaJson& schema, const std::string& path) {
  const SchemaJson additional = additional_schema(schema, path);
  const std::vector<Property> properties = declared_properties(schema, additional, path);
  const int minimum = count_keyword(schema, "minProperties", 0, path);
  if (const auto pattern = schema.find("patternProperties"); pattern != schema.end()) {
    if (!pattern->is_object() || pattern->size() != 1 || !properties.empty() || additional != SchemaJson(false) ||
        schema.contains("propertyNames")) {
      refuse_schema("patternProperties", path,
                    "is supported with one pattern, without other properties and without additional ones");
    }
    const std::string& text = pattern->begin().key();
    const GrammarNode value = rule_for(pattern->begin().value(), fmt::format("{}/patternProperties/{}", path, text));
    return dictionary(schema, json_.member(string_of_pattern(text, "patternProperties", path), value), minimum, path);
  }
  std::optional<GrammarNode> key;
  if (const auto names = schema.find("propertyNames"); names != schema.end() && *names != SchemaJson(true)) {
    if (!properties.empty()) refuse_schema("propertyNames", path, "isn't supported beside declared properties");
    key = rule_for({{"allOf", SchemaJson::array({{{"type", "string"}}, *names})}}, path + "/propertyNames");
  }
  if (properties.empty()) {
    if (additional == SchemaJson(false)) {
      return minimum > 0 ? tree_.nothing() : json_.list("{", tree_.nothing(), 0, 0, "}");
    }
    const GrammarNode value = rule_for(additional, path + "/additionalProperties");
    return dictionary(schema, json_.member(key.value_or(json_.string()), value), minimum, path);
  }
  const auto required = static_cast<int>(
      std::count_if(properties.begin(), properties.end(), [](const Property& property) { return property.required; }));
  if (minimum > required) {
    refuse_schema("minProperties", path, "is supported up to the number of required properties, or 1");
  }
  const bool closed = additional == SchemaJson(false);
  const int maximum = count_keyword(schema, "maxProperties", GrammarTree::kUnbounded, path);
  if (maximum != GrammarTree::kUnbounded && (!closed || maximum < static_cast<int>(properties.size()))) {
    if (maximum < required) return tree_.nothing();
    refuse_schema("maxProperties", path,
                  "isn't supported beside optional or additional properties that it would limit");
  }
  if (closed) return members_in_order(properties, std::nullopt);
  const GrammarNode value = rule_for(additional, path + "/additionalProperties");
  return members_in_order(properties, json_.member(key_except(properties), value));
}

}  // namespace tensorfold
