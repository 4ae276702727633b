// A grammar as a rule on a stream's path: masks every draw of the answer, lets reasoning go before it, and allows the
// end of the reply only where the text satisfies the grammar. Where the answer begins is decided by tokens alone (the
// token after the one that closes the reasoning block), so that drafts and neighbours can't move it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/path_rule.h"
#include "grammar/grammar.h"
#include "serve/structured_output.h"
#include "text/reasoning.h"
#include "text/tokenizer.h"

namespace tensorfold {

struct GrammarRuleSetting {
  std::shared_ptr<const Tokenizer> tokenizer;
  const ThoughtMarks* marks = nullptr;  // lives as long as the model
  ReasoningFormat format = ReasoningFormat::kNone;
  std::vector<std::int32_t> stop_tokens;
  bool ignore_stop_tokens = false;
  bool thinking = false;        // the reply may begin with a reasoning block
  bool inside_thought = false;  // the prompt has opened one
  std::int32_t vocabulary_size = 0;
  std::optional<std::int32_t> first_token;  // the only one, blanks apart, with which the answer may begin
};

class GrammarRule final : public PathRule {
 public:
  GrammarRule(std::shared_ptr<const GrammarRuleSetting> setting, std::unique_ptr<GrammarMatcher> matcher);
  GrammarRule(const GrammarRule& other);
  std::unique_ptr<PathRule> clone() const override { return std::make_unique<GrammarRule>(*this); }
  Verdict advance(std::int32_t token) override;
  bool mask(std::vector<std::uint32_t>& allowed_bits) override;

 private:
  enum class Phase { kBeforeThought, kThought, kAnswer };

  void advance_thought(std::int32_t token);
  void mask_thought(std::vector<std::uint32_t>& allowed_bits) const;
  void mask_answer(std::vector<std::uint32_t>& allowed_bits);
  void mask_other_beginnings(std::vector<std::uint32_t>& allowed_bits) const;
  bool can_go_on();

  std::shared_ptr<const GrammarRuleSetting> setting_;
  std::unique_ptr<GrammarMatcher> matcher_;
  Phase phase_;
  StreamDecoder decoder_;
  ReasoningSplitter splitter_;
  bool answer_begun_ = false;  // with something that isn't blank
  std::string thought_end_;    // the last bytes of the thought, as many as can begin the closing mark
};

}  // namespace tensorfold
