// How a chat template writes the calls of an assistant's turn, found out by rendering made-up ones: what a reply that
// must call has to begin with, and what stands between the parts of a call.
#pragma once

#include <optional>
#include <string>

namespace tensorfold {

struct ToolCallFormat {
  enum class Style {
    kNone,  // the template has no form for calls, or one that isn't understood
    kJson,  // lead NAME after_name {arguments} tail
    kXml,   // lead NAME, ">\n", parameters, "</function>" tail
  };
  Style style = Style::kNone;
  std::string lead;        // from the answer's beginning to the name, blanks before it left out
  std::string after_name;  // kJson: from the name to the arguments' bracket
  std::string tail;        // to the end of the call
  std::string separator;   // blanks between two calls
  bool several = false;    // a turn may hold more than one
};

/// What the probes say; none where the template refuses one.
struct ToolCallProbes {
  static constexpr const char* kContent = "probe_content";
  static constexpr const char* kFirst = "probe_tool_a";
  static constexpr const char* kSecond = "probe_tool_b";
  static constexpr const char* kKey = "probe_key";
  static constexpr const char* kValue = "probe_value";

  std::optional<std::string> plain;  // a turn with the content
  std::optional<std::string> one;    // the same with a call of kFirst with {kKey: kValue}
  std::optional<std::string> two;    // and one of kSecond
};

ToolCallFormat detect_call_format(const ToolCallProbes& probes);

}  // namespace tensorfold
