// Directories that must open, and one refusal per rule; each message names the file and the tensor.
#include <gtest/gtest.h>

#include "test_files.h"

namespace tensorfold {
namespace {

constexpr const char* kTwoTensors =
    R"({"a.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[16,20]}})";

std::string refusal_of_header(std::string_view header, std::size_t data_bytes = 16) {
  TestFolder folder;
  folder.write("config.json", "{}");
  folder.write("model.safetensors", safetensors_bytes(header, data_bytes));
  const std::string message = error_of([&] { Checkpoint::open(folder.path()); });
  EXPECT_HAS(message, "model.safetensors");
  return message;
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& range) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + range + "}";
}

TEST(Safetensors, OpensASingleFileUnaligned) {
  TestFolder folder;
  folder.write("config.json", R"({"model_type":"llama"})");
  folder.write("generation_config.json", R"({"temperature":0.5})");
  folder.write("model.safetensors", safetensors_bytes(kTwoTensors, 20));
  const auto checkpoint = Checkpoint::open(folder.path());
  EXPECT_EQ(checkpoint->container(), Container::kHuggingFace);
  EXPECT_EQ(checkpoint->config().at("model_type"), "llama");
  EXPECT_EQ(checkpoint->generation_config().at("temperature"), 0.5);
  ASSERT_NE(checkpoint->find("a.weight"), nullptr);
  EXPECT_EQ(checkpoint->find("absent"), nullptr);
  EXPECT_TRUE(checkpoint->has_weight("a"));
  EXPECT_TRUE(checkpoint->has_weight("b"));
  EXPECT_FALSE(checkpoint->has_weight("c"));
  EXPECT_EQ(checkpoint->tensors().size(), 2u);
  EXPECT_EQ(checkpoint->weight("a", 2, 2).format, WeightFormat::kF32);
  std::uint64_t bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) bytes += file.file_size();
  EXPECT_EQ(checkpoint->file_bytes(), bytes);
}

TEST(Safetensors, OpensShardsThroughTheIndexAndWithoutOne) {
  TestFolder folder;
  folder.write("config.json", "{}");
  const std::string a = safetensors_bytes("{" + entry("a", "U8", "[4]", "[0,4]") + "}", 4);
  const std::string b = safetensors_bytes("{" + entry("b", "U8", "[]", "[0,1]") + "}", 1);
  folder.write("model-00001-of-00002.safetensors", a);
  folder.write("model-00002-of-00002.safetensors", b);
  folder.write("other.safetensors", "not read");
  EXPECT_EQ(Checkpoint::open(folder.path())->tensors().size(), 2u);
  folder.write("model.safetensors.index.json",
               R"({"metadata":{},"weight_map":{"b":"model-00002-of-00002.safetensors"}})");
  EXPECT_EQ(Checkpoint::open(folder.path())->tensors().size(), 1u);
}

TEST(Safetensors, MetadataNamesMlx) {
  TestFolder folder;
  folder.write("config.json", "{}");
  folder.write(
      "model.safetensors",
      safetensors_bytes("{\"__metadata__\":{\"format\":\"mlx\"}," + entry("a", "U8", "[4]", "[0,4]") + "}", 4));
  EXPECT_EQ(Checkpoint::open(folder.path())->container(), Container::kMlx);
}

TEST(SafetensorsRefuses, TruncatedData) {
  const std::string message = refusal_of_header(kTwoTensors, 19);
  EXPECT_HAS(message, "'b'");
  EXPECT_HAS(message, "truncated");
}

TEST(SafetensorsRefuses, TruncatedHeader) {
  TestFolder folder;
  folder.write("config.json", "{}");
  folder.write("model.safetensors", safetensors_bytes(kTwoTensors, 20).substr(0, 40));
  EXPECT_HAS(error_of([&] { Checkpoint::open(folder.path()); }), "header claims");
  folder.write("model.safetensors", "abc");
  EXPECT_HAS(error_of([&] { Checkpoint::open(folder.path()); }), "too short");
  folder.write("model.safetensors", "");
  EXPECT_HAS(error_of([&] { Checkpoint::open(folder.path()); }), "empty");
  folder.write("model.safetensors", bytes_of<std::uint64_t>(~0ull) + "{}");
  EXPECT_HAS(error_of([&] { Checkpoint::open(folder.path()); }), "header claims");
}

TEST(SafetensorsRefuses, OverlappingTensors) {
  const std::string message = refusal_of_header("{" + entry("first", "U8", "[8]", "[0,8]") + "," +
                                                entry("second", "U8", "[8]", "[7,15]") + "}");
  EXPECT_HAS(message, "'first'");
  EXPECT_HAS(message, "'second'");
  EXPECT_HAS(message, "overlap");
}

TEST(SafetensorsRefuses, OffsetsOutOfRange) {
  EXPECT_HAS(refusal_of_header("{" + entry("far", "U8", "[8]", "[100,108]") + "}"), "'far'");
  EXPECT_HAS(refusal_of_header("{" + entry("back", "U8", "[8]", "[8,0]") + "}"), "before it begins");
  EXPECT_HAS(refusal_of_header("{" + entry("huge", "U8", "[8]", "[18446744073709551608,18446744073709551615]") + "}"),
             "'huge'");
  EXPECT_HAS(refusal_of_header("{" + entry("beyond", "U8", "[8]", "[0,18446744073709551616]") + "}"), "'beyond'");
  EXPECT_HAS(refusal_of_header("{" + entry("minus", "U8", "[8]", "[-8,0]") + "}"), "negative");
}

TEST(SafetensorsRefuses, DuplicateTensors) {
  const std::string message =
      refusal_of_header("{" + entry("twin", "U8", "[4]", "[0,4]") + "," + entry("twin", "U8", "[4]", "[4,8]") + "}");
  EXPECT_HAS(message, "'twin'");
  EXPECT_HAS(message, "twice");

  TestFolder folder;
  folder.write("config.json", "{}");
  const std::string file = safetensors_bytes("{" + entry("twin", "U8", "[4]", "[0,4]") + "}", 4);
  folder.write("model-1.safetensors", file);
  folder.write("model-2.safetensors", file);
  const std::string two_files = error_of([&] { Checkpoint::open(folder.path()); });
  EXPECT_HAS(two_files, "model-1.safetensors");
  EXPECT_HAS(two_files, "model-2.safetensors");
}

TEST(SafetensorsRefuses, SizeShapeAndDtypeMismatch) {
  EXPECT_HAS(refusal_of_header("{" + entry("short", "F32", "[4]", "[0,12]") + "}"), "needs 16");
  EXPECT_HAS(refusal_of_header("{" + entry("odd", "F8_E9M9", "[4]", "[0,4]") + "}"), "F8_E9M9");
  EXPECT_HAS(refusal_of_header("{" + entry("wide", "U8", "[4294967296,4294967296,4294967296]", "[0,0]") + "}"),
             "overflows");
  EXPECT_HAS(refusal_of_header("{" + entry("zero", "F64", "[1152921504606846976,8,0]", "[0,0]") + "}"), "overflows");
  EXPECT_HAS(refusal_of_header("{" + entry("deep", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") + "}"), "dimensions");
  EXPECT_HAS(refusal_of_header("{" + entry("float", "U8", "[1.5]", "[0,1]") + "}"), "'float'");
}

TEST(SafetensorsRefuses, MalformedHeaders) {
  EXPECT_HAS(refusal_of_header("{\"a\":"), "JSON");
  EXPECT_HAS(refusal_of_header("[]"), "header");
  EXPECT_HAS(refusal_of_header("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}"), "data_offsets");
  EXPECT_HAS(refusal_of_header("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}"), "twice");
  EXPECT_HAS(refusal_of_header("{\"a\":{\"extra\":1}}"), "extra");
  EXPECT_HAS(refusal_of_header("{\"a\":{\"shape\":[[1]]}}"), "array");
  EXPECT_HAS(refusal_of_header("{\"a\":7}"), "'a'");
  EXPECT_HAS(refusal_of_header("{\"" + std::string(2000, 'n') + "\":{}}"), "longer than");
  EXPECT_HAS(refusal_of_header(std::string(100'000, '[')), "array");
}

class Index : public testing::Test {
 protected:
  Index() {
    folder_.write("config.json", "{}");
    folder_.write("model-1.safetensors", safetensors_bytes("{" + entry("a", "U8", "[4]", "[0,4]") + "}", 4));
  }
  std::string refusal(const std::string& weight_map, ErrorCode code = ErrorCode::kInvalidCheckpoint) {
    folder_.write("model.safetensors.index.json", "{\"weight_map\":" + weight_map + "}");
    return error_of([&] { Checkpoint::open(folder_.path()); }, code);
  }
  TestFolder folder_;
};

TEST_F(Index, RefusesAMissingShard) {
  const std::string message = refusal(R"({"a":"model-1.safetensors","b":"model-2.safetensors"})", ErrorCode::kNotFound);
  EXPECT_HAS(message, "model-2.safetensors");
  EXPECT_HAS(message, "missing");
}

TEST_F(Index, RefusesPathsThatLeaveTheFolder) {
  for (const char* path :
       {"../model-1.safetensors", "/etc/passwd", "sub/../../x", "", ".", "..\\\\x", "a\\u0000b", "sub/"}) {
    EXPECT_HAS(refusal(std::string(R"({"a":")") + path + "\"}"), "leaves the folder") << path;
  }
}

TEST_F(Index, RefusesATensorThatItsFileLacks) {
  const std::string message = refusal(R"({"a":"model-1.safetensors","ghost":"model-1.safetensors"})");
  EXPECT_HAS(message, "'ghost'");
  EXPECT_HAS(message, "model-1.safetensors");
}

TEST_F(Index, RefusesDuplicatesAndNonsense) {
  EXPECT_HAS(refusal(R"({"a":"model-1.safetensors","a":"model-1.safetensors"})"), "twice");
  EXPECT_HAS(refusal(R"({"a":1})"), "'a'");
  EXPECT_HAS(refusal("[]"), "weight_map");
  EXPECT_HAS(refusal("{}"), "weight_map");
  EXPECT_HAS(refusal(std::string(200, '[') + std::string(200, ']')), "nested");
}

TEST(Directory, RefusesWhatIsNoCheckpoint) {
  TestFolder folder;
  EXPECT_HAS(error_of([&] { Checkpoint::open(folder.path() / "absent"); }, ErrorCode::kNotFound), "absent");
  EXPECT_HAS(error_of([&] { Checkpoint::open(folder.path()); }, ErrorCode::kNotFound), "config.json");
  folder.write("config.json", "{}");
  EXPECT_HAS(error_of([&] { Checkpoint::open(folder.path()); }, ErrorCode::kNotFound), "model*.safetensors");
  folder.write("config.json", "[]");
  EXPECT_HAS(error_of([&] { Checkpoint::open(folder.path()); }), "object");
  folder.write("config.json", "{\"a\":1e999}");
  EXPECT_HAS(error_of([&] { Checkpoint::open(folder.path()); }), "config.json");
  folder.write("config.json", "{\"a\":" + std::string(300, '[') + std::string(300, ']') + "}");
  EXPECT_HAS(error_of([&] { Checkpoint::open(folder.path()); }), "nested");
}

TEST(Weights, RefusesOtherShapesAndDtypes) {
  TestFolder folder;
  folder.write("config.json", "{}");
  folder.write("model.safetensors", safetensors_bytes("{" + entry("m.weight", "F32", "[2,4]", "[0,32]") + "," +
                                                          entry("i.weight", "I32", "[2,4]", "[32,64]") + "," +
                                                          entry("v", "BF16", "[4]", "[64,72]") + "}",
                                                      72));
  const auto checkpoint = Checkpoint::open(folder.path());
  EXPECT_EQ(checkpoint->values("v", 4).size(), 4u);
  EXPECT_EQ(checkpoint->values("m.weight", 8).size(), 8u);
  const std::string shapes = error_of([&] { checkpoint->weight("m", 4, 2); });
  EXPECT_HAS(shapes, "[2, 4]");
  EXPECT_HAS(shapes, "[4, 2]");
  EXPECT_HAS(shapes, "'m.weight'");
  EXPECT_HAS(error_of([&] { checkpoint->weight("m", 2, 4, 1); }), "[1, 2, 4]");
  EXPECT_HAS(error_of([&] { checkpoint->weight("i", 2, 4); }), "I32");
  EXPECT_HAS(error_of([&] { checkpoint->weight("absent", 2, 4); }), "'absent.weight'");
  EXPECT_HAS(error_of([&] { checkpoint->values("v", 5); }), "5 elements");
  EXPECT_HAS(error_of([&] { checkpoint->values("i.weight", 8); }), "I32");
  EXPECT_HAS(error_of([&] { checkpoint->values("absent", 1); }), "'absent'");
}

}  // namespace
}  // namespace tensorfold
