// A path rule for the fold test: what it masks, forces, stops and cuts follows from a hash of the path alone, as a
// grammar's or a thinking budget's decisions do. So masks differ from row to row, drafts run into masked and forced
// tokens, and the plain run can ask the same rule.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/path_rule.h"

namespace tensorfold::fold {

class RandomRule final : public PathRule {
 public:
  RandomRule(std::uint64_t seed, std::int32_t vocabulary_size);

  std::unique_ptr<PathRule> clone() const override { return std::make_unique<RandomRule>(*this); }
  Verdict advance(std::int32_t token) override;
  bool mask(std::vector<std::uint32_t>& allowed_bits) override;
  std::vector<std::int32_t> forced_tokens() override { return forced_; }

 private:
  std::uint64_t state_;
  std::int32_t vocabulary_size_;
  std::vector<std::int32_t> forced_;
};

}  // namespace tensorfold::fold
