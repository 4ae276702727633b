// Grammars put together from parts: texts up to a mark, choices and repetitions around schemas, with masks that hold
// exactly what may come.
#include <gtest/gtest.h>

#include "grammar/matching.h"

namespace tensorfold::testing {
namespace {

using Kind = GrammarPart::Kind;

GrammarPart part(Kind kind, std::string text, std::vector<GrammarPart> parts = {}, int minimum = 0, int maximum = 0) {
  GrammarPart made;
  made.kind = kind;
  made.text = std::move(text);
  made.parts = std::move(parts);
  made.minimum = minimum;
  made.maximum = maximum;
  return made;
}

GrammarSource source_of(GrammarPart parts) {
  GrammarSource source;
  source.kind = GrammarSource::Kind::kParts;
  source.parts = std::move(parts);
  return source;
}

TEST(GrammarParts, TextEndsAtItsFirstMark) {
  for (const std::string mark : {"</p>", "aab", "aaaa", "abab", "x"}) {
    const GrammarSource source = source_of(part(Kind::kTextUntil, mark));
    for (const std::string& text :
         {std::string(), std::string("b"), std::string("a<"), std::string("<</p"), std::string("ab\xc3\xa9\n{")}) {
      EXPECT_TRUE(accepts(source, text + mark)) << mark << " after '" << text << "'";
      EXPECT_FALSE(accepts(source, text + mark + mark));  // nothing follows the first
      EXPECT_FALSE(accepts(source, text + mark.substr(0, mark.size() - 1) + "|"));
    }
    for (unsigned seed = 0; seed < 4; ++seed) {
      bool complete = false;
      check_masks(source, seed, 20, complete);
    }
  }
}

// The automaton against the definition: a text is accepted exactly when its first mark is its end.
TEST(GrammarParts, TextUntilEqualsASearch) {
  std::mt19937 random(7);
  for (const std::string mark : {"aab", "aba", "abaab", "bb"}) {
    const GrammarSource source = source_of(part(Kind::kTextUntil, mark));
    int taken = 0;
    for (int trial = 0; trial < 2000; ++trial) {
      std::string text;
      const std::size_t length = random() % 10;
      for (std::size_t i = 0; i < length; ++i) text += "ab"[random() % 2];
      const bool expected = text.size() >= mark.size() && text.find(mark) == text.size() - mark.size();
      EXPECT_EQ(accepts(source, text), expected) << text << " until " << mark;
      taken += expected ? 1 : 0;
    }
    EXPECT_GT(taken, 5);
  }
}

TEST(GrammarParts, ComposeChoicesRepetitionsAndSchemas) {
  GrammarPart number = part(Kind::kJsonSchema, "");
  number.json = {{"type", "integer"}, {"minimum", 1}, {"maximum", 9}};
  const GrammarPart item = part(Kind::kChoice, "",
                                {part(Kind::kSequence, "", {part(Kind::kText, "n="), number}),
                                 part(Kind::kText, "none"), part(Kind::kJsonObject, "")});
  const GrammarSource source =
      source_of(part(Kind::kSequence, "",
                     {part(Kind::kBlanks, "", {}, 0, 2), item,
                      part(Kind::kRepeat, "", {part(Kind::kSequence, "", {part(Kind::kText, ";"), item})}, 0, -1)}));
  for (const char* text : {"n=5", "  none", "none;n=9;{\"a\": [1]}", "\n{}"})
    EXPECT_TRUE(accepts(source, text)) << text;
  for (const char* text : {"", "n=0", "   none", "none;", "none none", "n=5;;none"})
    EXPECT_FALSE(accepts(source, text)) << text;
}

}  // namespace
}  // namespace tensorfold::testing
