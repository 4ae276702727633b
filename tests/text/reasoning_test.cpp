// The reasoning splitter: known replies, each in every cut into two and three pieces and byte by byte.
#include "text/reasoning.h"

#include <gtest/gtest.h>

namespace tensorfold {
namespace {

struct Case {
  ReasoningFormat format;
  bool starts_inside;
  const char* text;
  const char* reasoning;
  const char* content;
};

ReplyPieces split(const Case& test, std::initializer_list<std::size_t> cuts) {
  ReasoningSplitter splitter(test.format, test.starts_inside);
  ReplyPieces all;
  const std::string_view text = test.text;
  std::size_t begin = 0;
  const auto add = [&](const ReplyPieces& pieces) {
    all.reasoning += pieces.reasoning;
    all.content += pieces.content;
  };
  for (std::size_t cut : cuts) {
    add(splitter.push(text.substr(begin, cut - begin)));
    begin = cut;
  }
  add(splitter.push(text.substr(begin)));
  add(splitter.finish());
  return all;
}

TEST(Reasoning, SplitsTheSameInEveryCut) {
  const Case cases[] = {
      {ReasoningFormat::kThink, true, "\nIt is 4.\n</think>\n\nFour.", "It is 4.", "Four."},
      {ReasoningFormat::kThink, true, "<think>\nhm\n\nso </think>ok", "hm\n\nso", "ok"},
      {ReasoningFormat::kThink, false, "<think>a</think>b</think>c<think>", "a", "b</think>c<think>"},
      {ReasoningFormat::kThink, false, "plain <thi text", "", "plain <thi text"},
      {ReasoningFormat::kThink, true, "never closed </thin", "never closed </thin", ""},
      {ReasoningFormat::kNone, false, "<think>x</think>", "", "<think>x</think>"},
      {ReasoningFormat::kChannel, false, "<|channel>thought\nhm<channel|>yes", "hm", "yes"},
      {ReasoningFormat::kHarmony, false,
       "<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>final<|message|>done<|return|>", "think",
       "done"},
  };
  for (const Case& test : cases) {
    const std::size_t size = std::string_view(test.text).size();
    for (std::size_t first = 0; first <= size; ++first) {
      for (std::size_t second = first; second <= size; ++second) {
        const ReplyPieces pieces = split(test, {first, second});
        ASSERT_EQ(pieces.reasoning, test.reasoning) << test.text << " cut at " << first << ", " << second;
        ASSERT_EQ(pieces.content, test.content) << test.text << " cut at " << first << ", " << second;
      }
    }
  }
}

TEST(Reasoning, ShowsTextAsSoonAsItIsCertain) {
  ReasoningSplitter splitter(ReasoningFormat::kThink, true);
  EXPECT_EQ(splitter.push("abc").reasoning, "abc");
  EXPECT_EQ(splitter.push("</th").reasoning, "");
  EXPECT_EQ(splitter.push("x").reasoning, "</thx");
  EXPECT_TRUE(splitter.inside());
  EXPECT_EQ(splitter.push("</think>\n\nhi").content, "hi");
  EXPECT_FALSE(splitter.inside());
}

}  // namespace
}  // namespace tensorfold
