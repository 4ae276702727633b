// Tokens to syntax tree.
#pragma once

#include <memory>
#include <string_view>

#include "text/jinja_ast.h"

namespace tensorfold::jinja {

/// Throws Error(kInvalidCheckpoint) with line and construct.
std::unique_ptr<Program> parse_template(std::string_view source);

}  // namespace tensorfold::jinja
