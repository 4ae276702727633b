// See stop_rule.h.
#include "serve/stop_rule.h"

#include <algorithm>

namespace tensorfold {

StopRule::StopRule(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::string> stops)
    : tokenizer_(std::move(tokenizer)) {
  for (const std::string& stop : stops) longest_ = std::max(longest_, stop.size());
  stops_ = std::make_shared<const std::vector<std::string>>(std::move(stops));
}

PathRule::Verdict StopRule::advance(std::int32_t token) {
  if (tokenizer_->is_special(token)) return Verdict::kContinue;
  tail_ += tokenizer_->token_bytes(token);
  for (const std::string& stop : *stops_) {
    if (tail_.find(stop) != std::string::npos) return Verdict::kStop;
  }
  // A match that is still to come can reach back at most one byte less than the longest stop.
  if (longest_ > 0 && tail_.size() > longest_ - 1) tail_.erase(0, tail_.size() - (longest_ - 1));
  return Verdict::kContinue;
}

}  // namespace tensorfold
