// Grammars that are put together from parts: fixed text, JSON under a schema, free text up to a mark. How a model
// writes calls of tools is such a text; which text that is, its caller knows.
#pragma once

#include "grammar/grammar.h"
#include "grammar/grammar_tree.h"

namespace tensorfold {

/// Throws Error(kInvalidArgument) for a schema that is refused.
GrammarNode assemble_parts(GrammarTree& tree, const GrammarPart& part);

}  // namespace tensorfold
