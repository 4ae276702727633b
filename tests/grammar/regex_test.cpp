// Regular expressions: which texts they allow, and which patterns are refused with a reason.
#include "grammar/matching.h"

namespace tensorfold::testing {
namespace {

TEST(Regex, AllowsExactlyItsTexts) {
  struct Case {
    const char* pattern;
    std::vector<std::string> yes;
    std::vector<std::string> no;
  };
  const Case cases[] = {
      {"abc", {"abc"}, {"", "ab", "abcd", "xabc"}},
      {"^abc$", {"abc"}, {"ab", "abcd"}},
      {"a|bc", {"a", "bc"}, {"ab", "c", "abc"}},
      {"a*", {"", "a", "aaaaaaaaaaaaaaaa"}, {"b", "ab"}},
      {"(ab)+c?", {"ab", "abab", "ababc"}, {"", "c", "abcc"}},
      {"a{2,4}", {"aa", "aaa", "aaaa"}, {"a", "aaaaa"}},
      {"a{3}", {"aaa"}, {"aa", "aaaa"}},
      {"a{2,}", {"aa", "aaaaaaa"}, {"a"}},
      {"x{a", {"x{a"}, {"xa"}},
      {"[a-c0-2_-]+", {"a", "c12-_"}, {"d", "3", ""}},
      {"[^a-c\\n]", {"d", "\xc3\xa9", "\t"}, {"a", "\n", ""}},
      {"\\d{2}-\\w\\s", {"12-z ", "00-_\t"}, {"1-z ", "12-! "}},
      {"\\D\\W\\S", {"a!b", " -\xe6\x97\xa5"}, {"1!b", "aab", "a! "}},
      {"[^\\d]", {"a", "-"}, {"1"}},
      {".", {"a", "\xc3\xa9", "\xf0\x9f\x98\x80"}, {"\n", "", "ab"}},
      {"(?:a|b)(?<name>c)(?P<other>d)", {"acd", "bcd"}, {"cd", "abcd"}},
      {"a*?b+?", {"b", "aab"}, {"a"}},
      {"\\.\\\\\\[\\{\\u0041\\x42\\/", {".\\[{AB/"}, {"."}},
      {"", {""}, {"a"}},
      {"(^a|b$)", {"a", "b"}, {"ab"}},
      {"((a*)*)*b", {"b", "aab"}, {"a", ""}},
      {"(a?){3}b", {"b", "aaab"}, {"aaaab"}},
      {"\xe6\x97\xa5+", {"\xe6\x97\xa5\xe6\x97\xa5"}, {"\xe6\x97"}},
  };
  for (const Case& entry : cases) {
    for (const std::string& text : entry.yes) {
      EXPECT_TRUE(accepts(regex_source(entry.pattern), text)) << entry.pattern << " on " << text;
    }
    for (const std::string& text : entry.no) {
      EXPECT_FALSE(accepts(regex_source(entry.pattern), text)) << entry.pattern << " on " << text;
    }
  }
}

TEST(Regex, RefusesWithAReason) {
  struct Case {
    const char* pattern;
    const char* part;
  };
  const Case cases[] = {{"(a", "'(' without ')'"},
                        {"a)", "unmatched ')'"},
                        {"[a", "'[' without ']'"},
                        {"[]a]", "begins with ']'"},
                        {"*a", "nothing to repeat"},
                        {"a**", "quantifier"},
                        {"a++", "quantifier"},
                        {"(?=a)b", "look-around"},
                        {"(?<!a)b", "look-around"},
                        {"(a)\\1", "isn't supported"},
                        {"\\bfoo", "word boundary"},
                        {"\\p{L}", "isn't supported"},
                        {"(?i)a", "flags"},
                        {"a{5000}", "more than"},
                        {"a{100}", "more than"},
                        {"a{4,2}", "below its minimum"},
                        {"[z-a]", "before its start"},
                        {"a\\", "at its end"},
                        {"\\ud83d", "surrogate"},
                        {"x^", "anchor"},
                        {"a(b|^c)", "anchor"},
                        {"\xff", "UTF-8"},
                        {"[^\\s\\S]", "no text"}};
  for (const Case& entry : cases) {
    EXPECT_NE(refusal(regex_source(entry.pattern)).find(entry.part), std::string::npos)
        << entry.pattern << ": " << refusal(regex_source(entry.pattern));
  }
  EXPECT_NE(refusal(regex_source(std::string(100'000, '('))), "");
  EXPECT_NE(refusal(regex_source(std::string(2'000'000, 'a'))), "");
  // Long, but no larger than its own text: repetitions of groups share their rules.
  EXPECT_EQ(refusal(regex_source("((((a{60}){100}){100}){100}){100}")), "");
}

TEST(Regex, MasksAreExact) {
  const char* patterns[] = {"(a|b)*abb[0-9]{2,5}", "((a*)*)*b",           "(aba|ab|a)*c",   "[^\\n]{0,20}",
                            "\\d+(\\.\\d{1,3})?",  "(ab?){1,4}\xc3\xa9*", "(a{0,9}b){2,3}", ".{3,60}x",
                            "[^x]+x|x+",           "(ab|a){2,300}!"};
  for (const char* pattern : patterns) {
    for (unsigned seed = 0; seed < 3; ++seed) {
      bool complete = false;
      check_masks(regex_source(pattern), seed, 30, complete);
      if (HasFailure()) FAIL() << pattern;
    }
  }
}

}  // namespace
}  // namespace tensorfold::testing
