// Client-written grammars, choices, and the front ends' limits on what clients send.
#include "grammar/matching.h"

namespace tensorfold::testing {
namespace {

constexpr const char* kArithmetic = R"ebnf(# sums
root ::= expr
expr ::= expr "+" term | term
term ::= [0-9]+ | "(" expr ")"
)ebnf";

TEST(Ebnf, AllowsExactlyItsTexts) {
  const GrammarSource sums = ebnf_source(kArithmetic);
  for (const char* text : {"1", "12+3", "(1+2)+34", "((7))"}) EXPECT_TRUE(accepts(sums, text)) << text;
  for (const char* text : {"", "+", "1+", "(1", "1)"}) EXPECT_FALSE(accepts(sums, text)) << text;
  const GrammarSource words =
      ebnf_source("root ::= (\"a\" | x-y)* . [^a-c\\n]?\nx-y ::= \"\\x41\\u00e9\\\"\\n\" {2}\n");
  EXPECT_TRUE(accepts(words, "aaz"));
  EXPECT_TRUE(accepts(words, "A\xc3\xa9\"\nA\xc3\xa9\"\na!"));
  EXPECT_FALSE(accepts(words, "A\xc3\xa9\"\na!"));
}

TEST(Ebnf, RefusesWithALine) {
  struct Case {
    const char* text;
    const char* part;
  };
  const Case cases[] = {{"", "no rule 'root'"},
                        {"a ::= \"b\"", "no rule 'root'"},
                        {"root ::= missing", "'missing' (line 1)"},
                        {"root ::= \"a\"\nroot ::= \"b\"", "line 2"},
                        {"root ::= \"a", "isn't closed"},
                        {"root ::= [a", "isn't closed"},
                        {"root ::= (\"a\"", "without ')'"},
                        {"root \"a\"", "'::='"},
                        {"root ::= (=\"a\")", "look-ahead"},
                        {"root ::= \"a\"{5,2}", "below"},
                        {"root ::= \"a\"{99999}", "more than"},
                        {"root ::= \"a\" root", "no text"},
                        {"root ::= \"\xff\"", "UTF-8"},
                        {"root ::= \"a\" )", "line 1"}};
  for (const Case& entry : cases) {
    EXPECT_NE(refusal(ebnf_source(entry.text)).find(entry.part), std::string::npos)
        << entry.text << ": " << refusal(ebnf_source(entry.text));
  }
  EXPECT_NE(refusal(ebnf_source("root ::= " + std::string(100'000, '('))), "");
}

TEST(Ebnf, LongChainsOfRulesAreBounded) {
  const auto chain = [](int rules) {
    std::string text = "root ::= r0\n";
    for (int i = 0; i < rules; ++i) text += fmt::format("r{} ::= \"x\" r{} | \"\"\n", i, i + 1);
    return text + fmt::format("r{} ::= \"y\"\n", rules);
  };
  EXPECT_TRUE(accepts(ebnf_source(chain(4000)), "xxx"));
  EXPECT_NE(refusal(ebnf_source(chain(20'000))), "");
}

TEST(Ebnf, DeadEndsAreLeftOut) {
  // "b" leads into a rule that nothing can finish.
  const GrammarSource source = ebnf_source("root ::= \"a\" | \"b\" endless\nendless ::= \"x\" endless\n");
  const auto matcher = small_compiler()->compile(source)->start();
  EXPECT_FALSE(matcher->clone()->advance('b'));
  EXPECT_TRUE(matcher->clone()->advance('a'));
}

TEST(Ebnf, MasksAreExact) {
  const char* grammars[] = {kArithmetic, "root ::= \"a\" root \"b\" | \"\" | \"ab\"",
                            "root ::= x x x\nx ::= (\"a\" | \"ab\" | \"aba\" | \"\")\n",
                            "root ::= (a b)* \"!\"\na ::= b?\nb ::= \"a\"* | \"b\"\n"};
  for (const char* grammar : grammars) {
    for (unsigned seed = 0; seed < 4; ++seed) {
      bool complete = false;
      check_masks(ebnf_source(grammar), seed, 25, complete);
      if (HasFailure()) FAIL() << grammar;
    }
  }
}

TEST(Choice, AllowsExactlyItsTexts) {
  const GrammarSource source = choice_source({"yes", "no", "yes, really", "\xe6\x97\xa5\xe6\x9c\xac", "\"\\\n"});
  for (const char* text : {"yes", "no", "yes, really", "\xe6\x97\xa5\xe6\x9c\xac", "\"\\\n"}) {
    EXPECT_TRUE(accepts(source, text)) << text;
  }
  for (const char* text : {"", "ye", "yes,", "noo", "\xe6\x97\xa5"}) EXPECT_FALSE(accepts(source, text)) << text;
  EXPECT_NE(refusal(choice_source({})), "");
  EXPECT_NE(refusal(choice_source({std::string(1'000'000, 'x')})).find("literal text"), std::string::npos);
  bool complete = false;
  for (unsigned seed = 0; seed < 8; ++seed) check_masks(source, seed, 30, complete);
}

TEST(Matcher, ClonesGoTheirOwnWays) {
  const auto grammar = small_compiler()->compile(ebnf_source(kArithmetic));
  const auto trunk = grammar->start();
  ASSERT_TRUE(trunk->advance('('));
  const auto left = trunk->clone();
  const auto right = trunk->clone();
  ASSERT_TRUE(left->advance('1'));
  ASSERT_TRUE(right->advance('('));
  ASSERT_TRUE(left->advance(')'));
  ASSERT_TRUE(right->advance('2'));
  EXPECT_TRUE(left->is_complete());
  EXPECT_FALSE(right->is_complete());
  EXPECT_FALSE(left->advance(')'));
  EXPECT_TRUE(right->advance(')'));
  EXPECT_TRUE(trunk->advance('3'));  // where it was
  EXPECT_FALSE(trunk->is_complete());
}

TEST(Matcher, TextBeforeTheFirstToken) {
  const auto grammar = small_compiler()->compile(choice_source({"abcd", "abxy"}));
  const auto matcher = grammar->start();
  EXPECT_FALSE(matcher->clone()->advance_text("ac"));
  ASSERT_TRUE(matcher->advance_text("ab"));
  const auto other = grammar->start();
  ASSERT_TRUE(other->advance('a'));
  ASSERT_TRUE(matcher->advance('x'));
  EXPECT_FALSE(matcher->advance('d'));
  EXPECT_TRUE(matcher->advance('y'));
  EXPECT_TRUE(matcher->is_complete());
}

TEST(Compiler, EqualSourcesShareOneGrammar) {
  const auto first = small_compiler()->compile(regex_source("cached[0-9]"));
  EXPECT_EQ(first, small_compiler()->compile(regex_source("cached[0-9]")));
  EXPECT_NE(first, small_compiler()->compile(regex_source("cached[0-8]")));
}

}  // namespace
}  // namespace tensorfold::testing
