// Which matrix gets how many bits: the global setting of a conversion and `--mixed` rules by path. Apart from the plan
// so that the language of the rules can be read and tested alone.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/affine.h"

namespace tensorfold {

/// `pattern` with * (any run of characters) and ? (one character) against the whole of `text`.
bool matches_pattern(std::string_view pattern, std::string_view text);

class QuantisationRules {
 public:
  /// `mixed`: "PATTERN=BITS", "PATTERN=BITS:GROUP" or "PATTERN=none", separated by commas; patterns are matched against
  /// module paths without the file's body prefix ("layers.3.self_attn.o_proj", "embed_tokens", "mtp.fc"); the first
  /// match wins. Throws Error(kInvalidArgument) that quotes the rule.
  QuantisationRules(const AffineSetting& global, std::string_view mixed);

  const AffineSetting& global() const { return global_; }
  struct Decision {
    std::optional<AffineSetting> setting;  // none: left as it is
    bool by_rule = false;
  };
  Decision decide(std::string_view path);
  /// Rules that no path met so far: probably misspelt.
  std::vector<std::string> unused() const;

 private:
  struct Rule {
    std::string text, pattern;
    std::optional<AffineSetting> setting;
    bool used = false;
  };
  AffineSetting global_;
  std::vector<Rule> rules_;
};

}  // namespace tensorfold
