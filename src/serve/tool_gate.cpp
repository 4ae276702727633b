// See tool_gate.h.
#include "serve/tool_gate.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "text/tool_offer.h"
#include "text/tool_value.h"

namespace tensorfold {
namespace {

using Json = nlohmann::ordered_json;
using Kind = GrammarPart::Kind;

constexpr int kBlanksBeforeCallMax = 8;
constexpr std::string_view kParameterEnd = "</parameter>";

GrammarPart text_part(std::string text) {
  GrammarPart part;
  part.text = std::move(text);
  return part;
}

GrammarPart group(Kind kind, std::vector<GrammarPart> parts) {
  GrammarPart part;
  part.kind = kind;
  part.parts = std::move(parts);
  return part;
}

GrammarPart repeated(GrammarPart one, int minimum, int maximum) {
  GrammarPart part = group(Kind::kRepeat, {std::move(one)});
  part.minimum = minimum;
  part.maximum = maximum;
  return part;
}

GrammarPart schema_part(Json schema) {
  GrammarPart part;
  part.kind = Kind::kJsonSchema;
  part.json = std::move(schema);
  return part;
}

/// Whether the schema front end takes it.
bool can_be_enforced(const Json& schema) {
  GrammarSource source;
  source.kind = GrammarSource::Kind::kJsonSchema;
  source.json = schema;
  try {
    grammar_text(source);
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    return false;
  }
}

Json parameters_of(const Json& tool) {
  const Json& function = tool.at("function");
  const auto parameters = function.find("parameters");
  return parameters != function.end() && parameters->is_object() ? *parameters : Json::object();
}

/// The parts of one kind of call that differ from tool to tool.
class CallParts {
 public:
  CallParts(const ToolCallFormat& format, const Json& tools, bool with_schemas)
      : format_(format), offer_(tools), with_schemas_(with_schemas) {}

  GrammarPart call(const Json& tools) const {
    std::vector<GrammarPart> ways;
    for (const Json& tool : tools) {
      ways.push_back(format_.style == ToolCallFormat::Style::kXml ? xml_call(tool) : json_call(tool));
    }
    return group(Kind::kSequence,
                 {text_part(format_.lead), group(Kind::kChoice, std::move(ways)), text_part(format_.tail)});
  }

 private:
  static std::string name_of(const Json& tool) { return tool.at("function").at("name").get<std::string>(); }

  GrammarPart json_call(const Json& tool) const {
    GrammarPart arguments;
    arguments.kind = Kind::kJsonObject;
    Json schema = parameters_of(tool);
    if (!schema.contains("type")) schema["type"] = "object";
    if (with_schemas_ && schema["type"] == "object" && can_be_enforced(schema)) {
      arguments = schema_part(std::move(schema));
    }
    return group(Kind::kSequence, {text_part(json_escaped(name_of(tool)) + format_.after_name), std::move(arguments)});
  }

  GrammarPart xml_call(const Json& tool) const {
    const Json parameters = parameters_of(tool);
    std::vector<GrammarPart> parts = {text_part(name_of(tool) + ">\n")};
    const auto properties = parameters.find("properties");
    const auto required = parameters.find("required");
    if (properties != parameters.end() && properties->is_object()) {
      for (const auto& [key, schema] : properties->items()) {
        const bool must = required != parameters.end() && required->is_array() &&
                          std::find(required->begin(), required->end(), Json(key)) != required->end();
        parts.push_back(repeated(xml_parameter(tool, key, schema, parameters), must ? 1 : 0, 1));
      }
    }
    parts.push_back(text_part("</function>"));
    return group(Kind::kSequence, std::move(parts));
  }

  GrammarPart xml_parameter(const Json& tool, const std::string& key, const Json& schema,
                            const Json& parameters) const {
    return group(Kind::kSequence,
                 {text_part("<parameter=" + key + ">\n"),
                  xml_value(offer_.value_type(name_of(tool), key), schema, parameters), text_part("\n")});
  }

  /// Up to and with the mark that closes it.
  GrammarPart xml_value(ToolValueType type, const Json& schema, const Json& parameters) const {
    const GrammarPart closed = text_part("\n" + std::string(kParameterEnd));
    if (type == ToolValueType::kText) {
      const std::vector<GrammarPart> listed = listed_texts(schema);
      if (!listed.empty()) return group(Kind::kSequence, {group(Kind::kChoice, listed), closed});
    } else if (with_schemas_) {
      Json alone = schema;
      for (const char* definitions : {"$defs", "definitions"}) {  // what references in it may point to
        if (parameters.contains(definitions)) alone[definitions] = parameters[definitions];
      }
      if (can_be_enforced(alone)) return group(Kind::kSequence, {schema_part(std::move(alone)), closed});
    }
    GrammarPart free;
    free.kind = Kind::kTextUntil;
    free.text = kParameterEnd;
    return free;
  }

  /// The values of an enum of texts, as they stand in XML.
  static std::vector<GrammarPart> listed_texts(const Json& schema) {
    std::vector<GrammarPart> texts;
    if (!schema.is_object() || !schema.contains("enum") || !schema["enum"].is_array()) return texts;
    for (const Json& value : schema["enum"]) {
      if (!value.is_string() || value.get_ref<const std::string&>().empty()) return {};
      texts.push_back(text_part(value.get<std::string>()));
    }
    return texts;
  }

  const ToolCallFormat& format_;
  const ToolOffer offer_;
  const bool with_schemas_;
};

}  // namespace

GrammarSource required_calls_source(const ToolCallFormat& format, const Json& tools, bool several) {
  const auto make = [&](bool with_schemas) {
    const GrammarPart call = CallParts(format, tools, with_schemas).call(tools);
    GrammarPart blanks;
    blanks.kind = Kind::kBlanks;
    blanks.maximum = kBlanksBeforeCallMax;
    GrammarSource source;
    source.kind = GrammarSource::Kind::kParts;
    source.parts = group(Kind::kSequence, {blanks, call});
    if (several) {
      source.parts.parts.push_back(repeated(group(Kind::kSequence, {text_part(format.separator), call}), 0, -1));
    }
    return source;
  };
  GrammarSource source = make(true);
  try {
    grammar_text(source);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    source = make(false);  // all schemas together are too large: names and markup only
    grammar_text(source);
  }
  return source;
}

}  // namespace tensorfold
