// The rules of MLX affine: what the configuration may say, and that shapes and configuration are held against each
// other.
#include "checkpoint/affine.h"

#include <gtest/gtest.h>

#include "test_files.h"

namespace tensorfold {
namespace {

using nlohmann::json;

TEST(AffineDeclaration, EntriesGlobalsAndPrefixes) {
  const json configuration = {
      {"group_size", 128},
      {"bits", 4},
      {"a.b", {{"bits", 8}}},
      {"c", true},
      {"d", false},
      {"e", json::object()},
      {"language_model.model.f", {{"bits", 6}, {"group_size", 32}}},
  };
  const auto declared = [&](const char* path) { return affine_declaration(&configuration, path); };
  EXPECT_EQ(declared("other").rule, AffineRule::kGlobal);
  EXPECT_EQ(declared("other").setting->group_size, 128);
  EXPECT_EQ(declared("a.b").rule, AffineRule::kQuantized);
  EXPECT_EQ(declared("a.b").setting->bits, 8);
  EXPECT_EQ(declared("a.b").setting->group_size, 64) << "an entry stands on its own defaults";
  EXPECT_EQ(declared("language_model.a.b").setting->bits, 8);
  EXPECT_EQ(declared("c").rule, AffineRule::kQuantized);
  EXPECT_EQ(declared("c").setting->group_size, 128);
  EXPECT_EQ(declared("d").rule, AffineRule::kNotQuantized);
  EXPECT_EQ(declared("e").rule, AffineRule::kNotQuantized);
  EXPECT_EQ(declared("model.f").setting->bits, 6);
  EXPECT_EQ(declared("model.language_model.f").setting->bits, 6);
  EXPECT_EQ(affine_declaration(nullptr, "a.b").rule, AffineRule::kUnstated);
}

TEST(AffineDeclaration, RefusesWhatItDoesNotKnow) {
  const auto refusal = [](const json& configuration) {
    return error_of([&] { affine_declaration(&configuration, "a"); });
  };
  EXPECT_HAS(refusal({{"bits", 7}}), "7 bits");
  EXPECT_HAS(refusal({{"bits", 4}, {"group_size", 16}}), "group 16");
  EXPECT_HAS(refusal({{"bits", 4}, {"mode", "mxfp4"}}), "mxfp4");
  EXPECT_HAS(refusal({{"bits", "four"}}), "bits");
  EXPECT_HAS(refusal({{"bits", -4}}), "bits");
  EXPECT_HAS(refusal({{"a", "yes"}}), "'a'");
  EXPECT_HAS(refusal({{"a", {{"bits", 9}}}}), "'a'");
}

TEST(AffineConfiguration, FindsAliasesAndRefusesContradictions) {
  const json four = {{"bits", 4}, {"group_size", 64}}, eight = {{"bits", 8}, {"group_size", 64}};
  json config = {{"quantization", four}, {"quantization_config", four}};
  EXPECT_EQ(*affine_configuration(config), four);
  config["quantization_config"] = eight;
  EXPECT_HAS(error_of([&] { affine_configuration(config); }), "contradict");
  config["quantization_config"]["quant_method"] = "fp8";
  EXPECT_EQ(*affine_configuration(config), four);
  EXPECT_EQ(*affine_configuration({{"quantization_config", eight}}), eight);
  EXPECT_EQ(*affine_configuration({{"text_config", {{"quantization", four}}}}), four);
  EXPECT_EQ(affine_configuration({{"quantization_config", {{"quant_method", "fp8"}}}}), nullptr);
  EXPECT_EQ(affine_configuration(json::object()), nullptr);
}

// A 4-bit, group 64 matrix [2, 128]: weight [2, 16], scales and biases [2, 2].
class AffineWeight : public testing::Test {
 protected:
  std::shared_ptr<const Checkpoint> open(const json& config, json parts) {
    folder_.write("config.json", config.dump());
    json header = json::object();
    std::size_t offset = 0;
    for (const auto& [name, part] : parts.items()) {
      std::size_t bytes = part[0] == "U32" || part[0] == "F32" ? 4 : 2;
      for (const auto& dimension : part[1]) bytes *= dimension.get<std::size_t>();
      header["m." + name] = {{"dtype", part[0]}, {"shape", part[1]}, {"data_offsets", {offset, offset + bytes}}};
      offset += bytes;
    }
    folder_.write("model.safetensors", safetensors_bytes(header.dump(), offset));
    return Checkpoint::open(folder_.path());
  }
  std::string refusal(const json& config, const json& parts) {
    const auto checkpoint = open(config, parts);
    const std::string message = error_of([&] { checkpoint->weight("m", 2, 128); });
    EXPECT_HAS(message, "'m.weight'");
    EXPECT_HAS(message, "model.safetensors");
    return message;
  }
  const json kParts = {{"weight", {"U32", {2, 16}}}, {"scales", {"BF16", {2, 2}}}, {"biases", {"BF16", {2, 2}}}};
  const json kConfig = {{"quantization", {{"bits", 4}, {"group_size", 64}}}};
  TestFolder folder_;
};

TEST_F(AffineWeight, TakesBitsAndGroupFromTheShapes) {
  const WeightView view = open(json::object(), kParts)->weight("m", 2, 128);
  EXPECT_EQ(view.bits, 4);
  EXPECT_EQ(view.group_size, 64);
  EXPECT_EQ(view.scale_format, WeightFormat::kBF16);
  EXPECT_EQ(open(kConfig, kParts)->weight("m", 2, 128).bits, 4);
}

TEST_F(AffineWeight, RefusesADisagreementWithTheConfiguration) {
  EXPECT_HAS(refusal({{"quantization", {{"bits", 8}, {"group_size", 64}}}}, kParts), "8 bits");
  EXPECT_HAS(refusal({{"quantization", {{"bits", 4}, {"group_size", 32}}}}, kParts), "group 32");
  EXPECT_HAS(refusal({{"quantization", {{"bits", 4}, {"group_size", 64}, {"m", false}}}}, kParts), "isn't");
}

TEST_F(AffineWeight, RefusesMissingPartsAndWrongShapes) {
  json parts = kParts;
  parts.erase("biases");
  EXPECT_HAS(refusal(kConfig, parts), "biases");
  parts = kParts;
  parts.erase("scales");
  EXPECT_HAS(refusal(kConfig, parts), "scales");
  EXPECT_HAS(refusal({{"quantization", {{"m", true}, {"bits", 4}}}}, {{"weight", {"F32", {2, 128}}}}), "scales");
  parts = kParts;
  parts["weight"] = {"F32", {2, 16}};
  EXPECT_HAS(refusal(kConfig, parts), "U32");
  parts = kParts;
  parts["biases"] = {"F16", {2, 2}};
  EXPECT_HAS(refusal(kConfig, parts), "mixes");
  parts["scales"] = parts["biases"] = {"U32", {2, 2}};
  EXPECT_HAS(refusal(kConfig, parts), "neither");
  parts = kParts;
  parts["biases"] = {"BF16", {2, 4}};
  EXPECT_HAS(refusal(kConfig, parts), "differ");
  parts = kParts;
  parts["weight"] = {"U32", {2, 28}};
  EXPECT_HAS(refusal(kConfig, parts), "7 bits");
  parts["weight"] = {"U32", {2, 15}};
  EXPECT_HAS(refusal(kConfig, parts), "don't satisfy");
  parts["weight"] = {"U32", {3, 16}};
  EXPECT_HAS(refusal(kConfig, parts), "leading");
}

}  // namespace
}  // namespace tensorfold
