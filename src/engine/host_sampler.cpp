// The host's draw (see host_sampler.h).
#include "engine/host_sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"
#include "engine/float_mode.h"

namespace tensorfold {
namespace {

using sampling::Candidate;
using sampling::kSamplerBlock;
using sampling::sort_key;

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr std::int32_t kNucleusFirstTry = 512;  // candidates sorted before a nucleus is sought by digits

/// At least gumbel(noise') for every noise' <= noise: own logarithms may err by a unit, which the slack covers.
double gumbel_bound(std::uint64_t noise) {
  const double value = sampling::gumbel(noise);
  return value + 1e-9 * (1.0 + std::abs(value));
}

}  // namespace

HostSampler::HostSampler(std::int32_t vocabulary_size, const sampling::SamplerLoops& loops)
    : vocabulary_size_(vocabulary_size), loops_(loops) {
  TF_ASSERT(vocabulary_size > 0);
  block_max_.resize((static_cast<std::size_t>(vocabulary_size) + kSamplerBlock - 1) / kSamplerBlock);
}

bool HostSampler::scan(const float* logits) {
  if (!loops_.scan(logits, vocabulary_size_, block_max_.data())) return false;
  max_ = *std::max_element(block_max_.begin(), block_max_.end());
  return true;
}

bool HostSampler::is_finite(const float* logits) {
  const ScopedIeeeMode mode;
  return scan(logits);
}

Candidate HostSampler::first_candidate(const float* logits) const {
  std::size_t block = 0;
  while (block_max_[block] != max_) ++block;
  std::int32_t token = static_cast<std::int32_t>(block) * kSamplerBlock;
  while (logits[token] != max_) ++token;
  return {logits[token], token};
}

void HostSampler::select_top(const float* logits, std::int32_t k) {
  top_end(logits, k);
  std::sort(top_.begin(), top_.end(), sampling::comes_before);
}

bool HostSampler::best(const float* logits, std::int32_t k, std::vector<Candidate>& candidates) {
  const ScopedIeeeMode mode;
  TF_ASSERT(k > 0);
  if (!scan(logits) || max_ == kNever) return false;
  select_top(logits, k);
  candidates = top_;
  return true;
}

Candidate HostSampler::top_end(const float* logits, std::int32_t k) {
  k = std::min(k, vocabulary_size_);
  // The k-th largest block maximum is at most the k-th largest logit: nothing below it can be among the first k.
  float floor = kNever;
  if (static_cast<std::size_t>(k) <= block_max_.size()) {
    block_order_ = block_max_;
    const auto kth = block_order_.begin() + (k - 1);
    std::nth_element(block_order_.begin(), kth, block_order_.end(), std::greater<float>());
    floor = *kth;
  }
  top_.clear();
  for (std::size_t block = 0; block < block_max_.size(); ++block) {
    if (!(block_max_[block] >= floor)) continue;
    const std::int32_t first = static_cast<std::int32_t>(block) * kSamplerBlock;
    const std::int32_t end = std::min(first + kSamplerBlock, vocabulary_size_);
    for (std::int32_t token = first; token < end; ++token) {
      if (logits[token] >= floor && logits[token] != kNever) top_.push_back({logits[token], token});
    }
  }
  const std::size_t kept = std::min(static_cast<std::size_t>(k), top_.size());
  TF_ASSERT(kept > 0);
  const auto last = top_.begin() + static_cast<std::ptrdiff_t>(kept - 1);
  std::nth_element(top_.begin(), last, top_.end(), sampling::comes_before);
  top_.resize(kept);
  return top_.back();
}

Candidate HostSampler::nucleus_end(const float* logits, const Candidate& end, double first, double temperature,
                                   double p) {
  masses_.resize(static_cast<std::size_t>(vocabulary_size_));
  std::uint64_t total = loops_.masses(logits, vocabulary_size_, first, temperature, masses_.data());
  if (end.logit != kNever) {  // top_ holds the candidates up to it
    total = 0;
    for (const Candidate& kept : top_) {
      total += static_cast<std::uint64_t>(masses_[static_cast<std::size_t>(kept.token)]);
    }
  }
  const std::uint64_t need = sampling::nucleus_need(total, p);
  select_top(logits, kNucleusFirstTry);
  std::uint64_t cumulative = 0;
  for (const Candidate& candidate : top_) {
    cumulative += static_cast<std::uint64_t>(masses_[static_cast<std::size_t>(candidate.token)]);
    if (cumulative >= need) return candidate;
  }
  return nucleus_end_by_digits(logits, end, need);
}

// A radix walk over the sort key, highest digit first: per digit value the masses are summed, the digit value in which
// the running sum reaches `need` is kept, and only its members go on. After the last digit all members have equal
// logits and are in ascending id order.
Candidate HostSampler::nucleus_end_by_digits(const float* logits, const Candidate& end, std::uint64_t need) {
  struct Digit {
    int shift, bits;
  };
  constexpr Digit kDigits[] = {{20, 12}, {8, 12}, {0, 8}};
  members_.clear();
  for (std::int32_t token = 0; token < vocabulary_size_; ++token) {
    if (logits[token] != kNever && !sampling::comes_before(end, {logits[token], token})) members_.push_back(token);
  }
  std::uint64_t cumulative = 0;
  for (const Digit& digit : kDigits) {
    const std::uint32_t digit_mask = (1u << digit.bits) - 1u;
    digit_mass_.assign(std::size_t{1} << digit.bits, 0);
    for (const std::int32_t token : members_) {
      digit_mass_[sort_key(logits[token]) >> digit.shift & digit_mask] +=
          static_cast<std::uint64_t>(masses_[static_cast<std::size_t>(token)]);
    }
    std::uint32_t value = digit_mask;
    while (cumulative + digit_mass_[value] < need) {
      TF_ASSERT(value > 0);  // need <= total
      cumulative += digit_mass_[value--];
    }
    next_members_.clear();
    for (const std::int32_t token : members_) {
      if ((sort_key(logits[token]) >> digit.shift & digit_mask) == value) next_members_.push_back(token);
    }
    members_.swap(next_members_);
  }
  for (const std::int32_t token : members_) {
    cumulative += static_cast<std::uint64_t>(masses_[static_cast<std::size_t>(token)]);
    if (cumulative >= need) return {logits[token], token};
  }
  TF_ASSERT(false);
  return {};
}

std::int32_t HostSampler::keyed_argmax(const float* logits, const Prefix& prefix, double temperature,
                                       std::uint64_t row) const {
  const Candidate start = first_candidate(logits);
  Candidate winner = start;
  double best = sampling::scaled(start.logit, temperature) + sampling::gumbel(sampling::noise_bits(row, start.token));
  for (std::size_t block = 0; block < block_max_.size(); ++block) {
    const double block_best = sampling::scaled(block_max_[block], temperature);
    if (!(block_max_[block] >= prefix.last.logit) || block_max_[block] == kNever || !(block_best >= prefix.bound)) {
      continue;
    }
    const std::int32_t first = static_cast<std::int32_t>(block) * kSamplerBlock;
    const std::int32_t count = std::min(kSamplerBlock, vocabulary_size_ - first);
    const double noise_best = gumbel_bound(loops_.noise_max(row, first, count));
    if (block_best + noise_best < best) continue;
    for (std::int32_t token = first; token < first + count; ++token) {
      const Candidate candidate{logits[token], token};
      const double s = sampling::scaled(candidate.logit, temperature);
      if (candidate.logit == kNever || s + noise_best < best) continue;
      if (!(s >= prefix.bound) || sampling::comes_before(prefix.last, candidate)) continue;
      const double score = s + sampling::gumbel(sampling::noise_bits(row, token));
      if (score > best || (score == best && sampling::comes_before(candidate, winner))) {
        best = score;
        winner = candidate;
      }
    }
  }
  return winner.token;
}

const float* HostSampler::changed_row(const float* logits, const std::uint32_t* allowed_bits,
                                      std::span<const AdjustedLogit> adjusted) {
  changed_.resize(static_cast<std::size_t>(vocabulary_size_));
  if (allowed_bits != nullptr) {
    loops_.mask(logits, vocabulary_size_, allowed_bits, changed_.data());
  } else {
    std::copy_n(logits, vocabulary_size_, changed_.data());
  }
  for (const AdjustedLogit& change : adjusted) {
    float& logit = changed_[static_cast<std::size_t>(change.token)];
    if (logit != kNever) logit = change.logit;
  }
  return changed_.data();
}

Draw HostSampler::draw(const float* logits, const std::uint32_t* allowed_bits, const SamplingRule& rule,
                       std::int64_t position, std::span<const AdjustedLogit> adjusted) {
  const ScopedIeeeMode mode;
  if (!scan(logits)) return {DrawStatus::kNotFinite, -1};
  if (allowed_bits != nullptr || !adjusted.empty()) {
    logits = changed_row(logits, allowed_bits, adjusted);
    scan(logits);
  }
  if (max_ == kNever) return {DrawStatus::kNoneAllowed, -1};
  if (!(rule.temperature > 0.0)) return {DrawStatus::kDrawn, first_candidate(logits).token};

  const std::uint64_t row = sampling::row_key(sampling::request_key(rule.seed), static_cast<std::uint64_t>(position));
  if (rule.top_k > 0 && rule.top_k <= sampling::kSortedCandidatesMax) {
    select_top(logits, rule.top_k);
    const std::int32_t index = sampling::draw_from_top(top_.data(), static_cast<std::int32_t>(top_.size()), rule, row);
    return {DrawStatus::kDrawn, top_[static_cast<std::size_t>(index)].token};
  }
  const double temperature = sampling::effective_temperature(rule.temperature);
  const double first = sampling::scaled(max_, temperature);
  Prefix prefix{{kNever, std::numeric_limits<std::int32_t>::max()}, sampling::min_p_bound(first, rule.min_p)};
  if (rule.top_k > 0) prefix.last = top_end(logits, rule.top_k);
  if (sampling::top_p_is_on(rule)) prefix.last = nucleus_end(logits, prefix.last, first, temperature, rule.top_p);
  return {DrawStatus::kDrawn, keyed_argmax(logits, prefix, temperature, row)};
}

bool HostSampler::logprobs(const float* logits, std::int32_t token, std::int32_t top, TokenLogprob& chosen,
                           std::vector<TokenLogprob>& alternatives) {
  const ScopedIeeeMode mode;
  if (!scan(logits) || max_ == kNever) return false;
  const double log_sum = log_exact(loops_.exp_sum(logits, vocabulary_size_, max_));
  const auto logprob = [&](float logit) {
    return static_cast<float>((static_cast<double>(logit) - static_cast<double>(max_)) - log_sum);
  };
  chosen = {token, logprob(logits[token])};
  alternatives.clear();
  if (top <= 0) return true;
  select_top(logits, top);
  for (const Candidate& candidate : top_) alternatives.push_back({candidate.token, logprob(candidate.logit)});
  return true;
}

}  // namespace tensorfold
