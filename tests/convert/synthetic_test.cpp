// Made-up models: their shapes against the models that they stand for, their numbers, and what another engine is handed
// against what this one computes with.
#include "convert/synthetic/synthetic_checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/limits.h"
#include "checkpoint/test_files.h"
#include "convert/synthetic/presets.h"
#include "convert/synthetic/write_synthetic.h"
#include "engine/measure/model_check.h"
#include "engine/measure/pass_series.h"
#include "model/load.h"
#include "model/weights.h"
#include "ops/cpu/cpu_backend.h"
#include "shape_backend.h"

namespace tensorfold {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kVocabulary = 1024;

SyntheticOptions small(const std::string& preset, std::int64_t layers, const std::string& format = "affine4") {
  SyntheticOptions options;
  options.preset = preset;
  options.format = format;
  options.layers = layers;
  options.vocabulary = kVocabulary;
  options.threads = 1;
  return options;
}

std::unique_ptr<LanguageModel> load(std::shared_ptr<const Checkpoint> checkpoint) {
  return load_language_model(std::move(checkpoint), ops::make_cpu_backend({.threads = 1, .path = ""}), {});
}

// --- shapes ---------------------------------------------------------------------------------------------------------

/// A model as its publisher describes it.
struct Published {
  const char* preset;
  std::int64_t layers, hidden, vocabulary;
  bool tied;
  std::int32_t heads, kv_heads, head_dim;
  std::int64_t recurrent_layers;
  std::int64_t feed_forward;  // of a layer, or of one expert
  std::int32_t experts;
  double billions;  // of weights, embedding and head included
};
constexpr Published kPublished[] = {
    {"qwen3.8-27b", 64, 5120, 248'320, false, 24, 4, 256, 48, 17'408, 0, 26.9},
    {"qwen3.6-35b-a3b", 40, 2048, 248'320, false, 16, 2, 256, 30, 512, 256, 34.7},
    {"llama-8b", 32, 4096, 128'256, false, 32, 8, 128, 0, 14'336, 0, 8.03},
    {"qwen2.5-1.5b", 28, 1536, 151'936, true, 12, 2, 128, 0, 8960, 0, 1.54},
    {"qwen3-0.6b", 28, 1024, 151'936, true, 16, 8, 128, 0, 3072, 0, 0.596},
    {"smollm2-135m", 30, 576, 49'152, true, 9, 3, 64, 0, 1536, 0, 0.1345},
};

TEST(SyntheticModel, EveryPresetHasItsModelsShapes) {
  ASSERT_EQ(std::size(kPublished), synthetic_presets().size());
  for (const Published& published : kPublished) {
    SCOPED_TRACE(published.preset);
    // All layers; the tables, which would take most of the memory, are added up by hand.
    const SyntheticModel model = make_synthetic_model(small(published.preset, 0));
    const ModelDescription description = describe_model(*model.checkpoint);
    EXPECT_EQ(static_cast<std::int64_t>(description.layers.size()), published.layers);
    EXPECT_EQ(description.hidden_size, published.hidden);
    EXPECT_EQ(!description.head, published.tied);
    std::int64_t recurrent = 0;
    for (const LayerDescription& layer : description.layers) {
      if (const auto* attention = std::get_if<AttentionMixer>(&layer.mixer)) {
        EXPECT_EQ(attention->heads, published.heads);
        EXPECT_EQ(attention->kv_heads, published.kv_heads);
        EXPECT_EQ(attention->head_dim, published.head_dim);
        EXPECT_EQ(attention->gated, published.recurrent_layers > 0);
      } else {
        ++recurrent;
      }
      if (const auto* mixture = std::get_if<MoeFeedForward>(&layer.feed_forward)) {
        EXPECT_EQ(mixture->experts, published.experts);
        EXPECT_EQ(mixture->width, published.feed_forward);
        ASSERT_TRUE(mixture->shared);
        EXPECT_EQ(mixture->shared->width, 512);
      } else {
        EXPECT_EQ(std::get<DenseFeedForward>(layer.feed_forward).width, published.feed_forward);
      }
    }
    EXPECT_EQ(recurrent, published.recurrent_layers);
    // Loading checks every tensor's name and shape, and that there is none too many.
    test::ShapeBackend backend;
    load_weights(*model.checkpoint, description, backend, false, {});
    const std::int64_t tables = (published.vocabulary - kVocabulary) * published.hidden * (published.tied ? 1 : 2);
    EXPECT_NEAR(static_cast<double>(backend.parameters + tables) / 1e9, published.billions, 0.01 * published.billions);
  }
}

TEST(SyntheticModel, PresetsThatHaveAnMtpHeadCanHaveOne) {
  for (const SyntheticPreset& preset : synthetic_presets()) {
    SyntheticOptions options = small(std::string(preset.name), 1);
    options.mtp = true;
    if (!preset.has_mtp) {
      EXPECT_HAS(error_of([&] { make_synthetic_model(options); }, ErrorCode::kInvalidArgument), "MTP");
      continue;
    }
    const SyntheticModel model = make_synthetic_model(options);
    const ModelDescription description = describe_model(*model.checkpoint);
    ASSERT_TRUE(description.mtp);
    test::ShapeBackend backend;
    const ModelWeights weights = load_weights(*model.checkpoint, description, backend, true, {});
    ASSERT_NE(weights.mtp, nullptr);
    EXPECT_EQ(weights.mtp->join->columns(), 2 * description.hidden_size);
    options.mtp = false;
    EXPECT_FALSE(describe_model(*make_synthetic_model(options).checkpoint).mtp);
  }
}

TEST(SyntheticModel, RefusesWhatThereIsNot) {
  const auto complaint = [](SyntheticOptions options) {
    return error_of([&] { make_synthetic_model(options); }, ErrorCode::kInvalidArgument);
  };
  EXPECT_HAS(complaint(small("qwen9-1b", 1)), "smollm2-135m");
  EXPECT_HAS(complaint(small("smollm2-135m", 1, "q3_k")), "affine4");
  EXPECT_HAS(complaint(small("smollm2-135m", 1 << 20)), "layers");
  EXPECT_HAS(complaint(small("qwen3.8-27b", 1, "q4_0")), "GGUF");
  SyntheticOptions affine_gguf = small("smollm2-135m", 1);
  affine_gguf.gguf = true;
  EXPECT_HAS(complaint(affine_gguf), "q8_0");
}

// --- numbers --------------------------------------------------------------------------------------------------------

TEST(SyntheticModel, WeightsAreCentredAndAsLargeAsTheirInputsAreMany) {
  for (const std::string_view format : synthetic_formats()) {
    SCOPED_TRACE(format);
    const SyntheticModel model = make_synthetic_model(small("smollm2-135m", 1, std::string(format)));
    const bool gguf = model.checkpoint->container() == Container::kGguf;
    const WeightView up = model.checkpoint->weight(gguf ? "blk.0.ffn_up" : "model.layers.0.mlp.up_proj", 1536, 576);
    std::vector<float> row(576);
    double sum = 0.0, squares = 0.0;
    for (std::int64_t index = 0; index < up.rows; ++index) {
      decode_row(up, 0, index, row.data());
      for (const float value : row) {
        sum += static_cast<double>(value);
        squares += static_cast<double>(value) * static_cast<double>(value);
      }
    }
    const double count = 1536.0 * 576.0, spread = std::sqrt(squares / count);
    EXPECT_NEAR(spread * std::sqrt(576.0), 1.0, 0.05);
    // Codes of q4_0 and q8_0 reach one step further down than up.
    EXPECT_LT(std::fabs(sum / count), format == "q4_0" ? 0.15 * spread : 0.01 * spread);
  }
}

TEST(SyntheticModel, TheSeedDecidesEveryByteAndThreadsNone) {
  SyntheticOptions options = small("qwen3.6-35b-a3b", 1);
  const SyntheticModel one = make_synthetic_model(options);
  options.threads = 3;
  const SyntheticModel three = make_synthetic_model(options);
  options.seed = 2;
  const SyntheticModel other = make_synthetic_model(options);
  std::size_t equal_to_other = 0;
  for (const TensorInfo& tensor : one.checkpoint->tensors()) {
    const TensorInfo& same = *three.checkpoint->find(tensor.name);
    ASSERT_EQ(std::memcmp(tensor.data, same.data, tensor.bytes), 0) << tensor.name;
    equal_to_other += std::memcmp(tensor.data, other.checkpoint->find(tensor.name)->data, tensor.bytes) == 0 ? 1 : 0;
  }
  EXPECT_EQ(equal_to_other, 0u);
}

TEST(SyntheticModel, MatricesOfALayerDiffer) {
  const SyntheticModel model = make_synthetic_model(small("smollm2-135m", 2));
  const auto data = [&](const std::string& name) { return model.checkpoint->find(name)->data; };
  EXPECT_NE(data("model.layers.0.mlp.up_proj.weight"), data("model.layers.0.mlp.gate_proj.weight"));
  EXPECT_NE(data("model.layers.0.mlp.up_proj.weight"), data("model.layers.1.mlp.up_proj.weight"));
}

TEST(SyntheticModel, LogitsAreFiniteAndRowsGoToAllExperts) {
  for (const char* preset : {"smollm2-135m", "qwen3-0.6b", "qwen2.5-1.5b", "qwen3.8-27b", "qwen3.6-35b-a3b"}) {
    SCOPED_TRACE(preset);
    const bool small_model = std::string(preset) == "smollm2-135m";  // the others' layers are large
    const auto model = load(make_synthetic_model(small(preset, small_model ? 0 : 1)).checkpoint);
    const measure::ModelCheck check = measure::check_model(*model);
    EXPECT_EQ(check.not_finite, 0);
    EXPECT_GT(check.logits_rows, 0);
    EXPECT_GT(check.largest, 0.5);
    EXPECT_LT(check.largest, 50.0);
    ASSERT_EQ(check.routing.has_value(), std::string(preset) == "qwen3.6-35b-a3b");
    if (!check.routing) continue;
    EXPECT_EQ(check.routing->experts, 256);
    EXPECT_EQ(check.routing->top_k, 8);
    EXPECT_GT(check.routing->used_min, 230);
    EXPECT_LT(check.routing->load_max_over_mean, 8.0);
  }
}

// --- handing over ---------------------------------------------------------------------------------------------------

std::vector<float> logits_of(std::shared_ptr<const Checkpoint> checkpoint) {
  const auto model = load(std::move(checkpoint));
  measure::PassShape shape;
  shape.rows = 12;
  shape.commits = true;
  shape.logits_rows = 12;
  shape.logits_on_host = true;
  measure::PassSeries pass(*model, shape, 1);
  pass.run();
  const auto count = pass.result().logits_rows.size() * static_cast<std::size_t>(model->facts().vocabulary_size);
  return {pass.result().logits, pass.result().logits + count};
}

void expect_equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_FALSE(a.empty());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

TEST(SyntheticModel, AGgufFileIsTheSameModel) {
  const std::pair<const char*, const char*> cases[] = {
      {"smollm2-135m", "q4_0"}, {"smollm2-135m", "bf16"}, {"qwen2.5-1.5b", "q4_1"}, {"qwen3-0.6b", "q8_0"}};
  for (const auto& [preset, format] : cases) {
    SCOPED_TRACE(preset);
    TemporaryFolder folder;
    const fs::path file = folder.path() / "model.gguf";
    SyntheticOptions options = small(preset, 2, format);
    options.gguf = true;
    const SyntheticModel model = make_synthetic_model(options);
    write_synthetic_gguf(model, file);
    const auto read = Checkpoint::open(file);
    EXPECT_EQ(read->config(), model.checkpoint->config());
    EXPECT_EQ(read->gguf_strings("tokenizer.ggml.tokens"), model.vocabulary.tokens);
    EXPECT_EQ(read->gguf_strings("tokenizer.ggml.merges"), model.vocabulary.merges);
    expect_equal_bits(logits_of(read), logits_of(model.checkpoint));
    EXPECT_HAS(error_of([&] { write_synthetic_gguf(model, file); }, ErrorCode::kInvalidArgument), "exists");
  }
}

TEST(SyntheticModel, AnMlxFolderIsTheSameModel) {
  const std::pair<const char*, const char*> cases[] = {
      {"smollm2-135m", "affine4"}, {"qwen3-0.6b", "bf16"}, {"qwen3.6-35b-a3b", "affine4"}};
  for (const auto& [preset, format] : cases) {
    SCOPED_TRACE(preset);
    TemporaryFolder folder;
    const SyntheticModel model = make_synthetic_model(small(preset, 1, format));
    write_synthetic_mlx(model, folder.path() / "model", {{"tokenizer.json", "{}"}});
    const auto read = Checkpoint::open(folder.path() / "model");
    EXPECT_EQ(read->container(), Container::kMlx);
    EXPECT_EQ(read->config(), model.checkpoint->config());
    EXPECT_TRUE(fs::exists(folder.path() / "model/tokenizer.json"));
    expect_equal_bits(logits_of(read), logits_of(model.checkpoint));
    EXPECT_HAS(error_of([&] { write_synthetic_gguf(model, folder.path() / "x.gguf"); }, ErrorCode::kInvalidArgument),
               "GGUF");
  }
}

TEST(SyntheticModel, VocabulariesSpellEveryByteOnce) {
  const SyntheticVocabulary vocabulary = make_vocabulary(400, 3, 7, "smollm");
  EXPECT_EQ(vocabulary.tokens.size(), 400u);
  EXPECT_EQ(std::set<std::string>(vocabulary.tokens.begin(), vocabulary.tokens.end()).size(), 400u);
  EXPECT_EQ(vocabulary.types[3], 3);
  EXPECT_EQ(vocabulary.types[7], 3);
  EXPECT_EQ(std::count(vocabulary.types.begin(), vocabulary.types.end(), 3), 2);
  error_of([] { make_vocabulary(200, -1, 0, "smollm"); }, ErrorCode::kInvalidArgument);
  error_of([] { make_vocabulary(400, 5, 5, "smollm"); }, ErrorCode::kInvalidArgument);
}

TEST(GgufWriter, RefusesWhatTheContainerHasNotAndLeavesNothing) {
  TemporaryFolder folder;
  TensorInfo tensor;
  tensor.name = "x";
  tensor.dtype = "U32";
  tensor.shape = {4};
  EXPECT_HAS(error_of([&] { write_gguf(folder.path() / "x.gguf", {}, std::span(&tensor, 1)); },
                      ErrorCode::kInvalidArgument),
             "U32");
  EXPECT_TRUE(fs::is_empty(folder.path()));
  error_of([&] { write_gguf(folder.path() / "no/such/folder.gguf", {}, {}); }, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace tensorfold
