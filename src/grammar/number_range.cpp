// See number_range.h.
#include "grammar/number_range.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/error.h"

namespace tensorfold {
namespace {

constexpr std::size_t kDigitsMax = 18;

/// A bound of a magnitude (a number without its sign).
struct Magnitude {
  std::string whole = "0";
  std::string fraction;
  bool exclusive = false;
};

int compare_magnitudes(const std::string& whole_a, const std::string& fraction_a, const std::string& whole_b,
                       const std::string& fraction_b) {
  if (whole_a.size() != whole_b.size()) return whole_a.size() < whole_b.size() ? -1 : 1;
  if (const int order = whole_a.compare(whole_b); order != 0) return order < 0 ? -1 : 1;
  const int order = fraction_a.compare(fraction_b);  // digits after the point compare as texts
  return order < 0 ? -1 : order > 0 ? 1 : 0;
}

/// Digit strings between two bounds, built from the first digit on. A side is tight while all digits so far equal the
/// bound's.
class DigitRange {
 public:
  explicit DigitRange(GrammarTree& tree) : tree_(tree) {}

  /// Strings of exactly low.size() digits between `low` and `high` (of the same length).
  GrammarNode same_length(const std::string& low, const std::string& high) {
    return same_length_from(low, high, 0, true, true);
  }

  /// Fractions: digits after a point, without the point. `low` and `high` may be absent (free). Texts that end early
  /// stand for zeros. `first`: at least one digit.
  GrammarNode fraction(const Magnitude* low, const Magnitude* high) { return fraction_from(low, high, 0, true); }

  /// Whether the fraction may be left out altogether.
  static bool may_end(const Magnitude* low, const Magnitude* high, std::size_t position) {
    if (low != nullptr && (position < low->fraction.size() || low->exclusive)) return false;
    if (high != nullptr && position >= high->fraction.size() && high->exclusive) return false;
    return true;
  }

 private:
  GrammarNode digits(char first, char last) {
    if (first > last) return tree_.nothing();
    return tree_.characters(CharacterSet{{static_cast<unsigned char>(first), static_cast<unsigned char>(last)}});
  }

  GrammarNode same_length_from(const std::string& low, const std::string& high, std::size_t position, bool low_tight,
                               bool high_tight) {
    const int left = static_cast<int>(low.size() - position);
    if (left == 0) return tree_.empty();
    if (!low_tight && !high_tight) return tree_.repeat(digits('0', '9'), left, left);
    const char least = low_tight ? low[position] : '0';
    const char most = high_tight ? high[position] : '9';
    if (least > most) return tree_.nothing();
    if (low_tight && high_tight && least == most) {
      return tree_.sequence({digits(least, least), same_length_from(low, high, position + 1, true, true)});
    }
    std::vector<GrammarNode> forms;
    char free_first = least;
    char free_last = most;
    if (low_tight) {
      forms.push_back(tree_.sequence({digits(least, least), same_length_from(low, high, position + 1, true, false)}));
      ++free_first;
    }
    if (high_tight) {
      forms.push_back(tree_.sequence({digits(most, most), same_length_from(low, high, position + 1, false, true)}));
      --free_last;
    }
    if (free_first <= free_last) {
      forms.push_back(
          tree_.sequence({digits(free_first, free_last), same_length_from(low, high, position + 1, false, false)}));
    }
    return tree_.choice(std::move(forms));
  }

  GrammarNode fraction_from(const Magnitude* low, const Magnitude* high, std::size_t position, bool first) {
    const int left = static_cast<int>(kDigitsMax - position);
    if (low == nullptr && high == nullptr) return tree_.repeat(digits('0', '9'), first ? 1 : 0, left);
    std::vector<GrammarNode> forms;
    if (!first && may_end(low, high, position)) forms.push_back(tree_.empty());
    if (left == 0) return tree_.choice(std::move(forms));
    const auto digit_of = [position](const Magnitude* bound) {
      return position < bound->fraction.size() ? bound->fraction[position] : '0';
    };
    const char least = low != nullptr ? digit_of(low) : '0';
    const char most = high != nullptr ? digit_of(high) : '9';
    const auto add = [&](char from, char to, const Magnitude* next_low, const Magnitude* next_high) {
      if (from > to) return;
      forms.push_back(tree_.sequence({digits(from, to), fraction_from(next_low, next_high, position + 1, false)}));
    };
    if (low != nullptr && high != nullptr && least == most) {
      add(least, least, low, high);
    } else if (least <= most) {
      if (low != nullptr) add(least, least, low, nullptr);
      if (high != nullptr) add(most, most, nullptr, high);
      const char free_first = static_cast<char>(least + (low != nullptr ? 1 : 0));
      const char free_last = static_cast<char>(most - (high != nullptr ? 1 : 0));
      add(free_first, free_last, nullptr, nullptr);
    }
    return tree_.choice(std::move(forms));
  }

  GrammarTree& tree_;
};

/// Numbers without a sign, between two magnitudes.
class MagnitudeRange {
 public:
  MagnitudeRange(GrammarTree& tree, bool whole_only) : tree_(tree), digits_(tree), whole_only_(whole_only) {}

  GrammarNode between(const Magnitude& low, const std::optional<Magnitude>& high) {
    if (high) {
      const int order = compare_magnitudes(low.whole, low.fraction, high->whole, high->fraction);
      if (order > 0 || (order == 0 && (low.exclusive || high->exclusive))) return tree_.nothing();
    }
    std::vector<GrammarNode> forms;
    if (high && high->whole == low.whole) {
      forms.push_back(with_fraction(low.whole, &low, &*high));
      return tree_.choice(std::move(forms));
    }
    forms.push_back(with_fraction(low.whole, &low, nullptr));
    if (high) forms.push_back(with_fraction(high->whole, nullptr, &*high));
    const std::string first = successor(low.whole);
    const std::string last = high ? predecessor(high->whole) : std::string(kDigitsMax, '9');
    for (std::size_t length = first.size(); length <= std::min(last.size(), kDigitsMax); ++length) {
      const std::string least = length == first.size() ? first : "1" + std::string(length - 1, '0');
      const std::string most = length == last.size() ? last : std::string(length, '9');
      if (least > most) continue;
      forms.push_back(tree_.sequence({digits_.same_length(least, most), any_fraction()}));
    }
    return tree_.choice(std::move(forms));
  }

 private:
  GrammarNode any_fraction() {
    if (whole_only_) return tree_.empty();
    return tree_.optional(tree_.sequence({tree_.literal("."), digits_.fraction(nullptr, nullptr)}));
  }

  /// Numbers whose whole part is `whole` and whose fraction is within the bounds' fractions.
  GrammarNode with_fraction(const std::string& whole, const Magnitude* low, const Magnitude* high) {
    std::vector<GrammarNode> ends;
    if (DigitRange::may_end(low, high, 0)) ends.push_back(tree_.empty());
    if (!whole_only_) ends.push_back(tree_.sequence({tree_.literal("."), digits_.fraction(low, high)}));
    return tree_.sequence({tree_.literal(whole), tree_.choice(std::move(ends))});
  }

  static std::string successor(std::string digits) {
    for (std::size_t i = digits.size(); i-- > 0;) {
      if (digits[i] != '9') {
        ++digits[i];
        return digits;
      }
      digits[i] = '0';
    }
    return "1" + digits;
  }

  /// Of a number above zero.
  static std::string predecessor(std::string digits) {
    for (std::size_t i = digits.size(); i-- > 0;) {
      if (digits[i] != '0') {
        --digits[i];
        break;
      }
      digits[i] = '9';
    }
    const std::size_t first = digits.find_first_not_of('0');
    return first == std::string::npos ? "0" : digits.substr(first);
  }

  GrammarTree& tree_;
  DigitRange digits_;
  bool whole_only_;
};

Magnitude magnitude_of(const NumberBound& bound) {
  return {bound.value.whole, bound.value.fraction, bound.exclusive};
}

}  // namespace

Decimal Decimal::parse(std::string_view text) {
  Decimal decimal;
  if (text.starts_with('-')) {
    decimal.negative = true;
    text.remove_prefix(1);
  }
  int exponent = 0;
  if (const std::size_t mark = text.find_first_of("eE"); mark != std::string_view::npos) {
    std::string_view digits = text.substr(mark + 1);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), exponent);
    if (error != std::errc() || end != digits.data() + digits.size()) exponent = 1000;
    text = text.substr(0, mark);
  }
  const std::size_t point = text.find('.');
  std::string digits(text.substr(0, point));
  int fraction_digits = 0;
  if (point != std::string_view::npos) {
    digits += text.substr(point + 1);
    fraction_digits = static_cast<int>(text.size() - point - 1);
  }
  const std::size_t significant = digits.find_first_not_of('0');
  if (significant == std::string::npos) return Decimal{};
  // value = digits * 10^(exponent - fraction_digits)
  const int shift = std::clamp(exponent, -1000, 1000) - fraction_digits;
  if (shift >= 0) {
    digits.append(static_cast<std::size_t>(shift), '0');
    decimal.whole = digits;
  } else {
    const auto places = static_cast<std::size_t>(-shift);
    if (digits.size() <= places) digits.insert(0, places - digits.size() + 1, '0');
    decimal.whole = digits.substr(0, digits.size() - places);
    decimal.fraction = digits.substr(digits.size() - places);
  }
  const std::size_t first = decimal.whole.find_first_not_of('0');
  decimal.whole = first == std::string::npos ? "0" : decimal.whole.substr(first);
  const std::size_t last = decimal.fraction.find_last_not_of('0');
  decimal.fraction.resize(last == std::string::npos ? 0 : last + 1);
  if (decimal.whole.size() > kDigitsMax || decimal.fraction.size() > kDigitsMax) {
    fail(ErrorCode::kInvalidArgument, "a bound has more than {} digits before or after the point", kDigitsMax);
  }
  return decimal;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  const int order = compare_magnitudes(a.whole, a.fraction, b.whole, b.fraction);
  return a.negative ? -order : order;
}

GrammarNode number_in_range(GrammarTree& tree, const NumberRange& range, bool whole_only) {
  MagnitudeRange magnitudes(tree, whole_only);
  std::vector<GrammarNode> forms;
  const bool lower_is_negative = !range.lower || range.lower->value.negative;
  const bool upper_is_negative = range.upper && range.upper->value.negative;
  if (!upper_is_negative) {
    Magnitude low;
    if (range.lower && !range.lower->value.negative) low = magnitude_of(*range.lower);
    std::optional<Magnitude> high;
    if (range.upper) high = magnitude_of(*range.upper);
    forms.push_back(magnitudes.between(low, high));
  }
  if (lower_is_negative) {
    // Below zero the magnitudes run the other way; zero itself is written without a sign.
    Magnitude low{"0", "", true};
    if (upper_is_negative) low = magnitude_of(*range.upper);
    std::optional<Magnitude> high;
    if (range.lower) high = magnitude_of(*range.lower);
    forms.push_back(tree.sequence({tree.literal("-"), magnitudes.between(low, high)}));
  }
  return tree.choice(std::move(forms));
}

}  // namespace tensorfold
