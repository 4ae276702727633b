// Stop strings, reasoning markers, defaults and efforts, whatever pieces the text arrives in.
#include "serve/reply_text.h"

#include <gtest/gtest.h>

#include "serve/chat_prompt.h"
#include "serve/fake_model.h"
#include "serve/sampling_defaults.h"
#include "serve/stop_rule.h"

namespace tensorfold::testing {
namespace {

struct Split {
  std::string reasoning, content;
  bool operator==(const Split&) const = default;
};

Split split(const std::string& text, bool inside, std::size_t piece) {
  ReasoningSplitter splitter("<think>", "</think>", inside);
  Split result;
  for (std::size_t i = 0; i < text.size(); i += piece)
    splitter.push(text.substr(i, piece), result.reasoning, result.content);
  splitter.finish(result.reasoning, result.content);
  return result;
}

TEST(ReasoningSplitter, SplitsTheSameInAnyPieces) {
  struct Case {
    const char* text;
    bool inside;
    Split expected;
  };
  const Case cases[] = {{"<think>\nwhy\n</think>\n\nso", false, {"why", "so"}},
                        {"\nwhy\n</think>\n\nso", true, {"why", "so"}},
                        {"<think>why</think>so", true, {"why", "so"}},
                        {"plain <think>text</think>", false, {"", "plain <think>text</think>"}},
                        {"  <thin air", false, {"", "  <thin air"}},
                        {"never closed </thin", true, {"never closed </thin", ""}},
                        {"</think>only", true, {"", "only"}},
                        {"a\n\nb</think>c</think>", true, {"a\n\nb", "c</think>"}},
                        {"", true, {"", ""}}};
  for (const Case& entry : cases) {
    for (const std::size_t piece : {1, 2, 3, 7, 100}) {
      const Split got = split(entry.text, entry.inside, piece);
      EXPECT_EQ(got.reasoning, entry.expected.reasoning) << entry.text << " in pieces of " << piece;
      EXPECT_EQ(got.content, entry.expected.content) << entry.text << " in pieces of " << piece;
    }
  }
}

TEST(StopFilter, CutsAtTheEarliestMatchInAnyPieces) {
  for (const std::size_t piece : {1, 2, 5, 50}) {
    StopFilter filter({"END", "ENDING", "xx"});
    std::string text;
    const std::string source = "an x, an EN, the ENDING xx";
    for (std::size_t i = 0; i < source.size(); i += piece) text += filter.push(source.substr(i, piece));
    text += filter.finish();
    EXPECT_EQ(text, "an x, an EN, the ");
    EXPECT_EQ(filter.matched().value_or(""), "END");
  }
  StopFilter none({"zz"});
  std::string whole = none.push("a z");
  whole += none.finish();
  EXPECT_EQ(whole, "a z");
  EXPECT_FALSE(none.matched());
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

TEST(Effort, NearestLevelTiesGoHigher) {
  EXPECT_EQ(coerce_effort("medium", {"high", "low"}), "high");
  EXPECT_EQ(coerce_effort("minimal", {"high", "low"}), "low");
  EXPECT_EQ(coerce_effort("max", {}), "xhigh");
  EXPECT_EQ(coerce_effort("minimal", {}), "low");
  EXPECT_EQ(coerce_effort("xhigh", {"low"}), "xhigh");
}

TEST(Messages, LeadingSystemMessagesMergeAndLateOnesFollowTheTemplate) {
  const auto messages = nlohmann::ordered_json::parse(
      R"([{"role":"system","content":"a"},{"role":"developer","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]},
          {"role":"user","content":null},{"role":"system","content":"late"}])");
  const auto kept = normalise_messages(messages, true);
  ASSERT_EQ(kept.size(), 3u);
  EXPECT_EQ(kept[0]["content"], "a\n\nbc");
  EXPECT_EQ(kept[1]["content"], "");
  EXPECT_EQ(kept[2]["role"], "system");
  EXPECT_EQ(normalise_messages(messages, false)[2]["role"], "user");
}

}  // namespace
}  // namespace tensorfold::testing
