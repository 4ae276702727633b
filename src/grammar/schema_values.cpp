// Strings, numbers, arrays and listed values of schema_rules.h.
#include <algorithm>

#include "base/error.h"
#include "base/limits.h"
#include "grammar/number_range.h"
#include "grammar/regex.h"
#include "grammar/schema_rules.h"
#include "grammar/string_formats.h"
#include "grammar/utf8.h"

namespace tensorfold {
namespace {

bool matches_type(const SchemaJson& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "number") return value.is_number();
  return value.is_number() && Decimal::parse(value.dump()).is_whole();
}

/// Whether a listed value satisfies the keywords beside the list; keywords that can't be decided here are refused.
bool satisfies(const SchemaJson& value, const std::string& keyword, const SchemaJson& bound, const std::string& path) {
  if (keyword == "type") {
    const SchemaJson types = bound.is_array() ? bound : SchemaJson::array({bound});
    return std::any_of(types.begin(), types.end(), [&value](const SchemaJson& type) {
      return type.is_string() && matches_type(value, type.get<std::string>());
    });
  }
  const auto length = [&value] { return decode_utf8(value.get_ref<const std::string&>()).size(); };
  if (keyword == "minLength" && bound.is_number()) return !value.is_string() || length() >= bound.get<std::size_t>();
  if (keyword == "maxLength" && bound.is_number()) return !value.is_string() || length() <= bound.get<std::size_t>();
  if (bound.is_number() && keyword == "minimum") return !value.is_number() || !(value < bound);
  if (bound.is_number() && keyword == "maximum") return !value.is_number() || !(bound < value);
  if (bound.is_number() && keyword == "exclusiveMinimum") return !value.is_number() || bound < value;
  if (bound.is_number() && keyword == "exclusiveMaximum") return !value.is_number() || value < bound;
  refuse_schema(keyword, path, "isn't supported beside enum or const");
}

NumberBound bound_of(const SchemaJson& value, bool exclusive, const char* keyword, const std::string& path) {
  if (!value.is_number()) refuse_schema(keyword, path, "must be a number");
  try {
    return {Decimal::parse(value.dump()), exclusive};
  } catch (const Error&) {
    refuse_schema(keyword, path, "has more than 18 digits before or after the point");
  }
}

/// The stricter of an inclusive and an exclusive bound. `direction` 1: the larger, -1: the smaller one is stricter.
std::optional<NumberBound> stricter(std::optional<NumberBound> a, std::optional<NumberBound> b, int direction) {
  if (!a || !b) return a ? a : b;
  const int order = compare(a->value, b->value) * direction;
  if (order == 0) return a->exclusive ? a : b;
  return order > 0 ? a : b;
}

}  // namespace

int count_keyword(const SchemaJson& schema, const char* keyword, int otherwise, const std::string& path) {
  const auto found = schema.find(keyword);
  if (found == schema.end()) return otherwise;
  // 2.0 is an integer in JSON Schema.
  const bool whole =
      found->is_number() && found->get<double>() >= 0 &&
      found->get<double>() == static_cast<double>(static_cast<std::int64_t>(std::min(found->get<double>(), 1e15)));
  if (!whole) refuse_schema(keyword, path, "must be a nonnegative integer");
  const bool of_string = std::string_view(keyword).ends_with("Length");
  const int most = of_string ? limits::kGrammarStringLengthMax : limits::kGrammarRepeatMax;
  if (found->get<double>() > most) {
    refuse_schema(keyword, path, fmt::format("is above {}, the most that is supported", most));
  }
  return static_cast<int>(found->get<double>());
}

GrammarNode SchemaRules::listed_values(const SchemaJson& schema, const std::string& path) {
  SchemaJson values = schema.contains("enum") ? schema["enum"] : SchemaJson::array({schema["const"]});
  if (!values.is_array()) refuse_schema("enum", path, "must be a list");
  std::vector<GrammarNode> forms;
  for (const SchemaJson& value : values) {
    bool fits = !schema.contains("const") || schema["const"] == value;
    for (const auto& [keyword, bound] : schema.items()) {
      if (keyword == "enum" || keyword == "const" || is_annotation(keyword)) continue;
      fits = fits && satisfies(value, keyword, bound, path);
    }
    if (fits) forms.push_back(tree_.literal(value.dump()));
  }
  return tree_.choice(std::move(forms));
}

GrammarNode SchemaRules::string_of_pattern(const std::string& pattern, const std::string& keyword,
                                           const std::string& path) {
  try {
    const GrammarNode quote = tree_.literal("\"");
    return tree_.sequence({quote, parse_regex(tree_, pattern, RegexMatch::kSearch, json_, quote)});
  } catch (const Error& error) {
    refuse_schema(keyword, path, fmt::format("can't be used: {}", error.what()));
  }
}

GrammarNode SchemaRules::string(const SchemaJson& schema, const std::string& path) {
  const int minimum = count_keyword(schema, "minLength", 0, path);
  const int maximum = count_keyword(schema, "maxLength", GrammarTree::kUnbounded, path);
  const bool has_length = minimum > 0 || maximum != GrammarTree::kUnbounded;
  const auto pattern = schema.find("pattern");
  const auto format = schema.find("format");
  if (pattern != schema.end()) {
    if (!pattern->is_string()) refuse_schema("pattern", path, "must be a string");
    if (has_length || format != schema.end()) {
      refuse_schema("pattern", path, "isn't supported together with minLength, maxLength or format");
    }
    return string_of_pattern(pattern->get<std::string>(), "pattern", path);
  }
  if (format != schema.end()) {
    if (!format->is_string()) refuse_schema("format", path, "must be a string");
    if (has_length) refuse_schema("format", path, "isn't supported together with minLength or maxLength");
    const std::string_view form = format_pattern(format->get_ref<const std::string&>());
    if (form.empty()) {
      refuse_schema("format", path, fmt::format("isn't one of those that are enforced: {}", format_names()));
    }
    return string_of_pattern(std::string(form), "format", path);
  }
  if (!has_length) return json_.string();
  if (maximum != GrammarTree::kUnbounded && maximum < minimum) return tree_.nothing();
  if (std::max(minimum, maximum) > limits::kGrammarEscapedLengthMax) {
    return tree_.sequence(
        {tree_.literal("\""), tree_.counted_until(JsonGrammar::escaped_set(), minimum, maximum, "\"")});
  }
  return tree_.sequence({tree_.literal("\""), bounded_text(minimum, maximum)});
}

GrammarNode SchemaRules::bounded_text(int minimum, int maximum) {
  const bool bounded = maximum != GrammarTree::kUnbounded;
  // All lengths share their tails, however many properties have one.
  const auto [entry, is_new] = bounded_texts_.try_emplace({minimum, maximum}, 0);
  if (!is_new) return tree_.reference(entry->second);
  const int rule = tree_.add_rule();
  entry->second = rule;
  const GrammarNode quote = tree_.literal("\"");
  if (!bounded && minimum == 0) {
    tree_.set_rule(rule, json_.any_then(CharacterSet::all(), quote));
  } else if (maximum == 0) {
    tree_.set_rule(rule, quote);
  } else {
    const GrammarNode rest = bounded_text(std::max(minimum - 1, 0), bounded ? maximum - 1 : maximum);
    std::vector<GrammarNode> forms;
    if (minimum == 0) forms.push_back(quote);
    forms.push_back(tree_.sequence({json_.plain_character(), rest}));
    forms.push_back(tree_.sequence({json_.escape(), rest}));
    tree_.set_rule(rule, tree_.choice(std::move(forms)));
  }
  return tree_.reference(rule);
}

GrammarNode SchemaRules::number(const SchemaJson& schema, bool whole_only, const std::string& path) {
  if (const auto multiple = schema.find("multipleOf"); multiple != schema.end()) {
    if (!multiple->is_number() || multiple->get<double>() != 1.0) {
      refuse_schema("multipleOf", path, "isn't supported (1 is)");
    }
    whole_only = true;
  }
  if (const auto format = schema.find("format"); format != schema.end()) {
    // Every number that is generated fits 64 bits, or a double.
    const bool fits = *format == (whole_only ? "int64" : "double");
    if (!fits) refuse_schema("format", path, "isn't supported for a number: use minimum and maximum");
  }
  const auto bound = [&](const char* keyword, bool exclusive) -> std::optional<NumberBound> {
    const auto found = schema.find(keyword);
    if (found == schema.end()) return std::nullopt;
    return bound_of(*found, exclusive, keyword, path);
  };
  NumberRange range;
  range.lower = stricter(bound("minimum", false), bound("exclusiveMinimum", true), 1);
  range.upper = stricter(bound("maximum", false), bound("exclusiveMaximum", true), -1);
  if (!range.lower && !range.upper) return whole_only ? json_.integer() : json_.number();
  return number_in_range(tree_, range, whole_only);
}

GrammarNode SchemaRules::array(const SchemaJson& schema, const std::string& path) {
  const int minimum = count_keyword(schema, "minItems", 0, path);
  const int maximum = count_keyword(schema, "maxItems", GrammarTree::kUnbounded, path);
  if (maximum != GrammarTree::kUnbounded && maximum < minimum) return tree_.nothing();
  const auto unique = schema.find("uniqueItems");
  const bool at_most_one = maximum != GrammarTree::kUnbounded && maximum <= 1;
  if (unique != schema.end() && *unique != SchemaJson(false) && !at_most_one) {
    refuse_schema("uniqueItems", path, "isn't supported");
  }
  const auto unevaluated = schema.find("unevaluatedItems");
  if (unevaluated != schema.end() && !unevaluated->is_boolean()) {
    refuse_schema("unevaluatedItems", path, "is supported as true or false only");
  }
  if (schema.contains("prefixItems")) return prefixed_array(schema, minimum, maximum, path);
  const auto items = schema.find("items");
  if (items != schema.end() && items->is_array()) refuse_schema("items", path, "must be a schema: use prefixItems");
  const bool none = (items != schema.end() && *items == SchemaJson(false)) ||
                    (items == schema.end() && unevaluated != schema.end() && *unevaluated == SchemaJson(false));
  if (none) return minimum > 0 ? tree_.nothing() : json_.list("[", tree_.nothing(), 0, 0, "]");
  const GrammarNode item = items == schema.end() ? json_.value() : rule_for(*items, path + "/items");
  return json_.list("[", item, minimum, maximum, "]");
}

GrammarNode SchemaRules::prefixed_array(const SchemaJson& schema, int minimum, int maximum, const std::string& path) {
  const SchemaJson& prefix = schema["prefixItems"];
  if (!prefix.is_array() || prefix.empty()) refuse_schema("prefixItems", path, "must be a nonempty list");
  const int count = static_cast<int>(std::min<std::size_t>(prefix.size(), limits::kGrammarRepeatMax));
  const auto items = schema.find("items");
  const bool open = items != schema.end() && *items != SchemaJson(false);
  const bool bounded = maximum != GrammarTree::kUnbounded;
  if (!open && minimum > count) return tree_.nothing();
  const auto comma = [this](GrammarNode item) {
    return tree_.sequence({json_.blanks(), tree_.literal(","), json_.blanks(), item});
  };
  // From the end: what may follow the first `index` items.
  const int last = bounded ? std::min(count, maximum) : count;
  GrammarNode rest = tree_.empty();
  if (open && last == count && (!bounded || maximum > count)) {
    rest = tree_.repeat(comma(rule_for(*items, path + "/items")), std::max(minimum - count, 0),
                        bounded ? maximum - count : GrammarTree::kUnbounded);
  }
  for (int index = last; index-- > 0;) {
    const GrammarNode item =
        rule_for(prefix[static_cast<std::size_t>(index)], fmt::format("{}/prefixItems/{}", path, index));
    const GrammarNode here = tree_.sequence({index == 0 ? item : comma(item), rest});
    // A rule for each step keeps the nesting flat.
    const int rule = tree_.add_rule();
    tree_.set_rule(rule, index >= minimum ? tree_.optional(here) : here);
    rest = tree_.reference(rule);
  }
  return tree_.sequence({tree_.literal("["), json_.blanks(), rest, json_.blanks(), tree_.literal("]")});
}

}  // namespace tensorfold
