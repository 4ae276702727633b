// See rules.h.
#include "convert/rules.h"

#include <charconv>

#include "base/error.h"
#include "base/convert_limits.h"
#include "checkpoint/affine_quantiser.h"
#include "checkpoint/json_file.h"

namespace tensorfold {
namespace {

[[noreturn]] void refuse(std::string_view rule, std::string_view why) {
  fail(ErrorCode::kInvalidArgument, "--mixed: the rule {} {}; write PATTERN=BITS, PATTERN=BITS:GROUP or PATTERN=none",
       in_quotes(rule), why);
}

int number(std::string_view text, std::string_view rule) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) refuse(rule, "has no whole number after the sign");
  return value;
}

std::optional<AffineSetting> parse_setting(std::string_view text, std::string_view rule, const AffineSetting& global) {
  if (text == "none") return std::nullopt;
  const std::size_t colon = text.find(':');
  AffineSetting setting = global;
  setting.bits = number(text.substr(0, colon), rule);
  if (colon != text.npos) setting.group_size = number(text.substr(colon + 1), rule);
  if (!affine_setting_exists(setting)) {
    refuse(rule, "asks for a width or group that the format lacks (bits 2, 3, 4, 5, 6, 8; groups 32, 64, 128)");
  }
  return setting;
}

}  // namespace

// Remembers the last star only: linear in pattern times text, no recursion.
bool matches_pattern(std::string_view pattern, std::string_view text) {
  std::size_t at = 0, place = 0, star = pattern.npos, resume = 0;
  while (place < text.size()) {
    if (at < pattern.size() && (pattern[at] == '?' || (pattern[at] != '*' && pattern[at] == text[place]))) {
      ++at;
      ++place;
    } else if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      resume = place;
    } else if (star != pattern.npos) {
      at = star + 1;
      place = ++resume;
    } else {
      return false;
    }
  }
  while (at < pattern.size() && pattern[at] == '*') ++at;
  return at == pattern.size();
}

QuantisationRules::QuantisationRules(const AffineSetting& global, std::string_view mixed) : global_(global) {
  if (!affine_setting_exists(global)) {
    fail(ErrorCode::kInvalidArgument,
         "{} bits in groups of {}: the format has bits 2, 3, 4, 5, 6, 8 and groups 32, 64, 128", global.bits,
         global.group_size);
  }
  while (!mixed.empty()) {
    const std::size_t comma = mixed.find(',');
    const std::string_view text = mixed.substr(0, comma);
    mixed = comma == mixed.npos ? std::string_view() : mixed.substr(comma + 1);
    const std::size_t equals = text.rfind('=');
    if (equals == text.npos || equals == 0) refuse(text, "has no pattern before its sign");
    if (rules_.size() >= limits::kConversionRulesMax) refuse(text, "is one too many");
    rules_.push_back({std::string(text), std::string(text.substr(0, equals)),
                      parse_setting(text.substr(equals + 1), text, global), false});
  }
}

QuantisationRules::Decision QuantisationRules::decide(std::string_view path) {
  for (Rule& rule : rules_) {
    if (!matches_pattern(rule.pattern, path)) continue;
    rule.used = true;
    return {rule.setting, true};
  }
  return {global_, false};
}

std::vector<std::string> QuantisationRules::unused() const {
  std::vector<std::string> result;
  for (const Rule& rule : rules_) {
    if (!rule.used) result.push_back(rule.text);
  }
  return result;
}

}  // namespace tensorfold
