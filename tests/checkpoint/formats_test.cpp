// decode_row against the committed values of tests/golden/make_formats.py, bit for bit, for every format.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "checkpoint/checkpoint.h"
#include "checkpoint/decode_plain.h"
#include "checkpoint/describe.h"

namespace tensorfold {
namespace {

const std::filesystem::path kFormats = std::filesystem::path(TENSORFOLD_SOURCE_DIR) / "tests/golden/formats";

void expect_rows(const Checkpoint& checkpoint, const WeightView& view, const std::string& expected_name) {
  const std::vector<float> expected = checkpoint.values(expected_name, view.experts * view.rows * view.columns);
  std::vector<float> row(static_cast<std::size_t>(view.columns)), plain(row.size());
  std::size_t at = 0;
  for (std::int64_t expert = 0; expert < view.experts; ++expert) {
    for (std::int64_t index = 0; index < view.rows; ++index) {
      decode_row(view, expert, index, row.data());
      decode_row_plain(view, expert, index, plain.data());
      ASSERT_EQ(std::memcmp(row.data(), plain.data(), row.size() * sizeof(float)), 0) << view.name;
      for (const float value : row) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(value), std::bit_cast<std::uint32_t>(expected[at]))
            << view.name << " at " << at << ": " << value << " against " << expected[at];
        ++at;
      }
    }
  }
}

class AffineFormats : public testing::TestWithParam<std::tuple<int, int, const char*>> {};

TEST_P(AffineFormats, DecodesToTheExpectedBits) {
  const auto [bits, group, scale_type] = GetParam();
  const auto checkpoint = Checkpoint::open(kFormats / "affine");
  EXPECT_EQ(checkpoint->container(), Container::kMlx);
  const std::string base = "b" + std::to_string(bits) + ".g" + std::to_string(group) + "." + scale_type;
  const WeightView view = checkpoint->weight(base, 2, 256);
  EXPECT_EQ(view.format, WeightFormat::kAffine);
  EXPECT_EQ(view.bits, bits);
  EXPECT_EQ(view.group_size, group);
  expect_rows(*checkpoint, view, base + ".expected");
}

INSTANTIATE_TEST_SUITE_P(All, AffineFormats,
                         testing::Combine(testing::Values(2, 3, 4, 5, 6, 8), testing::Values(32, 64, 128),
                                          testing::Values("f32", "f16", "bf16")));

TEST(Formats, AffineExpertStack) {
  const auto checkpoint = Checkpoint::open(kFormats / "affine");
  const WeightView view = checkpoint->weight("experts", 2, 128, 3);
  EXPECT_EQ(view.experts, 3);
  expect_rows(*checkpoint, view, "experts.expected");
}

class GgufFormats : public testing::TestWithParam<std::tuple<const char*, WeightFormat>> {};

TEST_P(GgufFormats, DecodesToTheExpectedBits) {
  const auto [type, format] = GetParam();
  const auto checkpoint = Checkpoint::open(kFormats / "blocks.gguf");
  EXPECT_EQ(checkpoint->container(), Container::kGguf);
  const WeightView view = checkpoint->weight(type, 3, 512);
  EXPECT_EQ(view.format, format);
  expect_rows(*checkpoint, view, std::string(type) + ".expected");
}

INSTANTIATE_TEST_SUITE_P(
    All, GgufFormats,
    testing::Values(std::tuple("F32", WeightFormat::kF32), std::tuple("F16", WeightFormat::kF16),
                    std::tuple("BF16", WeightFormat::kBF16), std::tuple("Q4_0", WeightFormat::kQ4_0),
                    std::tuple("Q4_1", WeightFormat::kQ4_1), std::tuple("Q5_0", WeightFormat::kQ5_0),
                    std::tuple("Q5_1", WeightFormat::kQ5_1), std::tuple("Q8_0", WeightFormat::kQ8_0),
                    std::tuple("Q4_K", WeightFormat::kQ4_K), std::tuple("Q5_K", WeightFormat::kQ5_K),
                    std::tuple("Q6_K", WeightFormat::kQ6_K)));

// Every half of every kind against its definition, on both paths, at an address that isn't aligned.
TEST(Formats, AllHalves) {
  constexpr std::int64_t kCount = 1 << 16;
  std::vector<std::byte> bytes(2 * kCount + 1);
  for (std::uint32_t i = 0; i < kCount; ++i) {
    const auto half = static_cast<std::uint16_t>(i);
    std::memcpy(bytes.data() + 1 + 2 * i, &half, 2);
  }
  WeightView view;
  view.format = WeightFormat::kF16;
  view.rows = 1;
  view.columns = kCount;
  view.data = bytes.data() + 1;
  view.data_bytes = 2 * kCount;
  std::vector<float> values(kCount), plain(kCount);
  decode_row(view, 0, 0, values.data());
  decode_row_plain(view, 0, 0, plain.data());
  for (std::uint32_t i = 0; i < kCount; ++i) {
    const int exponent = static_cast<int>(i >> 10 & 31), fraction = static_cast<int>(i & 1023);
    if (exponent == 31 && fraction != 0) {
      EXPECT_TRUE(std::isnan(values[i]) && std::isnan(plain[i]));
      continue;
    }
    double expected = exponent == 31  ? INFINITY
                      : exponent == 0 ? std::ldexp(fraction, -24)
                                      : std::ldexp(1024 + fraction, exponent - 25);
    if (i >> 15) expected = -expected;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(static_cast<float>(expected))) << i;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(plain[i]), std::bit_cast<std::uint32_t>(static_cast<float>(expected))) << i;
  }
}

TEST(Formats, GgufMetadata) {
  const auto checkpoint = Checkpoint::open(kFormats / "blocks.gguf");
  const auto& config = checkpoint->config();
  EXPECT_EQ(config.at("general.architecture"), "formats");
  EXPECT_EQ(config.at("formats.block_count"), 2);
  EXPECT_EQ(config.at("formats.numbers"), nlohmann::json({1, 2, 3}));
  EXPECT_EQ(config.at("tokenizer.ggml.bos_token_id"), 0);
  EXPECT_EQ(config.at("tokenizer.chat_template"), "{{ messages }}");
  EXPECT_FALSE(config.contains("tokenizer.ggml.tokens"));
  EXPECT_EQ(checkpoint->gguf_strings("tokenizer.ggml.tokens"), (std::vector<std::string>{"<s>", "a",
                                                                                         "\xc4\xa0"
                                                                                         "b",
                                                                                         "\xc3\xa9"}));
  EXPECT_EQ(checkpoint->gguf_strings("tokenizer.ggml.merges"), (std::vector<std::string>{"a b", "b c"}));
  EXPECT_EQ(checkpoint->gguf_numbers("tokenizer.ggml.scores"), (std::vector<double>{0.0, -1.5, -2.0, 3.25}));
  EXPECT_EQ(checkpoint->gguf_numbers("tokenizer.ggml.token_type"), (std::vector<double>{3, 1, 1, 1}));
  EXPECT_TRUE(checkpoint->gguf_strings("absent").empty());
  EXPECT_EQ(checkpoint->file_bytes(), std::filesystem::file_size(kFormats / "blocks.gguf"));
}

TEST(Formats, DroppedPagesReadTheSame) {
  const auto checkpoint = Checkpoint::open(kFormats / "blocks.gguf");
  const WeightView view = checkpoint->weight("Q6_K", 3, 512);
  for (const TensorInfo& tensor : checkpoint->tensors()) checkpoint->drop_pages(tensor.data, tensor.bytes);
  expect_rows(*checkpoint, view, "Q6_K.expected");
}

TEST(Formats, DescribeCountsAffineTriplesOnce) {
  const auto affine = describe_formats(*Checkpoint::open(kFormats / "affine"));
  ASSERT_FALSE(affine.empty());
  EXPECT_EQ(affine.front().format, "f32");  // the expected values
  EXPECT_EQ(affine.front().tensors, 55);
  std::int64_t triples = 0;
  for (const auto& summary : affine) {
    if (summary.format == "affine 4-bit, group 64") {
      EXPECT_EQ(summary.tensors, 4);  // three scale types and the experts
    }
    if (summary.format.starts_with("affine")) triples += summary.tensors;
  }
  EXPECT_EQ(triples, 55);
  std::uint64_t bytes = 0;
  const auto checkpoint = Checkpoint::open(kFormats / "blocks.gguf");
  for (const auto& summary : describe_formats(*checkpoint)) bytes += summary.bytes;
  std::uint64_t expected = 0;
  for (const TensorInfo& tensor : checkpoint->tensors()) expected += tensor.bytes;
  EXPECT_EQ(bytes, expected);
}

}  // namespace
}  // namespace tensorfold
