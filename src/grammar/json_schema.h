// JSON schemas as grammars. Every keyword is either enforced by the grammar, an annotation that says nothing about
// validity, or refused by name: what a reply satisfies is what the schema says, never less. The grammar may allow less
// than the schema (declared properties come in their order, numbers have at most 18 digits on either side of the
// point); docs/api.md lists how each keyword is read.
#pragma once

#include <nlohmann/json.hpp>

#include "grammar/grammar_tree.h"

namespace tensorfold {

/// The expression of a value that satisfies `schema`. Throws Error(kInvalidArgument) that names the keyword and where
/// it is.
GrammarNode parse_json_schema(GrammarTree& tree, const nlohmann::ordered_json& schema);

}  // namespace tensorfold
