// The tools that a request offers, as whoever reads calls from a reply needs them: which names there are, and what type
// each parameter is declared to have. Names are matched without regard to case and given back as they were offered.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tensorfold {

/// A parameter's declared type. kText is also what isn't declared, and what a union or a reference says: the value is
/// taken as it is written.
enum class ToolValueType { kText, kArray, kObject, kBoolean, kInteger, kNumber, kNull };

class ToolOffer {
 public:
  /// `tools`: as parse_tools gives them.
  explicit ToolOffer(const nlohmann::ordered_json& tools);

  /// The offered spelling of a name; none when it isn't offered.
  std::optional<std::string> find(std::string_view name) const;
  /// The name under which a call in explicit markup goes out: the offered spelling, or an unoffered name of 1 to 64
  /// letters, digits, _ and -, which the client refuses itself. None: this can't be a name.
  std::optional<std::string> call_name(std::string_view name) const;
  /// `name` in the offered spelling.
  ToolValueType value_type(std::string_view name, std::string_view parameter) const;

 private:
  struct Tool {
    std::string name;
    nlohmann::ordered_json properties;  // an object, or null
  };
  const Tool* tool(std::string_view name) const;

  std::vector<Tool> tools_;
};

}  // namespace tensorfold
