// A reply that must call a tool, as a grammar: the call's markup as the template writes it, a name among those offered,
// arguments that fit the tool's schema where it can be enforced. It begins at the answer's first token that isn't
// blank.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "grammar/grammar.h"
#include "text/tool_call_format.h"

namespace tensorfold {

/// The grammar of one call or (`several`) more. `tools` as from parse_tools. Throws Error(kInvalidArgument) when no
/// grammar of bounded size can be made.
GrammarSource required_calls_source(const ToolCallFormat& format, const nlohmann::ordered_json& tools, bool several);

}  // namespace tensorfold
