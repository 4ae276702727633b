// The registries of filters, tests and globals, by the names that templates use.
#pragma once

#include <string>

#include "text/jinja_value.h"

namespace tensorfold::jinja {

using Filter = Value (*)(Runtime&, const Value& input, const CallArguments&);
using Test = bool (*)(Runtime&, const Value& input, const CallArguments&);
using Function = Value (*)(Runtime&, const CallArguments&);

/// Null for unknown names.
Filter find_filter(const std::string& name);
Filter find_sequence_filter(const std::string& name);
Test find_test(const std::string& name);
Function find_function(const std::string& name);

}  // namespace tensorfold::jinja
