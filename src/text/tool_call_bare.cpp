// See tool_call_bare.h.
#include "text/tool_call_bare.h"

#include <algorithm>
#include <array>

#include "base/limits.h"

namespace tensorfold {
namespace {

constexpr std::string_view kFence = "```";
constexpr std::array<std::string_view, 4> kFenceNames = {"json", "tool_call", "tool_calls", "tool_code"};

}  // namespace

bool BareCallScanner::may_begin(std::string_view answer) {
  const std::size_t first = skip_blanks(answer, 0);
  return first < answer.size() && (answer[first] == '{' || answer[first] == '[' || answer[first] == '`');
}

BareCallScanner::Verdict BareCallScanner::scan(std::string_view answer, BlockExtent extent) {
  std::size_t before = 0;
  Place place = place_;
  do {
    before = position_;
    place = place_;
    Verdict verdict = Verdict::kOpen;
    if (place_ == Place::kFence) {
      verdict = take_fence(answer);
    } else if (place_ == Place::kBetween) {
      verdict = take_between(answer);
    } else if (place_ == Place::kValue) {
      verdict = take_value(answer);
    } else if (skip_blanks(answer, position_) != answer.size()) {
      verdict = Verdict::kText;
    }
    if (verdict == Verdict::kText) return verdict;
  } while (position_ != before || place_ != place);
  const bool nothing_whole = values_.empty() && place_ != Place::kValue;
  return extent != BlockExtent::kGrowing && nothing_whole ? Verdict::kText : Verdict::kOpen;
}

/// The first line of a code fence, where there is one.
BareCallScanner::Verdict BareCallScanner::take_fence(std::string_view answer) {
  position_ = skip_blanks(answer, position_);
  const std::string_view rest = answer.substr(position_);
  if (rest.empty()) return Verdict::kOpen;
  if (rest.front() != '`') {
    place_ = Place::kBetween;
    return Verdict::kOpen;
  }
  const MarkMatch fence = match_mark(rest, kFence);
  if (fence != MarkMatch::kWhole) return fence == MarkMatch::kPart ? Verdict::kOpen : Verdict::kText;
  const std::size_t line_end = rest.find('\n');
  std::string_view name = rest.substr(kFence.size(), std::min(line_end, rest.size()) - kFence.size());
  if (name.ends_with('\r')) name.remove_suffix(1);
  const bool whole = line_end != std::string_view::npos;
  const auto fits = [&](std::string_view known) { return whole ? known == name : known.starts_with(name); };
  if (!name.empty() && std::none_of(kFenceNames.begin(), kFenceNames.end(), fits)) return Verdict::kText;
  if (!whole) return Verdict::kOpen;
  fenced_ = true;
  position_ += line_end + 1;
  place_ = Place::kBetween;
  return Verdict::kOpen;
}

/// What parts two values, and the beginning of the next: an object with a first key, or a list with a first object.
BareCallScanner::Verdict BareCallScanner::take_between(std::string_view answer) {
  const std::size_t begin = std::min(answer.find_first_not_of(" \t\r\n;,", position_), answer.size());
  const std::string_view rest = answer.substr(begin);
  if (rest.empty()) return Verdict::kOpen;
  const MarkMatch fence = fenced_ ? match_mark(rest, kFence) : MarkMatch::kNo;
  if (fence == MarkMatch::kPart) return Verdict::kOpen;
  if (fence == MarkMatch::kWhole) {
    position_ = begin + kFence.size();
    place_ = Place::kBehindFence;
    return Verdict::kOpen;
  }
  if (rest.front() != '{' && rest.front() != '[') return Verdict::kText;
  const std::size_t next = skip_blanks(rest, 1);
  if (next == rest.size()) return Verdict::kOpen;
  if (rest[next] != (rest.front() == '{' ? '"' : '{')) return Verdict::kText;
  position_ = value_begin_ = begin;
  nesting_ = {};
  place_ = Place::kValue;
  return Verdict::kOpen;
}

BareCallScanner::Verdict BareCallScanner::take_value(std::string_view answer) {
  while (position_ < answer.size()) {
    nesting_.step(answer[position_++]);
    if (nesting_.mismatched() || nesting_.depth() > static_cast<std::size_t>(limits::kJsonDepthMax)) {
      return Verdict::kText;
    }
    if (nesting_.depth() > 0) continue;
    values_.emplace_back(value_begin_, position_);
    place_ = Place::kBetween;
    break;
  }
  return Verdict::kOpen;
}

BareCallScanner::Verdict BareCallScanner::read(std::string_view answer, BlockExtent extent, const ToolOffer& offer,
                                               std::vector<NamedArguments>& calls) const {
  std::vector<std::pair<std::size_t, std::size_t>> values = values_;
  if (place_ == Place::kValue) {
    if (extent != BlockExtent::kComplete) return Verdict::kText;
    values.emplace_back(value_begin_, answer.size());
  }
  for (const auto& [begin, end] : values) {
    const auto json = parse_unclosed_json(answer.substr(begin, end - begin));
    std::vector<NamedArguments> named;
    if (json) named = calls_of_json(*json, offer, true);
    if (named.empty()) return Verdict::kText;
    calls.insert(calls.end(), named.begin(), named.end());
  }
  return calls.empty() ? Verdict::kText : Verdict::kCalls;
}

}  // namespace tensorfold
