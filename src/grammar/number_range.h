// JSON numbers within bounds, as grammar expressions: digit by digit, so that no rounding decides. Numbers are written
// without an exponent here, with at most 18 digits before the point and 18 after it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "grammar/grammar_tree.h"

namespace tensorfold {

/// A decimal number as digits: value = sign * 0.fraction + whole.
struct Decimal {
  bool negative = false;
  std::string whole = "0";  // no leading zeros
  std::string fraction;     // no trailing zeros

  /// From a JSON number's text. Throws Error(kInvalidArgument) beyond 18 digits on either side of the point.
  static Decimal parse(std::string_view text);
  bool is_zero() const { return whole == "0" && fraction.empty(); }
  bool is_whole() const { return fraction.empty(); }
};

struct NumberBound {
  Decimal value;
  bool exclusive = false;
};

struct NumberRange {
  std::optional<NumberBound> lower;
  std::optional<NumberBound> upper;
};

/// -1, 0 or 1.
int compare(const Decimal& a, const Decimal& b);

/// Numbers inside the range; `whole_only` leaves out fractions. An empty range gives nothing().
GrammarNode number_in_range(GrammarTree& tree, const NumberRange& range, bool whole_only);

}  // namespace tensorfold
