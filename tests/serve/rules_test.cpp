// Rules on a reply's path: grammars around a reasoning block, thinking budgets, and several rules as one. The
// vocabulary is the fake one: a token is a byte.
#include <gtest/gtest.h>

#include "base/error.h"
#include "fake_model.h"
#include "serve/composite_rule.h"
#include "serve/grammar_rule.h"
#include "serve/stop_rule.h"
#include "serve/thought_rule.h"

namespace tensorfold::testing {
namespace {

using Verdict = PathRule::Verdict;

struct GrammarSetup {
  std::shared_ptr<FakeTokenizer> tokenizer = std::make_shared<FakeTokenizer>();
  StructuredOutput output{tokenizer, kFakeVocabulary, ReasoningFormat::kThink};

  std::unique_ptr<PathRule> rule(const char* pattern, bool inside_thought, bool ignore_stop_tokens = false) {
    GrammarSource source;
    source.kind = GrammarSource::Kind::kRegex;
    source.text = pattern;
    auto setting = std::make_shared<GrammarRuleSetting>();
    setting->tokenizer = tokenizer;
    setting->marks = &output.marks();
    setting->format = ReasoningFormat::kThink;
    setting->stop_tokens = {kEndToken};
    setting->ignore_stop_tokens = ignore_stop_tokens;
    setting->thinking = inside_thought;
    setting->inside_thought = inside_thought;
    setting->vocabulary_size = kFakeVocabulary;
    return std::make_unique<GrammarRule>(std::move(setting), output.compile(source)->start());
  }
};

std::vector<std::int32_t> allowed(PathRule& rule) {
  std::vector<std::uint32_t> bits((kFakeVocabulary + 31) / 32);
  EXPECT_TRUE(rule.mask(bits));
  std::vector<std::int32_t> ids;
  for (std::int32_t id = 0; id < kFakeVocabulary; ++id) {
    if ((bits[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1u) != 0) ids.push_back(id);
  }
  return ids;
}

Verdict feed(PathRule& rule, std::string_view text) {
  Verdict verdict = Verdict::kContinue;
  for (const char byte : text) verdict = rule.advance(static_cast<unsigned char>(byte));
  return verdict;
}

TEST(GrammarRule, MasksFromTheFirstToken) {
  GrammarSetup setup;
  const auto rule = setup.rule("ab?", false);
  EXPECT_EQ(allowed(*rule), std::vector<std::int32_t>({'a'}));
  feed(*rule, "a");
  EXPECT_EQ(allowed(*rule), std::vector<std::int32_t>({'b', kEndToken}));
  const auto other = rule->clone();
  feed(*rule, "b");
  EXPECT_EQ(allowed(*rule), std::vector<std::int32_t>({kEndToken}));
  EXPECT_EQ(allowed(*other), std::vector<std::int32_t>({'b', kEndToken}));
  EXPECT_THROW(rule->advance('c'), Error);
}

TEST(GrammarRule, BeginsAfterTheClosedBlock) {
  GrammarSetup setup;
  const auto rule = setup.rule("ok", true);
  feed(*rule, "any {thought] < /think> </thin");
  const std::vector<std::int32_t> inside = allowed(*rule);
  EXPECT_EQ(inside.size(), static_cast<std::size_t>(kFakeVocabulary - 1));  // all but the end of the reply
  EXPECT_EQ(std::count(inside.begin(), inside.end(), kEndToken), 0);
  feed(*rule, "k");
  EXPECT_GT(allowed(*rule).size(), 200u);
  feed(*rule, ">");
  EXPECT_EQ(allowed(*rule), std::vector<std::int32_t>({'o'}));
  feed(*rule, "ok");
  EXPECT_EQ(allowed(*rule), std::vector<std::int32_t>({kEndToken}));
}

TEST(GrammarRule, EndsWithItsTextWhenEndTokensAreIgnored) {
  GrammarSetup setup;
  const auto rule = setup.rule("a+b", false, true);
  EXPECT_EQ(feed(*rule, "aa"), Verdict::kContinue);
  EXPECT_EQ(feed(*rule, "b"), Verdict::kStop);
}

TEST(ThoughtRule, ClosesTheBlockAtItsToken) {
  const std::string closing_text = "\n</think>\n\n";
  const auto closing = std::make_shared<const std::vector<std::int32_t>>(closing_text.begin(), closing_text.end());
  const auto make = [&](std::int64_t budget) {
    return ThoughtRule(std::make_shared<FakeTokenizer>(), ReasoningFormat::kThink, true, closing, budget);
  };
  ThoughtRule rule = make(4);
  feed(rule, "ab");
  EXPECT_TRUE(rule.forced_tokens().empty());
  const auto branch = rule.clone();
  feed(rule, "c");
  ASSERT_EQ(rule.forced_tokens(), *closing);  // the fourth token and what follows
  EXPECT_TRUE(branch->forced_tokens().empty());
  for (std::size_t i = 0; i < closing->size(); ++i) {
    ASSERT_EQ(rule.forced_tokens().front(), (*closing)[i]);
    rule.advance((*closing)[i]);
  }
  EXPECT_TRUE(rule.forced_tokens().empty());
  feed(rule, "the answer, as long as it likes");
  EXPECT_TRUE(rule.forced_tokens().empty());
  ThoughtRule early = make(30);
  feed(early, "short</think>an answer that runs past the budget");
  EXPECT_TRUE(early.forced_tokens().empty());
  EXPECT_EQ(make(1).forced_tokens(), *closing);
}

TEST(CompositeRule, IntersectsMasksAndTakesTheStrictestVerdict) {
  GrammarSetup setup;
  std::vector<std::unique_ptr<PathRule>> rules;
  rules.push_back(setup.rule("[a-d]+", false));
  rules.push_back(setup.rule("[c-f]+", false));
  rules.push_back(std::make_unique<StopRule>(setup.tokenizer, std::vector<std::string>{"dc"}));
  CompositeRule rule(std::move(rules));
  EXPECT_EQ(allowed(rule), std::vector<std::int32_t>({'c', 'd'}));
  EXPECT_EQ(feed(rule, "cd"), Verdict::kContinue);
  EXPECT_EQ(allowed(rule), std::vector<std::int32_t>({'c', 'd', kEndToken}));
  const auto branch = rule.clone();
  EXPECT_EQ(feed(rule, "c"), Verdict::kStop);
  EXPECT_EQ(feed(*branch, "d"), Verdict::kContinue);
  EXPECT_TRUE(rule.forced_tokens().empty());
}

}  // namespace
}  // namespace tensorfold::testing
