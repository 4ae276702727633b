// Schemas that apply together (allOf, $ref beside other keywords, anyOf beside other keywords) as one schema: keywords
// are combined where that is exact and refused by name where it isn't. References are resolved here, against the
// document.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tensorfold {

using SchemaJson = nlohmann::ordered_json;

/// "the schema's 'keyword' at #/... problem".
[[noreturn]] void refuse_schema(std::string_view keyword, const std::string& path, const std::string& problem);

/// Keywords that say nothing about which values are valid.
bool is_annotation(std::string_view keyword);
/// Nothing in the object but annotations (and definitions).
bool says_nothing(const SchemaJson& schema);

class SchemaMerger {
 public:
  explicit SchemaMerger(const SchemaJson& document) : document_(document) {}

  /// What a $ref points at. Only references into this document.
  const SchemaJson& resolve(const SchemaJson& reference, const std::string& path) const;
  /// The schema without $ref and allOf on its top level.
  SchemaJson flatten(const SchemaJson& schema, const std::string& path) { return flatten(schema, path, 0); }
  /// Both apply.
  SchemaJson merge(const SchemaJson& a, const SchemaJson& b, const std::string& path);

 private:
  SchemaJson flatten(const SchemaJson& schema, const std::string& path, int depth);
  void merge_keyword(SchemaJson& target, const std::string& keyword, const SchemaJson& value, const std::string& path);
  void count(const std::string& path);

  const SchemaJson& document_;
  int merges_ = 0;
};

}  // namespace tensorfold
