// The host's draw over a whole vocabulary: finds what sampler.h defines without sorting it. Block maxima narrow top-k,
// integer masses by digit of the sort key find a nucleus of any width, and a keyed argmax skips every block whose best
// possible score can't win. Each shortcut only leaves out work whose outcome is decided; results equal the definition.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/logit_adjust.h"
#include "ops/sampler.h"
#include "engine/sampler_loops.h"

namespace tensorfold {

enum class DrawStatus {
  kDrawn,
  kNotFinite,   // a logit is NaN or +inf: the stream ends with an error
  kNoneAllowed  // the mask, or logits of -inf, leave no candidate
};

struct Draw {
  DrawStatus status = DrawStatus::kDrawn;
  std::int32_t token = -1;
};

class HostSampler {
 public:
  explicit HostSampler(std::int32_t vocabulary_size, const sampling::SamplerLoops& loops = sampling::sampler_loops());

  /// Draws the token of absolute index `position` from a row of logits. `allowed_bits` may be null (all allowed).
  /// `adjusted` (LogitAdjust::collect) replaces logits of ids that the mask allows; greedy draws see them, too.
  Draw draw(const float* logits, const std::uint32_t* allowed_bits, const SamplingRule& rule, std::int64_t position,
            std::span<const AdjustedLogit> adjusted = {});

  /// The raw distribution at temperature 1: log-probability of `token`, and the `top` best by (value descending, id
  /// ascending). Returns false when a logit is NaN or +inf or none is finite.
  bool logprobs(const float* logits, std::int32_t token, std::int32_t top, TokenLogprob& chosen,
                std::vector<TokenLogprob>& alternatives);

  /// The first `k` candidates of a row, in order (fewer when fewer are finite). Returns false when a logit is NaN or +inf
  /// or none is finite.
  bool best(const float* logits, std::int32_t k, std::vector<sampling::Candidate>& candidates);

  /// False when a logit is NaN or +inf.
  bool is_finite(const float* logits);

 private:
  /// A prefix of the order: candidates up to and including `last` whose scaled value is at least `bound`.
  struct Prefix {
    sampling::Candidate last;
    double bound;
  };

  bool scan(const float* logits);
  /// A copy of the row with its mask and its adjusted logits.
  const float* changed_row(const float* logits, const std::uint32_t* allowed_bits,
                           std::span<const AdjustedLogit> adjusted);
  sampling::Candidate first_candidate(const float* logits) const;
  /// The first `k` candidates in order (fewer when fewer are finite), in top_. Needs scan().
  void select_top(const float* logits, std::int32_t k);
  /// The k-th candidate in order, or the last finite one; leaves the first k, in no order, in top_. Needs scan().
  sampling::Candidate top_end(const float* logits, std::int32_t k);
  /// The last candidate of the nucleus among those up to `end`.
  sampling::Candidate nucleus_end(const float* logits, const sampling::Candidate& end, double first, double temperature,
                                  double p);
  sampling::Candidate nucleus_end_by_digits(const float* logits, const sampling::Candidate& end, std::uint64_t need);
  std::int32_t keyed_argmax(const float* logits, const Prefix& prefix, double temperature, std::uint64_t row) const;

  std::int32_t vocabulary_size_;
  const sampling::SamplerLoops& loops_;
  float max_ = 0.0f;  // of the row last scanned
  std::vector<float> block_max_;
  std::vector<float> block_order_;
  std::vector<float> changed_;
  std::vector<double> masses_;
  std::vector<std::uint64_t> digit_mass_;
  std::vector<std::int32_t> members_, next_members_;
  std::vector<sampling::Candidate> top_;
};

}  // namespace tensorfold
