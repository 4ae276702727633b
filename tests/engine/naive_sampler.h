// The draw written down once more, straight from engine.md 2: everything is sorted, nothing is skipped. The host
// sampler must agree with it on every input.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/host_sampler.h"

namespace tensorfold::testing {

/// Penalties and biases written down once more: every id is counted and computed. `reply` includes the row's path.
inline std::vector<float> naive_adjust(const std::vector<float>& logits, const LogitRule& rule,
                                       const std::vector<std::int32_t>& prompt,
                                       const std::vector<std::int32_t>& reply) {
  std::vector<float> adjusted = logits;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    const auto in_prompt = std::count(prompt.begin(), prompt.end(), id);
    const auto in_reply = std::count(reply.begin(), reply.end(), id);
    double x = logits[i];
    if (std::isinf(x)) continue;
    if (in_prompt + in_reply > 0) x = x > 0 ? x / rule.repetition_penalty : x * rule.repetition_penalty;
    x -= rule.frequency_penalty * static_cast<double>(in_reply);
    if (in_reply > 0) x -= rule.presence_penalty;
    for (const TokenBias& bias : rule.bias) x += bias.token == id ? bias.bias : 0.0;
    const double bound = std::numeric_limits<float>::max();
    adjusted[i] = static_cast<float>(std::min(std::max(x, -bound), bound));
  }
  return adjusted;
}

inline Draw naive_draw(const std::vector<float>& logits, const std::vector<std::uint32_t>* allowed,
                       const SamplingRule& rule, std::int64_t position) {
  struct Entry {
    double s;
    float logit;
    std::int32_t id;
  };
  const double temperature = std::max(rule.temperature, 1e-6);
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == INFINITY) return {DrawStatus::kNotFinite, -1};
    if (allowed != nullptr && ((*allowed)[i / 32] >> (i % 32) & 1u) == 0) continue;
    if (std::isinf(logits[i])) continue;
    entries.push_back({static_cast<double>(logits[i]) / temperature, logits[i], static_cast<std::int32_t>(i)});
  }
  if (entries.empty()) return {DrawStatus::kNoneAllowed, -1};
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.logit > b.logit; });
  if (rule.temperature <= 0) return {DrawStatus::kDrawn, entries[0].id};
  if (rule.top_k > 0 && entries.size() > static_cast<std::size_t>(rule.top_k)) {
    entries.resize(static_cast<std::size_t>(rule.top_k));
  }
  if (rule.top_p > 0 && rule.top_p < 1) {
    std::size_t kept = 0;
    if (rule.top_k > 0 && rule.top_k <= 256) {
      double total = 0, cumulative = 0;
      for (const Entry& entry : entries) total += exp_exact(entry.s - entries[0].s);
      for (const Entry& entry : entries) {
        cumulative += exp_exact(entry.s - entries[0].s) / total;
        kept += cumulative < rule.top_p ? 1 : 0;
        if (cumulative >= rule.top_p) break;
      }
    } else {
      std::vector<std::uint64_t> masses;
      std::uint64_t total = 0, cumulative = 0;
      for (const Entry& entry : entries) {
        masses.push_back(static_cast<std::uint64_t>(std::floor(std::ldexp(exp_exact(entry.s - entries[0].s), 40))));
        total += masses.back();
      }
      const long double need = std::ceil(static_cast<long double>(rule.top_p) * static_cast<long double>(total));
      for (const std::uint64_t mass : masses) {
        cumulative += mass;
        if (static_cast<long double>(cumulative) >= need) break;
        ++kept;
      }
    }
    entries.resize(std::min(entries.size(), kept + 1));
  }
  if (rule.min_p > 0) {
    const double bound = entries[0].s + log_exact(rule.min_p);
    std::erase_if(entries, [&](const Entry& entry) { return !(entry.s >= bound); });
  }
  // min-p of 1 or more may leave none but the first.
  std::int32_t winner = -1;
  double best = -INFINITY;
  const std::uint64_t row = sampling::row_key(sampling::request_key(rule.seed), static_cast<std::uint64_t>(position));
  for (const Entry& entry : entries) {
    const double score = entry.s + sampling::gumbel(sampling::noise_bits(row, entry.id));
    if (winner < 0 || score > best) {
      best = score;
      winner = entry.id;
    }
  }
  return {DrawStatus::kDrawn, winner};
}

}  // namespace tensorfold::testing
