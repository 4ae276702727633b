// Regular expressions as grammars: the common subset of ECMAScript's and Python's syntax that describes regular
// languages. What isn't one (look-around, back references) or would be read differently by the two is refused by name.
// Where the two differ in which characters a class holds, the class is what both hold.
#pragma once

#include <functional>
#include <string_view>

#include "grammar/grammar_tree.h"

namespace tensorfold {

/// How a set of characters of the pattern is spelled in the text that is generated.
using CharacterSpelling = std::function<GrammarNode(GrammarTree&, const CharacterSet&)>;

enum class RegexMatch {
  kWhole,   // the pattern describes the whole text
  kSearch,  // it describes a part of the text unless it is anchored (JSON schema's `pattern`)
};

/// Throws Error(kInvalidArgument) that says what isn't supported and where.
GrammarNode parse_regex(GrammarTree& tree, std::string_view pattern, RegexMatch match,
                        const CharacterSpelling& spelling);

/// Characters as they are.
GrammarNode spell_plainly(GrammarTree& tree, const CharacterSet& set);

}  // namespace tensorfold
