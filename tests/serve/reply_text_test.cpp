// Stop strings, reasoning markers, defaults and efforts, whatever pieces the text arrives in.
#include "serve/reply_text.h"

#include <gtest/gtest.h>

#include "serve/fake_model.h"
#include "serve/sampling_defaults.h"
#include "serve/stop_rule.h"

namespace tensorfold::testing {
namespace {

TEST(ReplyText, CutsBeforeTheStopAndSplitsReasoning) {
  const auto tokenizer = std::make_shared<FakeTokenizer>();
  ReplyText text(tokenizer, {"END", "ENDING"}, ReasoningFormat::kThink, true);
  std::string reasoning, content;
  for (const char c : std::string("why\n</think>\n\nso EN, ENDING more")) {
    const ReplyPieces pieces = text.push(static_cast<unsigned char>(c));
    reasoning += pieces.reasoning;
    content += pieces.content;
  }
  const ReplyPieces rest = text.finish();
  EXPECT_EQ(reasoning + rest.reasoning, "why");
  EXPECT_EQ(content + rest.content, "so EN, ");
  EXPECT_EQ(text.stop_sequence(), "END");
  EXPECT_FALSE(text.inside_reasoning());
}

TEST(StopRule, DecidesOnTheTokenThatCompletesAMatchAndClonesItsPath) {
  const auto tokenizer = std::make_shared<FakeTokenizer>();
  StopRule rule(tokenizer, {"abc"});
  EXPECT_EQ(rule.advance('a'), PathRule::Verdict::kContinue);
  EXPECT_EQ(rule.advance('b'), PathRule::Verdict::kContinue);
  const auto branch = rule.clone();
  EXPECT_EQ(branch->advance('x'), PathRule::Verdict::kContinue);
  EXPECT_EQ(rule.advance('c'), PathRule::Verdict::kStop);
  EXPECT_EQ(branch->advance('c'), PathRule::Verdict::kContinue);
}

TEST(SamplingDefaults, FlagsOverCheckpointOverGreedy) {
  EXPECT_EQ(sampling_defaults(nlohmann::json::object(), {}).temperature, 0.0);
  EXPECT_EQ(sampling_defaults({{"do_sample", true}}, {}).temperature, 1.0);
  EXPECT_EQ(sampling_defaults({{"do_sample", false}, {"temperature", 0.7}}, {}).temperature, 0.0);
  SamplingFlags flags;
  flags.top_p = 0.5;
  const auto mixed = sampling_defaults({{"temperature", 0.7}, {"top_k", 20}, {"top_p", 0.8}}, flags);
  EXPECT_EQ(mixed.temperature, 0.7);
  EXPECT_EQ(mixed.top_k, 20);
  EXPECT_EQ(mixed.top_p, 0.5);
}

}  // namespace
}  // namespace tensorfold::testing
