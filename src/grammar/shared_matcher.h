// Matchers over one xgrammar matcher. Copying xgrammar's state costs as much as the text is long, and drafts branch at
// every row; its state can be rolled back, though. So all clones of a matcher share one, the trunk, which is moved to a
// clone's path (back to what they have in common, then forward) when that clone is asked something. Included by this
// room only.
#pragma once

#include <xgrammar/xgrammar.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "grammar/grammar.h"

namespace tensorfold {

class MatcherTrunk {
 public:
  MatcherTrunk(const xgrammar::CompiledGrammar& grammar, std::int32_t vocabulary_size);

  /// Moves to a path that was accepted before.
  void move_to(const std::string& text, const std::vector<std::int32_t>& tokens);
  bool accept_token(std::int32_t token);
  bool accept_text(const std::string& text);
  void mask(std::span<std::uint32_t> allowed_bits);
  bool is_complete() { return matcher_.IsCompleted(); }

 private:
  xgrammar::GrammarMatcher matcher_;
  std::int32_t vocabulary_size_;
  std::string text_;  // accepted before the first token
  std::vector<std::int32_t> tokens_;
};

class SharedMatcher final : public GrammarMatcher {
 public:
  explicit SharedMatcher(std::shared_ptr<MatcherTrunk> trunk) : trunk_(std::move(trunk)) {}
  std::unique_ptr<GrammarMatcher> clone() const override { return std::make_unique<SharedMatcher>(*this); }
  bool advance(std::int32_t token) override;
  bool advance_text(std::string_view text) override;
  void mask(std::span<std::uint32_t> allowed_bits) override;
  bool is_complete() override;

 private:
  std::shared_ptr<MatcherTrunk> trunk_;
  std::string text_;
  std::vector<std::int32_t> tokens_;
};

}  // namespace tensorfold
