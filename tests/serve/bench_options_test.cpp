// The words and flags of `tensorfold bench`.
#include "cli/bench_options.h"

#include <gtest/gtest.h>

namespace tensorfold::cli {
namespace {

using Words = std::vector<std::string>;

BenchOptions options(const Words& words) {
  return bench_options(parse_arguments(kBench, words));
}

std::string complaint(const Words& words) {
  try {
    options(words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(BenchOptions, WordsAreAModelAndParts) {
  const BenchOptions model = options({"some/model", "decode", "load", "--rows", "1,2,128"});
  EXPECT_EQ(model.model, "some/model");
  EXPECT_FALSE(model.synthetic);
  EXPECT_TRUE(model.wants(BenchPart::kDecode) && model.wants(BenchPart::kLoad));
  EXPECT_FALSE(model.wants(BenchPart::kPrefill) || model.wants(BenchPart::kKernels));
  EXPECT_EQ(model.rows, (std::vector<std::int32_t>{1, 2, 128}));
  EXPECT_TRUE(model.kernel_lanes.empty());
  const BenchOptions made = options({"kernels", "--synthetic", "qwen3-0.6b", "--format", "bf16", "--layers", "3",
                                     "--streams=2,64", "--peak-gbps", "4500", "--seed", "9", "--threads", "2"});
  ASSERT_TRUE(made.synthetic);
  EXPECT_EQ(made.model_name(), "synthetic:qwen3-0.6b");
  EXPECT_EQ(made.synthetic->format, "bf16");
  EXPECT_EQ(made.synthetic->layers, 3);
  EXPECT_EQ(made.synthetic->seed, 9u);
  EXPECT_EQ(made.synthetic->threads, 2);
  EXPECT_FALSE(made.synthetic->gguf);
  EXPECT_EQ(made.kernel_lanes, (std::vector<std::int32_t>{2, 64}));
  EXPECT_DOUBLE_EQ(made.peak_bytes_per_second, 4.5e12);
  const BenchOptions written = options({"--synthetic", "qwen3-0.6b", "--format", "bf16", "--write-gguf", "x.gguf"});
  EXPECT_TRUE(written.parts.empty());
  EXPECT_TRUE(written.synthetic->gguf);
}

TEST(BenchOptions, Complaints) {
  const auto expect = [](const Words& words, const std::string& part) {
    EXPECT_NE(complaint(words).find(part), std::string::npos) << complaint(words);
  };
  expect({"decode"}, "MODEL");
  expect({"m"}, "nothing to measure");
  expect({"m", "decode", "n"}, "unrecognized arguments: n");
  expect({"m", "decode", "--synthetic", "qwen3-0.6b"}, "unrecognized arguments: m");
  expect({"decode", "--synthetic", "qwen4"}, "invalid choice");
  expect({"decode", "--synthetic", "qwen3-0.6b", "--format", "q2"}, "invalid choice");
  expect({"m", "decode", "--layers", "2"}, "--layers: only with --synthetic");
  expect({"m", "decode", "--write-gguf", "x"}, "--write-gguf: only with --synthetic");
  expect({"--synthetic", "qwen3-0.6b", "--write-gguf", "x", "--write-mlx", "y"}, "not allowed with --write-mlx");
  expect({"m", "decode", "--rows", "1,two"}, "'two' is not a number");
  expect({"m", "decode", "--rows", "0"}, "'0' is not a number");
  expect({"m", "decode", "--rows="}, "--rows: expected numbers");
  expect({"m", "concurrency", "--streams", "257"}, "256");
  expect({"m", "decode", "--repeats", "2"}, "--repeats: must be between 3");
  expect({"m", "decode", "--port", "1"}, "unrecognized arguments: --port");
  expect({"m", "decode", "--rounding", "none"}, "only with --backend reference");
  EXPECT_EQ(complaint({"m", "decode"}), "");
}

TEST(BenchOptions, HelpTellsBenchFromBenchmark) {
  const std::string help = help_text(kBench);
  EXPECT_NE(help.find("`benchmark`, which measures a served model, is not part of this build"), std::string::npos);
  for (const Flag& flag : flag_table()) {
    if ((flag.commands & kBench) == 0) continue;
    EXPECT_NE(help.find(std::string(flag.name)), std::string::npos) << flag.name;
  }
}

}  // namespace
}  // namespace tensorfold::cli
