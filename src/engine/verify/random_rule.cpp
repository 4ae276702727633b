// See random_rule.h.
#include "engine/verify/random_rule.h"

#include "ops/sampler.h"

namespace tensorfold::fold {
namespace {

std::uint64_t chain(std::uint64_t state, std::int64_t value) {
  return sampling::mix(state * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(value) + 1);
}

}  // namespace

RandomRule::RandomRule(std::uint64_t seed, std::int32_t vocabulary_size)
    : state_(sampling::mix(seed)), vocabulary_size_(vocabulary_size) {}

PathRule::Verdict RandomRule::advance(std::int32_t token) {
  state_ = chain(state_, token);
  if (!forced_.empty()) {
    forced_.erase(forced_.begin());
  } else if (state_ % 11 == 0) {
    const auto count = static_cast<int>(1 + (state_ >> 8) % 4);
    const auto vocabulary = static_cast<std::uint64_t>(vocabulary_size_);
    for (int i = 0; i < count; ++i) forced_.push_back(static_cast<std::int32_t>(chain(state_, i) % vocabulary));
  }
  const std::uint64_t fate = (state_ >> 16) % 127;
  return fate == 0 ? Verdict::kStop : fate == 1 ? Verdict::kCut : Verdict::kContinue;
}

bool RandomRule::mask(std::vector<std::uint32_t>& allowed_bits) {
  if ((state_ >> 24) % 3 == 0) return false;
  // Three tokens in four are allowed.
  for (std::size_t word = 0; word < allowed_bits.size(); ++word) {
    const std::uint64_t bits = chain(state_, static_cast<std::int64_t>(word));
    allowed_bits[word] = static_cast<std::uint32_t>(bits) | static_cast<std::uint32_t>(bits >> 32);
  }
  const std::int32_t past_end = vocabulary_size_ % 32;
  if (past_end != 0 && !allowed_bits.empty()) allowed_bits.back() &= (1u << past_end) - 1;
  return true;
}

}  // namespace tensorfold::fold
