// See structured_fields.h.
#include "serve/api/structured_fields.h"

#include <array>
#include <string_view>
#include <utility>

#include "serve/api/fields.h"
#include "serve/api/json_body.h"
#include "serve/api_error.h"

namespace tensorfold {
namespace {

using Json = nlohmann::ordered_json;
using Kind = GrammarSource::Kind;

GrammarSource of_kind(Kind kind) {
  GrammarSource source;
  source.kind = kind;
  return source;
}

/// A schema as an object, as `true` (any object), or as JSON text of these.
GrammarSource schema_source(const Json& value, const std::string& field) {
  Json schema = value;
  if (value.is_string()) {
    try {
      schema = parse_json_text(value.get_ref<const std::string&>(), "the schema's text");
    } catch (const ApiError& error) {
      throw field_error(field, error.what());
    }
  }
  if (schema == Json(true)) return of_kind(Kind::kJsonObject);
  if (!schema.is_object()) throw field_error(field, "must be a JSON schema: an object, or its JSON text");
  GrammarSource source = of_kind(Kind::kJsonSchema);
  source.json = std::move(schema);
  return source;
}

GrammarSource text_source(Kind kind, const Json& value, const std::string& field) {
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
    throw field_error(field, "must be a nonempty string");
  }
  GrammarSource source = of_kind(kind);
  source.text = value.get<std::string>();
  return source;
}

GrammarSource choice_source(const Json& value, const std::string& field) {
  if (!value.is_array() || value.empty()) throw field_error(field, "must be a nonempty list of strings");
  GrammarSource source = of_kind(Kind::kChoice);
  for (const Json& choice : value) {
    if (!choice.is_string() || choice.get_ref<const std::string&>().empty()) {
      throw field_error(field, "must be a list of nonempty strings");
    }
    source.choices.push_back(choice.get<std::string>());
  }
  return source;
}

std::optional<RequestedGrammar> from_response_format(const Json& format) {
  const Fields fields(format, "response_format.");
  const std::string type = fields.string("type").value_or("");
  if (type == "text") return std::nullopt;
  if (type == "json_object") return RequestedGrammar{of_kind(Kind::kJsonObject), "response_format"};
  if (type != "json_schema") throw field_error("response_format.type", "must be text, json_object or json_schema");
  const Json* named = fields.object("json_schema");
  if (named == nullptr) throw field_error("response_format.json_schema", "is required: an object with \"schema\"");
  const Fields inner(*named, "response_format.json_schema.");
  inner.boolean("strict");  // either way the whole schema is enforced
  const Json* schema = inner.find("schema");
  const std::string field = inner.full_name("schema");
  if (schema == nullptr) throw field_error(field, "is required");
  return RequestedGrammar{schema_source(*schema, field), field};
}

struct NamedField {
  std::string_view name;
  Kind kind;
};

GrammarSource field_source(Kind kind, const Json& value, const std::string& field) {
  if (kind == Kind::kJsonSchema) return schema_source(value, field);
  if (kind == Kind::kChoice) return choice_source(value, field);
  return text_source(kind, value, field);
}

/// JSON false is how some clients say "no schema".
bool asks_for_nothing(const Json* value) {
  return value == nullptr || *value == Json(false);
}

std::optional<RequestedGrammar> from_structured_outputs(const Json& object) {
  static constexpr std::array<NamedField, 5> kMembers = {NamedField{"json", Kind::kJsonSchema},
                                                         {"json_object", Kind::kJsonObject},
                                                         {"regex", Kind::kRegex},
                                                         {"choice", Kind::kChoice},
                                                         {"grammar", Kind::kEbnf}};
  const Fields fields(object, "structured_outputs.");
  for (const auto& [key, value] : object.items()) {
    bool known = false;
    for (const NamedField& member : kMembers) known = known || member.name == key;
    const bool asks = !value.is_null() && value != Json(false);
    if (!known && asks) throw field_error(fields.full_name(key), "isn't supported");
  }
  for (const NamedField& member : kMembers) {
    const std::string field = fields.full_name(member.name);
    if (member.kind == Kind::kJsonObject) {
      if (fields.boolean(member.name).value_or(false)) return RequestedGrammar{of_kind(Kind::kJsonObject), field};
      continue;
    }
    const Json* value = fields.find(member.name);
    if (!asks_for_nothing(value)) return RequestedGrammar{field_source(member.kind, *value, field), field};
  }
  return std::nullopt;
}

}  // namespace

std::optional<RequestedGrammar> parse_structured_fields(const Json& body) {
  const Fields fields(body);
  if (const Json* format = fields.object("response_format")) {
    if (auto requested = from_response_format(*format)) return requested;
  }
  static constexpr std::array<NamedField, 4> kGuided = {NamedField{"guided_json", Kind::kJsonSchema},
                                                        {"guided_regex", Kind::kRegex},
                                                        {"guided_choice", Kind::kChoice},
                                                        {"guided_grammar", Kind::kEbnf}};
  for (const NamedField& guided : kGuided) {
    const Json* value = fields.find(guided.name);
    const std::string field(guided.name);
    if (!asks_for_nothing(value)) return RequestedGrammar{field_source(guided.kind, *value, field), field};
  }
  if (const Json* object = fields.object("structured_outputs")) return from_structured_outputs(*object);
  return std::nullopt;
}

}  // namespace tensorfold
