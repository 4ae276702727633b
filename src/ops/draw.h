// The keyed draw where the logits lie, so that a round doesn't have to bring a vocabulary of logits to the host. Optional:
// the engine's host sampler draws whatever a backend doesn't, and both give the same token (one-arithmetic.md, rule 10).
#pragma once

#include <cstdint>

#include "ops/sampling_rule.h"

namespace tensorfold::ops {

// Results below zero, in place of a token.
inline constexpr std::int32_t kDrawNotFinite = -1;    // a logit is NaN or +inf
inline constexpr std::int32_t kDrawNoneAllowed = -2;  // every logit is -inf
inline constexpr std::int32_t kDrawOnHost = -3;       // not drawn: the backend doesn't, or wasn't asked to
inline constexpr std::int32_t kDrawPending = -4;      // put there by whoever waits for the draw (Backend::await_draws)

/// One row's draw; 64-bit members, so that arrays of it travel as words.
struct RowDraw {
  SamplingRule rule;
  std::int64_t position = 0;  // absolute index of the token being drawn
  std::int64_t wanted = 0;    // 0: leave kDrawOnHost
};
static_assert(sizeof(RowDraw) % sizeof(std::int32_t) == 0);
inline constexpr std::int64_t kRowDrawWords = sizeof(RowDraw) / sizeof(std::int32_t);

/// tokens[r] = the draw of sampler.h from logits[r, 0..vocabulary), or a code above. Only for rules that
/// Backend::can_draw() admits.
struct DrawParams {
  const float* logits = nullptr;  // [rows, vocabulary]
  std::int64_t rows = 0;
  std::int64_t vocabulary = 0;
  const RowDraw* draws = nullptr;  // host array [rows]
  std::int32_t* tokens = nullptr;  // [rows], backend memory or that of Backend::allocate_host()
};

}  // namespace tensorfold::ops
