// See tool_fields.h.
#include "serve/api/tool_fields.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/limits.h"
#include "serve/api/fields.h"
#include "serve/api_error.h"
#include "text/messages.h"

namespace tensorfold {
namespace {

using Json = nlohmann::ordered_json;

/// A tool_choice as one word, and the function that it names.
struct Choice {
  std::string mode = "auto";
  std::string name;
};

std::string lower(std::string text) {
  for (char& byte : text) {
    if (byte >= 'A' && byte <= 'Z') byte = static_cast<char>(byte - 'A' + 'a');
  }
  return text;
}

Json offered_tools(const Fields& fields) {
  const Json* tools = fields.array("tools");
  if (tools == nullptr) return nullptr;
  if (tools->size() > limits::kToolsMax) {
    throw field_error("tools", fmt::format("at most {} tools", limits::kToolsMax));
  }
  try {
    return parse_tools(*tools);
  } catch (const Error& error) {
    throw api_error_from(error).with_param("tools");
  }
}

/// {"type": "function", "function": {"name"}}, also with the name beside the type, and with "mode" for "type".
Choice choice_of_object(const Json& object) {
  const Fields fields(object, "tool_choice.");
  Choice choice;
  const std::optional<std::string> type = fields.string("type"), mode = fields.string("mode");
  if (!type && !mode) throw field_error("tool_choice", "needs a \"type\"");
  choice.mode = lower(type ? *type : *mode);
  if (choice.mode != "function" && choice.mode != "tool") return choice;
  choice.mode = "function";
  const Json* function = fields.object("function");
  const std::optional<std::string> name =
      function == nullptr ? fields.string("name") : Fields(*function, "tool_choice.function.").string("name");
  if (!name || name->empty()) throw field_error("tool_choice.function.name", "is required");
  choice.name = *name;
  return choice;
}

Choice parse_choice(const Fields& fields) {
  const Json* value = fields.find("tool_choice");
  if (value == nullptr) return {};
  Choice choice;
  if (value->is_string()) {
    choice.mode = lower(value->get<std::string>());
  } else if (value->is_object()) {
    choice = choice_of_object(*value);
  } else {
    throw field_error("tool_choice", "must be a string or an object");
  }
  if (choice.mode == "any") choice.mode = "required";
  for (const char* known : {"auto", "none", "required", "function"}) {
    if (choice.mode == known && (choice.mode != "function" || !choice.name.empty())) return choice;
  }
  throw field_error("tool_choice", "must be auto, none, required, or an object that names a function");
}

/// A named function is the only tool that the template sees.
Json only_named(const Json& tools, const std::string& name) {
  const auto named = [&name](const Json& tool) { return tool.at("function").at("name") == name; };
  const auto found = std::find_if(tools.begin(), tools.end(), named);
  if (found == tools.end()) throw field_error("tool_choice", "names a function that \"tools\" doesn't offer");
  return Json::array({*found});
}

}  // namespace

void parse_tool_fields(const Json& body, GenerationRequest& request) {
  const Fields fields(body);
  Json tools = offered_tools(fields);
  const Choice choice = parse_choice(fields);
  request.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  const bool required = choice.mode == "required" || choice.mode == "function";
  if (required && tools.is_null()) throw field_error("tool_choice", "requires a call, and \"tools\" offers none");
  if (choice.mode == "none") tools = nullptr;
  if (choice.mode == "function") tools = only_named(tools, choice.name);
  request.tool_choice = required ? ToolChoice::kRequired : ToolChoice::kAuto;
  request.tools = std::move(tools);
}

void refuse_tool_fields(const Json& body) {
  const Json* tools = Fields(body).array("tools");
  if (tools != nullptr && !tools->empty()) throw field_error("tools", "is a field of chat completions");
}

}  // namespace tensorfold
