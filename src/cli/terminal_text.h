// Text of others (a model's reply, a name inside a checkpoint) made safe to show: a terminal obeys control sequences.
#pragma once

#include <string>
#include <string_view>

namespace tensorfold::cli {

/// `text` without control characters other than line feed and tab.
std::string without_controls(std::string_view text);

}  // namespace tensorfold::cli
