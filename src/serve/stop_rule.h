// Stop strings as a rule on a stream's path: decided on committed tokens alone, by the bytes they add, so that drafts
// and neighbours can't change where a reply ends (api.md 0.3, 4.9). The text side cuts the reply before the match.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/path_rule.h"
#include "text/tokenizer.h"

namespace tensorfold {

class StopRule final : public PathRule {
 public:
  StopRule(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::string> stops);
  std::unique_ptr<PathRule> clone() const override { return std::make_unique<StopRule>(*this); }
  Verdict advance(std::int32_t token) override;

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const std::vector<std::string>> stops_;
  std::size_t longest_ = 0;
  std::string tail_;  // the last bytes, one fewer than the longest stop
};

}  // namespace tensorfold
