// See tool_offer.h.
#include "text/tool_offer.h"

#include <algorithm>

namespace tensorfold {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kUnofferedNameBytesMax = 64;

char lower(char byte) {
  return byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte - 'A' + 'a') : byte;
}

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

bool is_name_byte(char byte) {
  const char small = lower(byte);
  return (small >= 'a' && small <= 'z') || (byte >= '0' && byte <= '9') || byte == '_' || byte == '-';
}

}  // namespace

ToolOffer::ToolOffer(const Json& tools) {
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    const Json& function = tool.at("function");
    Tool offered{function.at("name").get<std::string>(), nullptr};
    const auto parameters = function.find("parameters");
    if (parameters != function.end() && parameters->is_object()) {
      const auto properties = parameters->find("properties");
      if (properties != parameters->end() && properties->is_object()) offered.properties = *properties;
    }
    tools_.push_back(std::move(offered));
  }
}

const ToolOffer::Tool* ToolOffer::tool(std::string_view name) const {
  for (const Tool& candidate : tools_) {
    if (candidate.name == name) return &candidate;
  }
  for (const Tool& candidate : tools_) {
    if (same_name(candidate.name, name)) return &candidate;
  }
  return nullptr;
}

std::optional<std::string> ToolOffer::find(std::string_view name) const {
  const Tool* found = tool(name);
  return found == nullptr ? std::nullopt : std::optional<std::string>(found->name);
}

std::optional<std::string> ToolOffer::call_name(std::string_view name) const {
  if (auto offered = find(name)) return offered;
  const bool plausible =
      !name.empty() && name.size() <= kUnofferedNameBytesMax && std::all_of(name.begin(), name.end(), is_name_byte);
  return plausible ? std::optional<std::string>(name) : std::nullopt;
}

ToolValueType ToolOffer::value_type(std::string_view name, std::string_view parameter) const {
  const Tool* found = tool(name);
  if (found == nullptr || found->properties.is_null()) return ToolValueType::kText;
  const auto schema = found->properties.find(std::string(parameter));
  if (schema == found->properties.end() || !schema->is_object()) return ToolValueType::kText;
  const auto type = schema->find("type");
  if (type == schema->end() || !type->is_string()) return ToolValueType::kText;
  const std::string& text = type->get_ref<const std::string&>();
  if (text == "array") return ToolValueType::kArray;
  if (text == "object") return ToolValueType::kObject;
  if (text == "boolean") return ToolValueType::kBoolean;
  if (text == "integer") return ToolValueType::kInteger;
  if (text == "number") return ToolValueType::kNumber;
  if (text == "null") return ToolValueType::kNull;
  return ToolValueType::kText;
}

}  // namespace tensorfold
