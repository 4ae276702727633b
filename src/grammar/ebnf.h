// Grammars that clients write: rules "name ::= ..." over texts in quotes, character classes, groups, | and the
// quantifiers
// * + ? {m} {m,} {m,n}, with # comments. The root rule is "root". The dialect that llama.cpp's and xgrammar's users
// write.
#pragma once

#include <string_view>

#include "grammar/grammar_tree.h"

namespace tensorfold {

/// The index of the root rule. Throws Error(kInvalidArgument) with the line of what is wrong.
int parse_ebnf(GrammarTree& tree, std::string_view text);

}  // namespace tensorfold
