// Conversions against mlx's own quantiser (tests/golden/convert, made by make_convert.py), against the readers that
// serve the results, and against what must be refused.
#include "convert/convert.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>

#include "checkpoint/affine_quantiser.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/test_files.h"
#include "model/load.h"

namespace tensorfold {
namespace {

namespace fs = std::filesystem;

fs::path golden(const std::string& name) {
  return fs::path(TENSORFOLD_SOURCE_DIR) / "tests/golden" / name;
}

std::string bytes_of_tensor(const TensorInfo& tensor) {
  return std::string(reinterpret_cast<const char*>(tensor.data), tensor.bytes);
}

std::vector<float> row_of(const TensorInfo& tensor, WeightFormat format, std::int64_t row) {
  WeightView view;
  view.format = format;
  view.rows = tensor.shape[0];
  view.columns = tensor.shape[1];
  view.data = tensor.data;
  view.data_bytes = tensor.bytes;
  std::vector<float> values(static_cast<std::size_t>(view.columns));
  decode_row(view, 0, row, values.data());
  return values;
}

TEST(AffineQuantiser, EveryWidthGroupAndTypeAsMlxToTheBit) {
  const auto file = Checkpoint::open(golden("convert/quantised"));
  int cases = 0;
  for (const TensorInfo& source : file->tensors()) {
    if (!source.name.ends_with(".source")) continue;
    const std::string base = source.name.substr(0, source.name.size() - 7);
    const auto declared = file->config().at("cases").at(base);
    const AffineSetting setting{declared.at(0).get<int>(), declared.at(1).get<int>()};
    const WeightFormat format = source.dtype == "F32"   ? WeightFormat::kF32
                                : source.dtype == "F16" ? WeightFormat::kF16
                                                        : WeightFormat::kBF16;
    AffineQuantiser quantiser(setting, format, source.shape[1]);
    std::string codes, scales, biases;
    for (std::int64_t row = 0; row < source.shape[0]; ++row) {
      std::vector<std::byte> code(quantiser.code_bytes()), scale(quantiser.scale_bytes()),
          bias(quantiser.scale_bytes());
      std::vector<float> seen(static_cast<std::size_t>(source.shape[1]));
      quantiser.encode(row_of(source, format, row).data(), code.data(), scale.data(), bias.data(), seen.data());
      codes.append(reinterpret_cast<const char*>(code.data()), code.size());
      scales.append(reinterpret_cast<const char*>(scale.data()), scale.size());
      biases.append(reinterpret_cast<const char*>(bias.data()), bias.size());
    }
    EXPECT_TRUE(codes == bytes_of_tensor(*file->find(base + ".codes"))) << base;
    EXPECT_TRUE(scales == bytes_of_tensor(*file->find(base + ".scale_values"))) << base;
    EXPECT_TRUE(biases == bytes_of_tensor(*file->find(base + ".bias_values"))) << base;
    ++cases;
  }
  EXPECT_EQ(cases, 54);  // 6 widths, 3 groups, 3 types
}

TEST(QuantisationRules, FirstMatchWinsAndMisspeltOnesAreKnown) {
  QuantisationRules rules({4, 64}, "layers.?.mlp.*=8,*.o_proj=none,*mlp.down_proj=2:32,lm_haed=6");
  EXPECT_EQ(rules.decide("layers.3.mlp.down_proj").setting->bits, 8);
  EXPECT_EQ(rules.decide("layers.13.mlp.down_proj").setting->bits, 2);
  EXPECT_EQ(rules.decide("layers.13.mlp.down_proj").setting->group_size, 32);
  EXPECT_FALSE(rules.decide("layers.0.self_attn.o_proj").setting);
  EXPECT_EQ(rules.decide("lm_head").setting->bits, 4);
  EXPECT_EQ(rules.unused(), std::vector<std::string>{"lm_haed=6"});
  EXPECT_TRUE(matches_pattern("a*b*c", "axxbyybzc"));
  EXPECT_FALSE(matches_pattern("a*b*c", "axxbyyb"));
  EXPECT_TRUE(matches_pattern("*", ""));
  EXPECT_FALSE(matches_pattern("?", ""));
}

TEST(QuantisationRules, RefusesWhatTheFormatLacks) {
  for (const char* text : {"x=7", "x=4:16", "x=", "=4", "x", "x=4:", "x=-4", "x=99999999999"}) {
    const auto message = error_of([&] { QuantisationRules({4, 64}, text); }, ErrorCode::kInvalidArgument);
    EXPECT_HAS(message, "--mixed");
  }
  error_of([] { QuantisationRules({7, 64}, ""); }, ErrorCode::kInvalidArgument);
  error_of([] { QuantisationRules({4, 16}, ""); }, ErrorCode::kInvalidArgument);
}

TEST(SafetensorsWriter, NameTwiceAndUnknownTypeAreRefusedAndNothingIsLeft) {
  TemporaryFolder folder;
  error_of(
      [&] {
        SafetensorsWriter(folder.path() / "a", {{"x", "F32", {1}}, {"x", "F32", {1}}}, "mlx");
      },
      ErrorCode::kInvalidArgument);
  error_of([&] { SafetensorsWriter(folder.path() / "a", {{"x", "F31", {1}}}, "mlx"); });
  error_of([&] { SafetensorsWriter(folder.path() / "a", {{"x", "F32", {INT64_MAX, 2}}}, "mlx"); });
  { SafetensorsWriter abandoned(folder.path() / "a", {{"x", "F32", {1}}}, "mlx"); }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

ConversionReport convert_case(const fs::path& source, const fs::path& out, const AffineSetting& setting,
                              const char* mixed = "") {
  QuantisationRules rules(setting, mixed);
  return convert(plan_conversion(Checkpoint::open(source), rules), out);
}

// The golden MLX checkpoint of a case was quantised by mlx from the same seeded weights that the script stores here in
// full precision: every tensor must be equal.
void expect_same_tensors(const fs::path& mine, const fs::path& theirs) {
  const auto a = Checkpoint::open(mine), b = Checkpoint::open(theirs);
  std::size_t compared = 0;
  for (const TensorInfo& tensor : b->tensors()) {
    if (tensor.name.find("vision") != std::string::npos) continue;
    const TensorInfo* found = a->find(tensor.name);
    ASSERT_NE(found, nullptr) << tensor.name;
    EXPECT_EQ(found->shape, tensor.shape) << tensor.name;
    EXPECT_EQ(found->dtype, tensor.dtype) << tensor.name;
    ++compared;
    if (tensor.name.ends_with("norm.weight") && tensor.name.starts_with("language_model.")) {
      // The golden file added the 1 in fp32 and rounded once; this source's norms are bf16 already.
      const auto mine_values = a->values(tensor.name, tensor.shape[0]),
                 their_values = b->values(tensor.name, tensor.shape[0]);
      for (std::size_t i = 0; i < mine_values.size(); ++i)
        EXPECT_NEAR(mine_values[i], their_values[i], 1.0 / 128) << tensor.name;
      continue;
    }
    EXPECT_TRUE(bytes_of_tensor(*found) == bytes_of_tensor(tensor)) << tensor.name;
  }
  EXPECT_EQ(compared, a->tensors().size());
}

struct ConvertCase {
  const char* source;    // under golden/convert
  const char* expected;  // under golden/models
  AffineSetting setting;
  const char* mixed;
};

class ConvertsLikeMlx : public testing::TestWithParam<ConvertCase> {};

TEST_P(ConvertsLikeMlx, EveryTensor) {
  TemporaryFolder folder;
  const auto& [source, expected, setting, mixed] = GetParam();
  convert_case(golden(std::string("convert/") + source), folder.path() / "out", setting, mixed);
  expect_same_tensors(folder.path() / "out", golden(std::string("models/") + expected));
  describe_model(*Checkpoint::open(folder.path() / "out"));  // the result is a model that can be served
}

INSTANTIATE_TEST_SUITE_P(
    Golden, ConvertsLikeMlx,
    testing::Values(ConvertCase{"qwen3_5", "mlx_qwen3_5_4bit", {4, 64}, "layers.3.self_attn.o_proj=none"},
                    ConvertCase{"qwen3_moe",
                                "mlx_qwen3_moe_4bit",
                                {4, 32},
                                "layers.?.mlp.gate=8:64,layers.1.mlp.switch_mlp.up_proj=6:64"},
                    ConvertCase{"gemma3", "mlx_gemma3_6bit", {6, 64}, "embed_tokens=8:128"}),
    [](const auto& info) { return std::string(info.param.source); });

TEST(Convert, EveryGoldenDirectoryOfWholeGroupsConvertsAndDescribesItself) {
  for (const char* name :
       {"llama_tied_llama3_rope", "qwen3", "qwen3_moe", "qwen3_moe_unnormalised", "gemma3", "qwen3_5", "qwen3_5_tied",
        "qwen3_5_moe", "qwen3_5_mtp", "gguf_qwen2", "gguf_qwen3", "gguf_qwen3_moe", "gguf_gemma3", "gguf_llama"}) {
    TemporaryFolder folder;
    fs::path source = golden(std::string("models/") + name);
    if (fs::exists(source / "model.gguf")) source /= "model.gguf";
    const auto report = convert_case(source, folder.path() / "out", {8, 32});
    const auto result = Checkpoint::open(folder.path() / "out");
    EXPECT_EQ(result->container(), Container::kMlx) << name;
    const auto before = describe_model(*Checkpoint::open(source)), after = describe_model(*result);
    EXPECT_EQ(before.layers.size(), after.layers.size()) << name;
    EXPECT_EQ(before.vocabulary_size, after.vocabulary_size) << name;
    EXPECT_EQ(before.mtp.has_value(), after.mtp.has_value()) << name;
    for (const MatrixError& matrix : report.matrices)
      EXPECT_LT(matrix.relative_rms, 0.01) << name << " " << matrix.path;
  }
}

// llama.cpp turns the rows of queries and keys; converted back they are those of the Hugging Face file.
TEST(Convert, GgufRowsOfLlamaComeBackInOrder) {
  TemporaryFolder folder;
  convert_case(golden("models/gguf_llama/model.gguf"), folder.path() / "out", {4, 64}, "*=none");
  const auto result = Checkpoint::open(folder.path() / "out");
  const auto gguf = Checkpoint::open(golden("models/gguf_llama/model.gguf"));
  const TensorInfo* mine = result->find("model.layers.0.self_attn.k_proj.weight");
  ASSERT_NE(mine, nullptr);
  const auto rows = mine->shape[0], columns = mine->shape[1];
  const auto theirs = gguf->weight("blk.0.attn_k", rows, columns);
  std::vector<float> expected(static_cast<std::size_t>(columns));
  for (std::int64_t head = 0; head < rows / 8; ++head) {  // heads of 8 rows
    for (std::int64_t i = 0; i < 8; ++i) {
      decode_row(theirs, 0, head * 8 + (i % 4) * 2 + i / 4, expected.data());
      EXPECT_EQ(row_of(*mine, WeightFormat::kF16, head * 8 + i), expected) << head << " " << i;
    }
  }
}

TEST(Convert, RefusesBeforeAnyWork) {
  TemporaryFolder folder;
  EXPECT_HAS(error_of(
                 [&] {
                   convert_case(golden("models/llama"), folder.path(), {4, 64});
                 },
                 ErrorCode::kInvalidArgument),
             "exists already");
  EXPECT_HAS(error_of(
                 [&] {
                   convert_case(golden("models/llama"), folder.path() / "no/such", {4, 64});
                 },
                 ErrorCode::kInvalidArgument),
             "no folder");
  EXPECT_HAS(error_of(
                 [&] {
                   convert_case(golden("models/mlx_llama_4bit"), folder.path() / "out", {4, 64});
                 },
                 ErrorCode::kUnsupported),
             "quantised already");
  EXPECT_HAS(error_of(
                 [&] {
                   convert_case(golden("models/qwen3_5"), folder.path() / "out", {4, 64}, "layers.9.*=8");
                 },
                 ErrorCode::kInvalidArgument),
             "no matrix meets");
  EXPECT_HAS(error_of(
                 [&] {
                   convert_case(golden("models/llama"), folder.path() / "out", {4, 64}, "*.q_proj=8");
                 },
                 ErrorCode::kInvalidArgument),
             "no multiple of the group");
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Convert, DamagedWeightsStopItAndLeaveNothing) {
  TemporaryFolder folder;
  const fs::path source = folder.path() / "source";
  fs::copy(golden("models/qwen3_5_tied"), source);
  std::string bytes;
  {
    std::ifstream file(source / "model.safetensors", std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  for (std::size_t at = 8 + header; at + 4 <= bytes.size(); at += 4)
    std::memcpy(bytes.data() + at, "\x00\x00\xc0\x7f", 4);
  std::ofstream(source / "model.safetensors", std::ios::binary) << bytes;
  EXPECT_HAS(error_of([&] { convert_case(source, folder.path() / "out", {4, 32}); }), "damaged");
  EXPECT_FALSE(fs::exists(folder.path() / "out"));
  EXPECT_FALSE(fs::exists(folder.path() / "out.partial"));
}

}  // namespace
}  // namespace tensorfold
