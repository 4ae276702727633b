// GGUF files that must open, and one refusal per rule.
#include <gtest/gtest.h>

#include "test_files.h"

namespace tensorfold {
namespace {

constexpr std::uint32_t kU32 = 4, kString = 8, kArray = 9, kF32 = 0, kQ8_0 = 8;

std::string refusal(const std::string& bytes) {
  TestFolder folder;
  const auto path = folder.write("model.gguf", bytes);
  const std::string message = error_of([&] { Checkpoint::open(path); });
  EXPECT_HAS(message, "model.gguf");
  return message;
}

std::string refusal(const GgufFile& file) {
  return refusal(file.bytes());
}

TEST(Gguf, ReversesDimensionsAndHonoursAlignment) {
  TestFolder folder;
  GgufFile file;
  file.pair("general.alignment", kU32, bytes_of<std::uint32_t>(64));
  file.tensor("a.weight", {64, 2}, kQ8_0, 0).tensor("b", {4}, kF32, 192);
  std::string bytes = file.bytes();
  bytes.resize((bytes.size() + 63) / 64 * 64, '\0');
  bytes += std::string(208, '\x01');
  for (const std::uint32_t version : {2u, 3u}) {
    std::memcpy(bytes.data() + 4, &version, 4);
    const auto checkpoint = Checkpoint::open(folder.write("model.gguf", bytes));
    EXPECT_EQ(checkpoint->find("a.weight")->shape, (std::vector<std::int64_t>{2, 64}));
    EXPECT_EQ(checkpoint->find("a.weight")->bytes, 136u);
    EXPECT_EQ(checkpoint->find("b")->data - checkpoint->find("a.weight")->data, 192);
    EXPECT_EQ(checkpoint->weight("a", 2, 64).format, WeightFormat::kQ8_0);
    EXPECT_EQ(checkpoint->values("b", 4).size(), 4u);
    EXPECT_HAS(error_of([&] { checkpoint->weight("a", 64, 2); }), "[2, 64]");
  }
}

TEST(Gguf, ExpertStacksAreOneView) {
  TestFolder folder;
  const auto checkpoint =
      Checkpoint::open(folder.write("m.gguf", GgufFile().tensor("e.weight", {32, 2, 3}, kQ8_0, 0).data(204).bytes()));
  const WeightView view = checkpoint->weight("e", 2, 32, 3);
  EXPECT_EQ(view.experts, 3);
  EXPECT_EQ(view.rows, 2);
}

TEST(GgufRefuses, HeaderFields) {
  GgufFile file;
  file.magic = "GGML";
  EXPECT_HAS(refusal(file), "not a GGUF file");
  file = GgufFile();
  file.version = 1;
  EXPECT_HAS(refusal(file), "version 1");
  file.version = 0x03000000;
  EXPECT_HAS(refusal(file), "version");
  file = GgufFile();
  file.tensor_count = 1ull << 40;
  EXPECT_HAS(refusal(file), "tensors");
  file.tensor_count = 100;
  EXPECT_HAS(refusal(file), "tensors");
  file = GgufFile();
  file.pair_count = 1ull << 40;
  EXPECT_HAS(refusal(file), "metadata values");
  EXPECT_HAS(refusal("GGUF\x03"), "truncated");
  EXPECT_HAS(refusal("GG"), "truncated");
}

TEST(GgufRefuses, Strings) {
  GgufFile file;
  file.pairs = bytes_of<std::uint64_t>(1ull << 60) + std::string(32, 'k');
  file.pair_count = 1;
  EXPECT_HAS(refusal(file), "key");
  file = GgufFile().pair("name", kString, bytes_of<std::uint64_t>(1ull << 50) + "x");
  EXPECT_HAS(refusal(file), "'name'");
  file = GgufFile().pair("name", kString, bytes_of<std::uint64_t>(1000) + "x");
  EXPECT_HAS(refusal(file), "truncated");
}

TEST(GgufRefuses, Arrays) {
  const auto array = [](std::uint32_t type, std::uint64_t count, const std::string& body = "") {
    return GgufFile().pair("list", kArray, bytes_of(type) + bytes_of(count) + body);
  };
  EXPECT_HAS(refusal(array(kU32, 1ull << 62)), "'list'");
  EXPECT_HAS(refusal(array(kU32, 1ull << 20)), "truncated");
  EXPECT_HAS(refusal(array(kString, 2, gguf_string("a"))), "truncated");
  EXPECT_HAS(refusal(array(kArray, 1, bytes_of(kU32) + bytes_of<std::uint64_t>(0))), "element type");
  EXPECT_HAS(refusal(array(77, 1)), "element type 77");
}

TEST(GgufRefuses, ValueTypesAndDuplicateKeys) {
  EXPECT_HAS(refusal(GgufFile().pair("odd", 13, "1234")), "type 13");
  const std::string one = bytes_of<std::uint32_t>(1);
  EXPECT_HAS(refusal(GgufFile().pair("twin", kU32, one).pair("twin", kU32, one)), "'twin'");
  const std::string empty_array = bytes_of(kU32) + bytes_of<std::uint64_t>(0);
  EXPECT_HAS(refusal(GgufFile().pair("twin", kArray, empty_array).pair("twin", kU32, one)), "twice");
  EXPECT_HAS(refusal(GgufFile().pair("split.count", kU32, bytes_of<std::uint32_t>(2))), "join the parts");
}

TEST(GgufRefuses, Alignment) {
  for (const std::uint32_t alignment : {0u, 3u, 48u, 1u << 31}) {
    EXPECT_HAS(refusal(GgufFile().pair("general.alignment", kU32, bytes_of(alignment))), "power of two");
  }
  EXPECT_HAS(refusal(GgufFile().pair("general.alignment", kString, gguf_string("\xff"))), "power of two");
  EXPECT_HAS(refusal(GgufFile().tensor("askew", {4}, kF32, 8).data(64)), "'askew'");
}

TEST(GgufRefuses, TensorTypesAndShapes) {
  EXPECT_HAS(refusal(GgufFile().tensor("new", {256}, 10, 0).data(84)), "Q2_K");
  EXPECT_HAS(refusal(GgufFile().tensor("alien", {256}, 1000, 0).data(84)), "1000");
  EXPECT_HAS(refusal(GgufFile().tensor("ragged", {33}, kQ8_0, 0).data(64)), "multiple of 32");
  EXPECT_HAS(refusal(GgufFile().tensor("flat", {}, kF32, 0).data(64)), "0 dimensions");
  EXPECT_HAS(refusal(GgufFile().tensor("deep", {1, 1, 1, 1, 1}, kF32, 0).data(64)), "5 dimensions");
  EXPECT_HAS(refusal(GgufFile().tensor("vast", {1ull << 32, 1ull << 32}, kF32, 0).data(64)), "overflows");
  EXPECT_HAS(refusal(GgufFile().tensor("wide", {1ull << 62}, kF32, 0).data(64)), "overflows");
  EXPECT_HAS(refusal(GgufFile().tensor("minus", {~0ull}, kF32, 0).data(64)), "63 bits");
  EXPECT_HAS(refusal(GgufFile().tensor(std::string(2000, 'n'), {4}, kF32, 0).data(64)), "name");
}

TEST(GgufRefuses, TruncationOverlapsAndDuplicates) {
  EXPECT_HAS(refusal(GgufFile().tensor("cut", {16}, kF32, 0).data(63)), "'cut'");
  EXPECT_HAS(refusal(GgufFile().tensor("far", {16}, kF32, 1ull << 40).data(64)), "'far'");
  EXPECT_HAS(refusal(GgufFile().tensor("edge", {16}, kF32, ~31ull).data(64)), "'edge'");
  const std::string overlap = refusal(GgufFile().tensor("left", {16}, kF32, 0).tensor("right", {8}, kF32, 32).data(64));
  EXPECT_HAS(overlap, "'left'");
  EXPECT_HAS(overlap, "'right'");
  EXPECT_HAS(refusal(GgufFile().tensor("twin", {8}, kF32, 0).tensor("twin", {8}, kF32, 32).data(64)), "twice");
}

TEST(GgufRefuses, EveryPrefixOfAFile) {
  TestFolder folder;
  const std::string bytes = GgufFile()
                                .pair("a", kString, gguf_string("text"))
                                .pair("l", kArray, bytes_of(kString) + bytes_of<std::uint64_t>(1) + gguf_string("x"))
                                .tensor("t", {8}, kF32, 0)
                                .data(32)
                                .bytes();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const auto path = folder.write("model.gguf", bytes.substr(0, length));
    EXPECT_HAS(error_of([&] { Checkpoint::open(path); }), "model.gguf");
  }
  EXPECT_EQ(Checkpoint::open(folder.write("model.gguf", bytes))->tensors().size(), 1u);
}

TEST(Gguf, ArraysOfTheWrongKindAreRefusedWhenAsked) {
  TestFolder folder;
  GgufFile file;
  file.pair("tokenizer.ggml.tokens", kArray, bytes_of(kU32) + bytes_of<std::uint64_t>(1) + bytes_of<std::uint32_t>(7));
  file.pair("tokenizer.ggml.scores", kArray, bytes_of(kString) + bytes_of<std::uint64_t>(1) + gguf_string("x"));
  const auto checkpoint = Checkpoint::open(folder.write("model.gguf", file.bytes()));
  EXPECT_HAS(error_of([&] { checkpoint->gguf_strings("tokenizer.ggml.tokens"); }), "strings");
  EXPECT_HAS(error_of([&] { checkpoint->gguf_numbers("tokenizer.ggml.scores"); }), "numbers");
  EXPECT_EQ(checkpoint->gguf_numbers("tokenizer.ggml.tokens"), std::vector<double>{7});
}

}  // namespace
}  // namespace tensorfold
