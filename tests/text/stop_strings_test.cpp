// The stop-string matcher against a plain search of the whole text, in every cut into three pieces.
#include "text/stop_strings.h"

#include <gtest/gtest.h>

namespace tensorfold {
namespace {

TEST(StopStrings, SameInEveryCut) {
  struct Case {
    std::vector<std::string> stops;
    std::string text, shown, stop;
  };
  const Case cases[] = {
      {{"END"}, "text END more", "text ", "END"},
      {{"END"}, "text EN", "text EN", ""},
      {{"bc", "abcd"}, "xabcde", "x", "abcd"},  // the earliest position wins
      {{"bc", "abcd"}, "xabce", "xa", "bc"},
      {{"abc", "ab"}, "xabcd", "x", "abc"},  // ties go by request order
      {{"ab", "abc"}, "xabcd", "x", "ab"},
      {{"abc", "ab"}, "xab", "x", "ab"},  // the longer one never came
      {{"aab"}, "aaaab", "aa", "aab"},
      {{"\n\n", "</s>"}, "one\ntwo\n\nthree", "one\ntwo", "\n\n"},
      {{"日本"}, "今日日本", "今日", "日本"},
      {{"", "x"}, "abx", "ab", "x"},
      {{}, "abc", "abc", ""},
  };
  for (const Case& test : cases) {
    for (std::size_t first = 0; first <= test.text.size(); ++first) {
      for (std::size_t second = first; second <= test.text.size(); ++second) {
        StopStringMatcher matcher(test.stops);
        std::string shown = matcher.push(test.text.substr(0, first));
        shown += matcher.push(test.text.substr(first, second - first));
        shown += matcher.push(test.text.substr(second));
        shown += matcher.finish();
        ASSERT_EQ(shown, test.shown) << test.text << " cut at " << first << ", " << second;
        ASSERT_EQ(matcher.matched() ? matcher.stop() : "", test.stop)
            << test.text << " cut at " << first << ", " << second;
      }
    }
  }
}

TEST(StopStrings, HoldsBackNoMoreThanAPossibleBeginning) {
  StopStringMatcher matcher({"STOP"});
  EXPECT_EQ(matcher.push("abcS"), "abc");
  EXPECT_EQ(matcher.push("T"), "");
  EXPECT_EQ(matcher.push("x"), "STx");
}

}  // namespace
}  // namespace tensorfold
