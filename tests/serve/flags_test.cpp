// The flag grammar of api.md 1.2.
#include "cli/flags.h"

#include <gtest/gtest.h>

#include "cli/model_options.h"
#include "cli/terminal_text.h"

namespace tensorfold::cli {
namespace {

using Words = std::vector<std::string>;

std::string complaint(const Words& words) {
  try {
    parse_arguments(kServe, words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Flags, BothSpellingsLastWinsAndRepeatablesAccumulate) {
  const Arguments arguments = parse_arguments(kServe, {"--port=1", "m", "--port", "2", "--alias", "a", "--alias=b",
                                                       "--no-thinking", "--seed", "-5", "--name="});
  EXPECT_EQ(arguments.model(), "m");
  EXPECT_EQ(arguments.integer("--port"), 2);
  EXPECT_EQ(arguments.list("--alias"), (Words{"a", "b"}));
  EXPECT_TRUE(arguments.has("--no-thinking"));
  EXPECT_EQ(seed_from(*arguments.text("--seed")), 0 - 5ull);
  EXPECT_EQ(arguments.text("--name"), "");
}

TEST(Flags, Complaints) {
  EXPECT_NE(complaint({"m", "--por", "1"}).find("unrecognized arguments: --por"), std::string::npos);
  EXPECT_NE(complaint({"m", "--port"}).find("expected one argument"), std::string::npos);
  EXPECT_NE(complaint({"m", "--port", "--host"}).find("expected one argument"), std::string::npos);
  EXPECT_NE(complaint({"m", "--port", "x"}).find("invalid int"), std::string::npos);
  EXPECT_NE(complaint({"m", "--port", "70000"}).find("between 0 and 65535"), std::string::npos);
  EXPECT_NE(complaint({"m", "--context", "99999999999"}).find("at most 2147483647"), std::string::npos);
  EXPECT_NE(complaint({"m", "--context", "-5"}).find("at least 0"), std::string::npos);
  EXPECT_NE(complaint({"m", "--temperature", "warm"}).find("invalid float"), std::string::npos);
  EXPECT_NE(complaint({"m", "--temperature", "inf"}).find("invalid float"), std::string::npos);
  EXPECT_NE(complaint({"m", "--temperature=-1"}).find("--temperature"), std::string::npos);
  EXPECT_NE(complaint({"m", "--backend", "metal"}).find("invalid choice"), std::string::npos);
  EXPECT_EQ(complaint({"m", "--backend", "cuda", "--device", "1"}), "");
  EXPECT_NE(complaint({"m", "--device", "-1"}).find("between 0 and 255"), std::string::npos);
  EXPECT_NE(complaint({"m", "--thinking=x"}).find("takes no value"), std::string::npos);
  EXPECT_NE(complaint({"m", "--thinking", "--no-thinking"}).find("not allowed"), std::string::npos);
  EXPECT_NE(complaint({}).find("MODEL"), std::string::npos);
  EXPECT_NE(complaint({"m", "n"}).find("n"), std::string::npos);
  EXPECT_EQ(complaint({"m"}), "");
}

TEST(Flags, ParallelAndThreadsSayTheirBounds) {
  const auto options_of = [](const Words& words) { return model_options(parse_arguments(kServe, words)); };
  EXPECT_EQ(options_of({"m"}).lanes, 0);
  EXPECT_EQ(options_of({"m", "--parallel", "auto"}).lanes, 0);
  EXPECT_EQ(options_of({"m", "--parallel", "1"}).lanes, 1);
  EXPECT_EQ(options_of({"m", "--parallel", "256"}).lanes, 256);
  EXPECT_EQ(options_of({"m", "--threads", "0"}).threads, 0);
  for (const char* text : {"0", "-1", "257", "100000", "99999999999999999999"}) {
    try {
      options_of({"m", "--parallel", text});
      ADD_FAILURE() << text;
    } catch (const UsageError& error) {
      EXPECT_EQ(std::string(error.what()),
                std::string("argument --parallel: must be between 1 and 256, or auto, not ") + text);
    }
  }
  EXPECT_THROW(options_of({"m", "--parallel", "few"}), UsageError);
  EXPECT_NE(complaint({"m", "--threads", "4096"}).find("between 0 and 1024"), std::string::npos);
}

TEST(Flags, FlagsOfOtherBuildsAreRefusedByName) {
  for (const std::string_view name : unbuilt_flags()) {
    EXPECT_EQ(complaint({"m", std::string(name)}), "argument " + std::string(name) + ": not supported by this build");
    for (const Flag& flag : flag_table()) EXPECT_NE(flag.name, name);
  }
}

TEST(TerminalText, LeavesNothingThatATerminalObeys) {
  EXPECT_EQ(without_controls(std::string("a\0b\x1b[2J\r\x7f\n\tc", 12)), "ab[2J\n\tc");
  EXPECT_EQ(without_controls("h\xc3\xa9\xc2\x9b"
                             "1m \xc2\xa0\xe6\xbc\xa2\xc2"),
            "h\xc3\xa9"
            "1m \xc2\xa0\xe6\xbc\xa2\xc2");
}

TEST(Flags, HelpAnywhereAndItListsEveryFlag) {
  EXPECT_TRUE(parse_arguments(kServe, {"--port", "x", "-h"}).help());
  for (const Command command : {kServe, kChat, kInfo, kVerify, kConvert}) {
    const std::string help = help_text(command);
    for (const Flag& flag : flag_table()) {
      if ((flag.commands & command) == 0) continue;
      EXPECT_NE(help.find("  " + std::string(flag.name) + " "), std::string::npos) << flag.name << " of " << command;
    }
  }
}

TEST(Flags, ConvertTakesTwoPaths) {
  const Arguments arguments = parse_arguments(kConvert, {"in", "out", "--bits", "3", "--mixed=lm_head=6"});
  EXPECT_EQ(arguments.model(), "in");
  EXPECT_EQ(arguments.output(), "out");
  EXPECT_EQ(arguments.integer("--bits"), 3);
  EXPECT_EQ(arguments.text("--mixed"), "lm_head=6");
  EXPECT_THROW(parse_arguments(kConvert, {"in"}), UsageError);
  EXPECT_THROW(parse_arguments(kConvert, {"in", "out", "more"}), UsageError);
  EXPECT_THROW(parse_arguments(kConvert, {"in", "out", "--bits", "9"}), UsageError);
  EXPECT_THROW(parse_arguments(kServe, {"in", "--bits", "4"}), UsageError);
}

}  // namespace
}  // namespace tensorfold::cli
