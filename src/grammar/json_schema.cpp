// See json_schema.h. Each schema becomes a rule; rules are filled from a queue, so that nesting and references that
// lead back never recurse here. What the values of one type look like is in schema_values and schema_object.
#include "grammar/json_schema.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/limits.h"
#include "grammar/schema_rules.h"

namespace tensorfold {
namespace {

constexpr std::array<std::string_view, 7> kTypes = {"object",  "array",   "string", "number",
                                                    "integer", "boolean", "null"};

struct KeywordType {
  std::string_view keyword;
  std::string_view type;
};
/// What is enforced, with the type whose values each keyword speaks about ("" = any).
constexpr KeywordType kKeywords[] = {
    {"type", ""},
    {"enum", ""},
    {"const", ""},
    {"anyOf", ""},
    {"oneOf", ""},
    {"allOf", ""},
    {"$ref", ""},
    {"properties", "object"},
    {"required", "object"},
    {"additionalProperties", "object"},
    {"patternProperties", "object"},
    {"propertyNames", "object"},
    {"minProperties", "object"},
    {"maxProperties", "object"},
    {"unevaluatedProperties", "object"},
    {"items", "array"},
    {"prefixItems", "array"},
    {"minItems", "array"},
    {"maxItems", "array"},
    {"uniqueItems", "array"},
    {"unevaluatedItems", "array"},
    {"minLength", "string"},
    {"maxLength", "string"},
    {"pattern", "string"},
    {"format", "string"},
    {"minimum", "number"},
    {"maximum", "number"},
    {"exclusiveMinimum", "number"},
    {"exclusiveMaximum", "number"},
    {"multipleOf", "number"},
};

const KeywordType* find_keyword(std::string_view keyword) {
  const auto found = std::find_if(std::begin(kKeywords), std::end(kKeywords),
                                  [keyword](const KeywordType& known) { return known.keyword == keyword; });
  return found == std::end(kKeywords) ? nullptr : found;
}

void check_keywords(const SchemaJson& schema, const std::string& path) {
  for (const auto& [keyword, value] : schema.items()) {
    if (is_annotation(keyword)) continue;
    if (keyword == "nullable") refuse_schema(keyword, path, R"(isn't JSON Schema: write "type": [..., "null"])");
    if (find_keyword(keyword) == nullptr) refuse_schema(keyword, path, "isn't supported");
  }
}

class SchemaCompiler final : public SchemaRules {
 public:
  SchemaCompiler(GrammarTree& tree, const SchemaJson& document) : SchemaRules(tree), merger_(document) {}

  GrammarNode compile(const SchemaJson& schema) {
    const GrammarNode root = rule_for(schema, "#");
    while (!queue_.empty()) {
      const Pending pending = std::move(queue_.back());
      queue_.pop_back();
      tree().set_rule(pending.rule, body_of(pending.schema, pending.path));
    }
    return root;
  }

  GrammarNode rule_for(const SchemaJson& schema, const std::string& path) override {
    // References are relative to the document, so equal texts mean equal values, wherever they stand.
    const auto [entry, is_new] = rules_.try_emplace(schema.dump(), 0);
    if (is_new) {
      dumped_bytes_ += entry->first.size();
      if (dumped_bytes_ > kDumpedBytesMax) {
        fail(ErrorCode::kInvalidArgument, "the schema is too large: its parts repeat or nest too much");
      }
      entry->second = tree().add_rule();
      queue_.push_back({entry->second, schema, path});
    }
    return tree().reference(entry->second);
  }

 private:
  static constexpr std::size_t kDumpedBytesMax = 16 * limits::kGrammarSourceBytesMax;
  struct Pending {
    int rule;
    SchemaJson schema;
    std::string path;
  };

  GrammarNode body_of(const SchemaJson& schema, const std::string& path) {
    if (schema.is_boolean()) return schema.get<bool>() ? json().value() : tree().nothing();
    if (!schema.is_object()) {
      fail(ErrorCode::kInvalidArgument, "the schema at {} must be an object or a boolean", path);
    }
    check_keywords(schema, path);
    if (const auto reference = schema.find("$ref"); reference != schema.end()) {
      SchemaJson rest = schema;
      rest.erase("$ref");
      if (says_nothing(rest)) return rule_for(merger_.resolve(*reference, path), reference->get<std::string>());
    }
    const SchemaJson flat = merger_.flatten(schema, path);
    if (!flat.is_object()) return body_of(flat, path);
    check_keywords(flat, path);
    if (flat.contains("anyOf")) return alternatives(flat, "anyOf", path);
    if (flat.contains("oneOf")) return alternatives(flat, "oneOf", path);
    return values_of(flat, path);
  }

  GrammarNode alternatives(const SchemaJson& schema, const char* keyword, const std::string& path) {
    const SchemaJson branches = schema[keyword];
    if (!branches.is_array() || branches.empty()) refuse_schema(keyword, path, "must be a nonempty list");
    SchemaJson base = schema;
    base.erase(keyword);
    if (keyword == std::string_view("oneOf")) check_exclusive(branches, path);
    std::vector<GrammarNode> nodes;
    for (std::size_t i = 0; i < branches.size(); ++i) {
      const std::string branch_path = fmt::format("{}/{}/{}", path, keyword, i);
      if (says_nothing(base)) {
        nodes.push_back(rule_for(branches[i], branch_path));
      } else {
        if (branches[i].is_object()) check_keywords(branches[i], branch_path);
        nodes.push_back(rule_for({{"allOf", SchemaJson::array({base, branches[i]})}}, branch_path));
      }
    }
    return tree().choice(std::move(nodes));
  }

  /// oneOf means exactly one: two branches that a value could satisfy at once can't be told apart by a grammar.
  void check_exclusive(const SchemaJson& branches, const std::string& path) {
    std::vector<SchemaJson> flat;
    for (const SchemaJson& branch : branches) flat.push_back(merger_.flatten(branch, path));
    for (std::size_t i = 0; i < flat.size(); ++i) {
      for (std::size_t j = i + 1; j < flat.size(); ++j) {
        if (exclude_each_other(flat[i], flat[j], path)) continue;
        refuse_schema("oneOf", path,
                      fmt::format("has branches {} and {}, which one value could satisfy both: use anyOf", i, j));
      }
    }
  }

  bool exclude_each_other(const SchemaJson& a, const SchemaJson& b, const std::string& path) {
    if (a == SchemaJson(false) || b == SchemaJson(false)) return true;
    if (!a.is_object() || !b.is_object()) return false;
    const std::vector<SchemaJson> left = finite_values(a);
    const std::vector<SchemaJson> right = finite_values(b);
    if (!left.empty() && !right.empty()) {
      return std::none_of(left.begin(), left.end(), [&right](const SchemaJson& value) {
        return std::find(right.begin(), right.end(), value) != right.end();
      });
    }
    if (!have_common_type(possible_types(a), possible_types(b))) return true;
    return have_exclusive_property(a, b, path);
  }

  /// Both demand a property whose values differ (a discriminator).
  bool have_exclusive_property(const SchemaJson& a, const SchemaJson& b, const std::string& path) {
    const auto demands = [](const SchemaJson& schema, const std::string& name) {
      const auto required = schema.find("required");
      return required != schema.end() && required->is_array() &&
             std::find(required->begin(), required->end(), name) != required->end();
    };
    const bool objects = possible_types(a) == std::vector<std::string>{"object"} &&
                         possible_types(b) == std::vector<std::string>{"object"};
    const auto mine = a.find("properties");
    const auto other = b.find("properties");
    if (!objects || mine == a.end() || other == b.end() || !mine->is_object() || !other->is_object()) return false;
    for (const auto& [name, schema] : mine->items()) {
      if (!other->contains(name) || !demands(a, name) || !demands(b, name)) continue;
      const SchemaJson first = merger_.flatten(schema, path);
      const SchemaJson second = merger_.flatten((*other)[name], path);
      if (first.is_object() && second.is_object() && !finite_values(first).empty() && !finite_values(second).empty() &&
          exclude_each_other(first, second, path)) {
        return true;
      }
    }
    return false;
  }

  static std::vector<SchemaJson> finite_values(const SchemaJson& schema) {
    if (schema.contains("const")) return {schema["const"]};
    if (!schema.contains("enum") || !schema["enum"].is_array()) return {};
    return {schema["enum"].begin(), schema["enum"].end()};
  }

  static std::vector<std::string> possible_types(const SchemaJson& schema) {
    std::vector<std::string> types;
    for (const SchemaJson& value : finite_values(schema)) types.push_back(type_of(value));
    const auto type = schema.find("type");
    if (types.empty() && type != schema.end() && type->is_string()) types.push_back(type->get<std::string>());
    if (types.empty() && type != schema.end() && type->is_array()) {
      for (const SchemaJson& name : *type) {
        if (name.is_string()) types.push_back(name.get<std::string>());
      }
    }
    if (types.empty()) types.assign(kTypes.begin(), kTypes.end());
    return types;
  }

  static std::string type_of(const SchemaJson& value) {
    if (value.is_object()) return "object";
    if (value.is_array()) return "array";
    if (value.is_string()) return "string";
    if (value.is_boolean()) return "boolean";
    return value.is_null() ? "null" : "number";
  }

  static bool have_common_type(const std::vector<std::string>& a, const std::vector<std::string>& b) {
    const auto kind = [](const std::string& type) { return type == "integer" ? std::string("number") : type; };
    return std::any_of(a.begin(), a.end(), [&](const std::string& type) {
      return std::any_of(b.begin(), b.end(), [&](const std::string& other) { return kind(type) == kind(other); });
    });
  }

  GrammarNode values_of(const SchemaJson& schema, const std::string& path) {
    if (says_nothing(schema)) return json().value();
    if (schema.contains("const") || schema.contains("enum")) return listed_values(schema, path);
    std::vector<GrammarNode> forms;
    for (const std::string& type : types_of(schema, path)) forms.push_back(values_of_type(schema, type, path));
    return tree().choice(std::move(forms));
  }

  GrammarNode values_of_type(const SchemaJson& schema, const std::string& type, const std::string& path) {
    if (type == "object") return object(schema, path);
    if (type == "array") return array(schema, path);
    if (type == "string") return string(schema, path);
    if (type == "number" || type == "integer") return number(schema, type == "integer", path);
    if (type == "boolean") return tree().choice({tree().literal("true"), tree().literal("false")});
    return tree().literal("null");
  }

  /// "type", or the types that the schema's keywords speak about.
  static std::vector<std::string> types_of(const SchemaJson& schema, const std::string& path) {
    std::vector<std::string> types;
    const auto add = [&](std::string_view name) {
      if (std::find(types.begin(), types.end(), name) == types.end()) types.emplace_back(name);
    };
    const auto type = schema.find("type");
    if (type == schema.end()) {
      for (const auto& [keyword, value] : schema.items()) {
        if (const KeywordType* known = find_keyword(keyword)) add(known->type);
      }
      return types;
    }
    const SchemaJson names = type->is_array() ? *type : SchemaJson::array({*type});
    for (const SchemaJson& name : names) {
      const bool known =
          name.is_string() && std::find(kTypes.begin(), kTypes.end(), name.get<std::string>()) != kTypes.end();
      if (!known)
        refuse_schema("type", path, "must be object, array, string, number, integer, boolean, null or a list of them");
      add(name.get<std::string>());
    }
    if (types.empty()) refuse_schema("type", path, "must not be an empty list");
    // Every integer is a number: one form is enough.
    if (std::find(types.begin(), types.end(), "number") != types.end()) std::erase(types, "integer");
    return types;
  }

  SchemaMerger merger_;
  std::unordered_map<std::string, int> rules_;
  std::vector<Pending> queue_;
  std::size_t dumped_bytes_ = 0;
};

}  // namespace

GrammarNode parse_json_schema(GrammarTree& tree, const nlohmann::ordered_json& schema) {
  return SchemaCompiler(tree, schema).compile(schema);
}

}  // namespace tensorfold
