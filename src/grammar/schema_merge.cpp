// See schema_merge.h.
#include "grammar/schema_merge.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "base/limits.h"

namespace tensorfold {
namespace {

constexpr int kFlattenDepthMax = 32;
constexpr std::size_t kShownBytes = 80;

std::string shown(std::string_view text) {
  return std::string(text.substr(0, kShownBytes)) + (text.size() > kShownBytes ? "..." : "");
}

/// Percent-encoding of a URI fragment, then ~1 and ~0 of a JSON pointer.
std::string decode_pointer_part(std::string_view part) {
  std::string bytes;
  for (std::size_t i = 0; i < part.size(); ++i) {
    const auto hexadecimal = [](char c) {
      if (c >= '0' && c <= '9') return c - '0';
      const char lower = static_cast<char>(c | 0x20);
      return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
    };
    const bool encoded =
        part[i] == '%' && i + 2 < part.size() && hexadecimal(part[i + 1]) >= 0 && hexadecimal(part[i + 2]) >= 0;
    if (encoded) {
      bytes += static_cast<char>(hexadecimal(part[i + 1]) * 16 + hexadecimal(part[i + 2]));
      i += 2;
    } else {
      bytes += part[i];
    }
  }
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == '~' && i + 1 < bytes.size() && (bytes[i + 1] == '0' || bytes[i + 1] == '1')) {
      text += bytes[++i] == '0' ? '~' : '/';
    } else {
      text += bytes[i];
    }
  }
  return text;
}

const SchemaJson* step(const SchemaJson& value, const std::string& part) {
  if (value.is_object()) {
    const auto found = value.find(part);
    return found == value.end() ? nullptr : &*found;
  }
  const bool is_index = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
  if (!value.is_array() || !is_index) return nullptr;
  const std::size_t index = std::stoul(part);
  return index < value.size() ? &value[index] : nullptr;
}

std::vector<std::string> type_names(const SchemaJson& type) {
  std::vector<std::string> names;
  if (type.is_string()) return {type.get<std::string>()};
  if (!type.is_array()) return names;
  for (const SchemaJson& name : type) {
    if (name.is_string()) names.push_back(name.get<std::string>());
  }
  return names;
}

SchemaJson common_types(const SchemaJson& a, const SchemaJson& b) {
  const std::vector<std::string> left = type_names(a);
  const std::vector<std::string> right = type_names(b);
  const auto has = [](const std::vector<std::string>& names, const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  SchemaJson both = SchemaJson::array();
  for (const std::string& name : left) {
    if (has(right, name.c_str()) || (name == "integer" && has(right, "number"))) {
      both.push_back(name);
    } else if (name == "number" && has(right, "integer")) {
      both.push_back("integer");
    }
  }
  return both;
}

SchemaJson common_values(const SchemaJson& a, const SchemaJson& b) {
  SchemaJson both = SchemaJson::array();
  for (const SchemaJson& value : a) {
    if (std::find(b.begin(), b.end(), value) != b.end()) both.push_back(value);
  }
  return both;
}

bool takes_larger(const std::string& keyword) {
  static constexpr std::array<std::string_view, 5> kKeywords = {"minimum", "exclusiveMinimum", "minLength", "minItems",
                                                                "minProperties"};
  return std::find(kKeywords.begin(), kKeywords.end(), keyword) != kKeywords.end();
}

bool takes_smaller(const std::string& keyword) {
  static constexpr std::array<std::string_view, 5> kKeywords = {"maximum", "exclusiveMaximum", "maxLength", "maxItems",
                                                                "maxProperties"};
  return std::find(kKeywords.begin(), kKeywords.end(), keyword) != kKeywords.end();
}

SchemaJson both_apply(const SchemaJson& a, const SchemaJson& b) {
  if (a == b || b == SchemaJson(true)) return a;
  if (a == SchemaJson(true)) return b;
  return {{"allOf", SchemaJson::array({a, b})}};
}

/// `closed` forbids or constrains the properties that only `other` declares.
void apply_additional(const SchemaJson& closed, const SchemaJson& other, SchemaJson& properties) {
  const auto additional = closed.find("additionalProperties");
  const auto declared = other.find("properties");
  if (additional == closed.end() || declared == other.end() || !declared->is_object()) return;
  if (*additional == SchemaJson(true)) return;
  const auto own = closed.find("properties");
  for (const auto& [name, schema] : declared->items()) {
    if (own != closed.end() && own->contains(name)) continue;
    properties[name] = both_apply(schema, *additional);
    if (*additional == SchemaJson(false)) properties[name] = false;
  }
}

/// Keywords whose meaning depends on their neighbours, so that two schemas can't be combined keyword by keyword.
void refuse_dependent(const SchemaJson& a, const SchemaJson& b, const std::string& path) {
  const auto has_items = [](const SchemaJson& schema) {
    return schema.contains("items") || schema.contains("prefixItems");
  };
  const bool prefix = a.contains("prefixItems") || b.contains("prefixItems");
  if (prefix && has_items(a) && has_items(b)) {
    refuse_schema("prefixItems", path, "applies together with another schema's items, which can't be combined");
  }
  const auto constrains = [](const SchemaJson& schema) {
    const auto found = schema.find("additionalProperties");
    return found != schema.end() && *found != SchemaJson(true);
  };
  if ((constrains(a) && b.contains("patternProperties")) || (constrains(b) && a.contains("patternProperties"))) {
    refuse_schema("patternProperties", path, "applies together with additionalProperties of another schema");
  }
}

/// const is an enum of one value.
void unify_constant(SchemaJson& schema) {
  const auto constant = schema.find("const");
  if (constant == schema.end()) return;
  SchemaJson values = SchemaJson::array({*constant});
  schema.erase("const");
  if (schema.contains("enum") && schema["enum"].is_array()) values = common_values(schema["enum"], values);
  schema["enum"] = std::move(values);
}

}  // namespace

void refuse_schema(std::string_view keyword, const std::string& path, const std::string& problem) {
  fail(ErrorCode::kInvalidArgument, "the schema's '{}' at {} {}", shown(keyword), shown(path), problem);
}

bool is_annotation(std::string_view keyword) {
  static constexpr std::array<std::string_view, 21> kAnnotations = {
      "title",       "description", "default",          "example",         "examples",
      "deprecated",  "readOnly",    "$schema",          "writeOnly",       "$comment",
      "$id",         "id",          "contentMediaType", "contentEncoding", "$defs",
      "definitions", "$anchor",     "$vocabulary",      "discriminator",   "externalDocs",
      "xml"};
  return keyword.starts_with("x-") ||
         std::find(kAnnotations.begin(), kAnnotations.end(), keyword) != kAnnotations.end();
}

bool says_nothing(const SchemaJson& schema) {
  if (!schema.is_object()) return schema == SchemaJson(true);
  for (const auto& [keyword, value] : schema.items()) {
    if (!is_annotation(keyword)) return false;
  }
  return true;
}

const SchemaJson& SchemaMerger::resolve(const SchemaJson& reference, const std::string& path) const {
  if (!reference.is_string()) refuse_schema("$ref", path, "must be a string");
  const std::string& target = reference.get_ref<const std::string&>();
  if (target != "#" && !target.starts_with("#/")) {
    refuse_schema(
        "$ref", path,
        fmt::format("points at '{}': only references into the schema itself (#/...) are supported", shown(target)));
  }
  const SchemaJson* current = &document_;
  for (std::size_t start = 2; start <= target.size() && target.size() > 1;) {
    const std::size_t end = std::min(target.find('/', start), target.size());
    current = step(*current, decode_pointer_part(std::string_view(target).substr(start, end - start)));
    if (current == nullptr)
      refuse_schema("$ref", path, fmt::format("points at '{}', which isn't there", shown(target)));
    start = end + 1;
  }
  return *current;
}

void SchemaMerger::count(const std::string& path) {
  if (++merges_ > limits::kGrammarMergesMax) {
    fail(ErrorCode::kInvalidArgument, "the schema combines more than {} schemas that apply together (near {})",
         limits::kGrammarMergesMax, shown(path));
  }
}

SchemaJson SchemaMerger::flatten(const SchemaJson& schema, const std::string& path, int depth) {
  if (!schema.is_object()) return schema;
  if (depth > kFlattenDepthMax) {
    fail(ErrorCode::kInvalidArgument,
         "the schema's references or allOf at {} contain themselves, or nest deeper than {} levels", shown(path),
         kFlattenDepthMax);
  }
  SchemaJson result = schema;
  result.erase("$ref");
  result.erase("allOf");
  if (const auto reference = schema.find("$ref"); reference != schema.end()) {
    result = merge(result, flatten(resolve(*reference, path), path, depth + 1), path);
  }
  if (const auto all = schema.find("allOf"); all != schema.end()) {
    if (!all->is_array() || all->empty()) refuse_schema("allOf", path, "must be a nonempty list");
    for (const SchemaJson& part : *all) result = merge(result, flatten(part, path, depth + 1), path);
  }
  return result;
}

SchemaJson SchemaMerger::merge(const SchemaJson& a, const SchemaJson& b, const std::string& path) {
  count(path);
  if (a == SchemaJson(false) || b == SchemaJson(false)) return false;
  if (says_nothing(b)) return a;
  if (says_nothing(a)) return b;
  if (!a.is_object() || !b.is_object()) {
    fail(ErrorCode::kInvalidArgument, "the schema at {} must be an object or a boolean", shown(path));
  }
  refuse_dependent(a, b, path);
  SchemaJson target = a;
  SchemaJson other = b;
  unify_constant(target);
  unify_constant(other);
  for (const auto& [keyword, value] : other.items()) {
    if (is_annotation(keyword)) continue;
    merge_keyword(target, keyword, value, path);
  }
  if (target.contains("properties") && target["properties"].is_object()) {
    apply_additional(a, b, target["properties"]);
    apply_additional(b, a, target["properties"]);
  }
  const auto type = target.find("type");
  const bool impossible = type != target.end() && type->is_array() && type->empty();
  return impossible ? SchemaJson(false) : target;
}

void SchemaMerger::merge_keyword(SchemaJson& target, const std::string& keyword, const SchemaJson& value,
                                 const std::string& path) {
  const auto found = target.find(keyword);
  if (found == target.end()) {
    target[keyword] = value;
    return;
  }
  SchemaJson& mine = *found;
  if (mine == value) return;
  if (keyword == "type") {
    mine = common_types(mine, value);
  } else if (keyword == "enum" && mine.is_array() && value.is_array()) {
    mine = common_values(mine, value);
  } else if (keyword == "required" && mine.is_array() && value.is_array()) {
    for (const SchemaJson& name : value) {
      if (std::find(mine.begin(), mine.end(), name) == mine.end()) mine.push_back(name);
    }
  } else if (keyword == "properties" && mine.is_object() && value.is_object()) {
    for (const auto& [name, schema] : value.items()) {
      mine[name] = mine.contains(name) ? both_apply(mine[name], schema) : schema;
    }
  } else if (takes_larger(keyword) && mine.is_number() && value.is_number()) {
    if (mine < value) mine = value;
  } else if (takes_smaller(keyword) && mine.is_number() && value.is_number()) {
    if (value < mine) mine = value;
  } else if (keyword == "items" || keyword == "additionalProperties") {
    const bool closed = mine == SchemaJson(false) || value == SchemaJson(false);
    mine = closed ? SchemaJson(false) : both_apply(mine, value);
  } else {
    refuse_schema(keyword, path, "occurs in two schemas that apply together, which can't be combined");
  }
}

}  // namespace tensorfold
