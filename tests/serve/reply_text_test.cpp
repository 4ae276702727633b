// Stop strings, reasoning markers, defaults and efforts, whatever pieces the text arrives in.
#include "serve/reply_text.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"

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
    const ReplyTextPiece pieces = text.push(static_cast<unsigned char>(c));
    reasoning += pieces.reasoning;
    content += pieces.content;
  }
  const ReplyTextPiece rest = text.finish(true);
  EXPECT_EQ(reasoning + rest.reasoning, "why");
  EXPECT_EQ(content + rest.content, "so EN, ");
  EXPECT_EQ(text.stop_sequence(), "END");
  EXPECT_FALSE(text.inside_reasoning());
}

/// Tokens of several bytes that cut marks, stop strings and characters anywhere.
class PieceTokenizer : public FakeTokenizer {
 public:
  static constexpr std::int32_t kSpecial = 23;
  std::string token_bytes(std::int32_t id) const override {
    static const char* const kPieces[] = {"a",  "b",     "ab",     "<",  "<th",         "</th", "ink>",  "</think>",
                                          "\n", "\n\n",  "op",     "st", "stop",        "\xc3", "\xa9",  "\xc3\xa9x",
                                          " ",  "think", ">\n\nb", "s",  "</think>\nq", "o",    "p</th", "\xe6\xbc"};
    return id == kSpecial ? "" : kPieces[id];
  }
  bool is_special(std::int32_t id) const override { return id == kSpecial; }
};

// The definition beside the incremental rule: everything decoded at once, cut, split at once, and each token looked up.
TEST(ReplyText, EveryTokenHasTheFateOfItsText) {
  const auto tokenizer = std::make_shared<PieceTokenizer>();
  std::mt19937_64 random(29);
  int shown_count = 0, hidden_count = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const bool inside = trial % 3 == 0;
    const ReasoningFormat format = trial % 4 == 0 ? ReasoningFormat::kNone : ReasoningFormat::kThink;
    const std::vector<std::string> stops =
        trial % 2 == 0 ? std::vector<std::string>{"stop", "opb"} : std::vector<std::string>{};
    ReplyText text(tokenizer, stops, format, inside);
    StreamDecoder decoder(tokenizer, true);
    std::string decoded, content;
    std::vector<std::size_t> ends;  // per token: where the decoded text ends after it
    std::vector<TokenFate> fates;
    const auto take = [&](const ReplyTextPiece& piece) {
      content += piece.content;
      fates.insert(fates.end(), piece.fates.begin(), piece.fates.end());
      ASSERT_LE(fates.size(), ends.size()) << "a fate before its token";
    };
    for (int i = static_cast<int>(random() % 12); i > 0 && !text.stop_sequence(); --i) {
      const auto token = static_cast<std::int32_t>(random() % 24);
      decoded += decoder.push(token);
      ends.push_back(decoded.size());
      take(text.push(token));
    }
    const bool ended = trial % 5 == 0 && !text.stop_sequence();
    if (ended) {
      text.pass_over();
      ends.push_back(decoded.size());
    }
    decoded += decoder.finish();
    take(text.finish(true));
    ASSERT_EQ(fates.size(), ends.size());

    StopStringMatcher matcher(stops);
    std::string cut = matcher.push(decoded);
    cut += matcher.finish();
    ReasoningSplitter splitter(format, inside);
    ReplyPieces all = splitter.push(cut);
    const ReplyPieces rest = splitter.finish();
    all.content_ranges.insert(all.content_ranges.end(), rest.content_ranges.begin(), rest.content_ranges.end());
    ASSERT_EQ(content, all.content + rest.content);
    std::string from_ranges;
    for (const TextRange& range : all.content_ranges)
      from_ranges += decoded.substr(range.begin, range.end - range.begin);
    ASSERT_EQ(from_ranges, content);
    const bool open_end = !matcher.matched() && !splitter.inside();
    for (std::size_t i = 0; i < ends.size(); ++i) {
      const std::size_t begin = i == 0 ? 0 : ends[i - 1];
      std::size_t own = i;  // the token whose text this one shares
      while (own < ends.size() && ends[own] == begin) ++own;
      const std::size_t end = own < ends.size() ? ends[own] : decoded.size();
      bool shown = end == begin && open_end;
      for (const TextRange& range : all.content_ranges) shown |= range.begin < end && range.end > begin;
      ASSERT_EQ(fates[i] == TokenFate::kShown, shown)
          << "trial " << trial << " token " << i << " of '" << decoded << "'";
      ++(shown ? shown_count : hidden_count);
    }
  }
  EXPECT_GT(shown_count, 10'000);
  EXPECT_GT(hidden_count, 10'000);
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
  EXPECT_EQ(sampling_defaults({{"repetition_penalty", 1.1}}, {}).repetition_penalty, 1.1);
  for (const nlohmann::json& value : {nlohmann::json(0), nlohmann::json(-1), nlohmann::json("x")}) {
    EXPECT_EQ(sampling_defaults({{"repetition_penalty", value}}, {}).repetition_penalty, 1.0);
  }
}

TEST(SamplingDefaults, InstructSamplingHoldsForUnthinkingSampledChats) {
  ServedModel model;
  SamplingFlags flags;
  flags.top_k = 40;
  const nlohmann::json config = {{"temperature", 0.3}, {"repetition_penalty", 1.05}};
  model.defaults = sampling_defaults(config, flags);
  model.instruct_defaults = sampling_defaults(config, flags, *parse_instruct_sampling("card min_p=0.1,top_p=0.9"));
  GenerationRequest request;
  request.is_chat = true;
  const SamplingDefaults& instruct = defaults_for(model, request, false);
  const SamplingRule rule = resolve_sampling(instruct, request);
  EXPECT_EQ(rule.temperature, 0.7);
  EXPECT_EQ(rule.top_p, 0.9);
  EXPECT_EQ(rule.min_p, 0.1);
  EXPECT_EQ(rule.top_k, 40);  // flags win
  EXPECT_EQ(resolve_logit_rule(instruct, request).presence_penalty, 1.5);
  EXPECT_EQ(resolve_logit_rule(instruct, request).repetition_penalty, 1.05);
  request.presence_penalty = 0.0;  // the request wins
  EXPECT_EQ(resolve_logit_rule(instruct, request).presence_penalty, 0.0);
  request.presence_penalty.reset();
  EXPECT_EQ(&defaults_for(model, request, true), &model.defaults);
  request.temperature = 0.0;  // greedy: none of it
  EXPECT_EQ(&defaults_for(model, request, false), &model.defaults);
  request.temperature.reset();
  request.is_chat = false;
  EXPECT_EQ(&defaults_for(model, request, false), &model.defaults);
}

TEST(SamplingDefaults, InstructSamplingSaysWhatIsWrong) {
  EXPECT_FALSE(parse_instruct_sampling("none").has_value());
  EXPECT_EQ(parse_instruct_sampling("card")->top_k, 20);
  EXPECT_EQ(parse_instruct_sampling("top_k=-1")->top_k, -1);
  for (const char* text : {"", "cards", "temperature", "temperature=", "temperature=hot", "temperature=-1", "top_p=1.5",
                           "top_k=1.5", "top_k=nan", "presence_penalty=3", "repetition_penalty=0", "seed=1", "=1",
                           "temperature=inf", "temperature=nan", "card none"}) {
    EXPECT_THROW(parse_instruct_sampling(text), Error) << text;
  }
}

}  // namespace
}  // namespace tensorfold::testing
