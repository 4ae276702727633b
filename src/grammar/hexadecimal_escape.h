// The digits of \x, \u and \U: the one escape that grammars and regular expressions write alike.
#pragma once

#include <cstdint>

namespace tensorfold {

/// The character that `length` hexadecimal digits name. `take(what)` gives the next character or refuses with `what`;
/// `refuse(what)` does not return.
template <typename Take, typename Refuse>
std::uint32_t parse_hexadecimal_escape(int length, const Take& take, const Refuse& refuse) {
  std::uint32_t value = 0;
  for (int i = 0; i < length; ++i) {
    const std::uint32_t digit = take("a cut escape");
    const bool is_digit = digit >= '0' && digit <= '9';
    const bool is_letter = (digit | 0x20) >= 'a' && (digit | 0x20) <= 'f';
    if (!is_digit && !is_letter) refuse("an escape with something else than hexadecimal digits");
    value = value * 16 + (is_digit ? digit - '0' : (digit | 0x20) - 'a' + 10);
    if (value > 0x10ffff) refuse("an escape beyond the last character");
  }
  if (value >= 0xd800 && value <= 0xdfff) refuse("half of a surrogate pair: write the character itself");
  return value;
}

}  // namespace tensorfold
