// Stop strings as a rule on a stream's path: decided on committed tokens alone, so that drafts and neighbours can't
// change where a reply ends (api.md 0.3, 4.9). It decodes and matches as reply_text does, so that the engine ends the
// stream on the very token at which the client's text is cut.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/path_rule.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"

namespace tensorfold {

class StopRule final : public PathRule {
 public:
  StopRule(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::string> stops)
      : decoder_(std::move(tokenizer), true), matcher_(std::move(stops)) {}
  std::unique_ptr<PathRule> clone() const override { return std::make_unique<StopRule>(*this); }
  Verdict advance(std::int32_t token) override {
    matcher_.push(decoder_.push(token));
    return matcher_.matched() ? Verdict::kStop : Verdict::kContinue;
  }

 private:
  StreamDecoder decoder_;
  StopStringMatcher matcher_;
};

}  // namespace tensorfold
