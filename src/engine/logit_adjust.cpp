// Penalties and biases on a row's logits (see logit_adjust.h).
#include "engine/logit_adjust.h"

#include <algorithm>
#include <limits>

namespace tensorfold {
namespace {

constexpr float kExcluded = -std::numeric_limits<float>::infinity();

float finite_float(double value) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value, -kMax, kMax));
}

}  // namespace

LogitAdjust::LogitAdjust(const LogitRule& rule, std::span<const std::int32_t> prompt)
    : repetition_(rule.repetition_penalty),
      frequency_(rule.frequency_penalty),
      presence_(rule.presence_penalty),
      counts_(rule.has_penalties()) {
  for (const TokenBias& bias : rule.bias) entry(bias.token).bias = bias.bias;
  if (repetition_ == 1.0) return;
  for (const std::int32_t token : prompt) entry(token).seen = true;
}

LogitAdjust::Entry& LogitAdjust::entry(std::int32_t token) {
  const auto [found, added] = index_.try_emplace(token, entries_.size());
  if (added) entries_.push_back({.token = token});
  return entries_[found->second];
}

void LogitAdjust::commit(std::int32_t token) {
  if (!counts_) return;
  Entry& counted = entry(token);
  counted.seen = true;
  ++counted.reply_count;
}

float LogitAdjust::adjusted_logit(const Entry& entry, float logit) const {
  if (logit == kExcluded) return logit;
  double x = static_cast<double>(logit);
  if (entry.seen && repetition_ != 1.0) x = x > 0.0 ? x / repetition_ : x * repetition_;
  if (entry.reply_count > 0) {
    x -= frequency_ * static_cast<double>(entry.reply_count);
    x -= presence_;
  }
  return finite_float(x + entry.bias);
}

void LogitAdjust::collect(const float* logits, std::span<const std::int32_t> path,
                          std::vector<AdjustedLogit>& adjusted) const {
  adjusted.clear();
  adjusted.reserve(entries_.size() + path.size());
  for (const Entry& entry : entries_) {
    adjusted.push_back({entry.token, adjusted_logit(entry, logits[entry.token])});
  }
  if (!counts_) return;
  for (std::size_t i = 0; i < path.size(); ++i) {  // a path is short: counting it by comparing is cheapest
    const std::int32_t token = path[i];
    if (std::find(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(i), token) !=
        path.begin() + static_cast<std::ptrdiff_t>(i)) {
      continue;  // done at its first place
    }
    const auto found = index_.find(token);
    Entry grown = found == index_.end() ? Entry{.token = token} : entries_[found->second];
    grown.seen = true;
    grown.reply_count += static_cast<std::int32_t>(std::count(path.begin(), path.end(), token));
    const AdjustedLogit value{token, adjusted_logit(grown, logits[token])};
    if (found == index_.end()) {
      adjusted.push_back(value);
    } else {
      adjusted[found->second] = value;
    }
  }
}

}  // namespace tensorfold
