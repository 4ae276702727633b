// The thinking budget as a rule on a stream's path: the reply's N-th token, if its reasoning block is still open then,
// is replaced by a line end, the closing mark and a blank line; the answer follows. It counts tokens, so drafts and
// neighbours can't move it (api.md 4.7).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/path_rule.h"
#include "text/reasoning.h"
#include "text/tokenizer.h"

namespace tensorfold {

class ThoughtRule final : public PathRule {
 public:
  /// `closing`: the tokens that close the block. `budget` >= 1.
  ThoughtRule(std::shared_ptr<const Tokenizer> tokenizer, ReasoningFormat format, bool starts_inside,
              std::shared_ptr<const std::vector<std::int32_t>> closing, std::int64_t budget)
      : decoder_(std::move(tokenizer), true),
        splitter_(format, starts_inside),
        closing_(std::move(closing)),
        budget_(budget) {}

  std::unique_ptr<PathRule> clone() const override { return std::make_unique<ThoughtRule>(*this); }

  Verdict advance(std::int32_t token) override {
    if (is_closing()) ++closed_;
    ++count_;
    splitter_.push(decoder_.push(token));
    return Verdict::kContinue;
  }

  std::vector<std::int32_t> forced_tokens() override {
    if (!is_closing()) return {};
    return {closing_->begin() + static_cast<std::ptrdiff_t>(closed_), closing_->end()};
  }

 private:
  /// The next token is one of those that close the block.
  bool is_closing() const {
    if (closed_ > 0) return closed_ < closing_->size();
    return count_ == budget_ - 1 && splitter_.inside() && !closing_->empty();
  }

  StreamDecoder decoder_;
  ReasoningSplitter splitter_;
  std::shared_ptr<const std::vector<std::int32_t>> closing_;
  std::int64_t budget_;
  std::int64_t count_ = 0;  // reply tokens so far
  std::size_t closed_ = 0;  // closing tokens so far
};

}  // namespace tensorfold
