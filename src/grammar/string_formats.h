// The values of a schema's "format" that are enforced, as patterns. Each is a subset of its RFC that checkers and
// common parsers accept.
#pragma once

#include <string>
#include <string_view>

namespace tensorfold {

/// The anchored pattern of a format; "" when it isn't one of these.
std::string_view format_pattern(std::string_view name);
/// "date, time, ...", for messages.
std::string format_names();

}  // namespace tensorfold
