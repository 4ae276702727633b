// See synthetic_checkpoint.h.
#include "convert/synthetic/synthetic_checkpoint.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/limits.h"
#include "checkpoint/affine_quantiser.h"
#include "checkpoint/stored_checkpoint.h"
#include "convert/synthetic/gguf_metadata.h"
#include "convert/synthetic/presets.h"
#include "convert/synthetic/random_pools.h"
#include "convert/synthetic/shape_probe.h"
#include "convert/synthetic/tensor_list.h"
#include "model/load.h"
#include "model/tensor_names.h"

namespace tensorfold {
namespace {

constexpr AffineSetting kAffine{4, 64};

struct Format {
  std::string_view name;
  WeightFormat format;
  bool gguf_only;
};
constexpr Format kFormats[] = {{"affine4", WeightFormat::kAffine, false},
                               {"bf16", WeightFormat::kBF16, false},
                               {"q4_0", WeightFormat::kQ4_0, true},
                               {"q4_1", WeightFormat::kQ4_1, true},
                               {"q8_0", WeightFormat::kQ8_0, true}};

const Format& find_format(const std::string& name) {
  for (const Format& format : kFormats) {
    if (format.name == name) return format;
  }
  fail(ErrorCode::kInvalidArgument, "no format \"{}\"; there are {}", name, fmt::join(synthetic_formats(), ", "));
}

/// One value of a vector, near what trained models hold there.
float draw(VectorKind kind, RandomBits& random) {
  const float centred = 2.0f * random.uniform() - 1.0f;
  switch (kind) {
    case VectorKind::kNorm:
      return 1.0f + 0.1f * centred;
    case VectorKind::kZeroCentredNorm:
    case VectorKind::kBias:
      return 0.1f * centred;
    case VectorKind::kConvolution:
      return 0.5f * centred;
    case VectorKind::kDecayLog:  // decays of 1 to 16
      return std::log(1.0f + 15.0f * random.uniform());
    case VectorKind::kTimeStepBias:  // steps of 0.001 to 0.1 behind the softplus
      return std::log(std::expm1(0.001f * std::pow(100.0f, random.uniform())));
  }
  return 0.0f;
}

class SyntheticCheckpoint final : public StoredCheckpoint {
 public:
  SyntheticCheckpoint(std::string name, Container container, nlohmann::json config, const SyntheticVocabulary& vocabulary,
                      SyntheticTensors list, const SyntheticOptions& options)
      : StoredCheckpoint(std::move(name)), vocabulary_(vocabulary), pools_(options.seed) {
    container_ = container;
    config_ = std::move(config);
    for (const SyntheticTensor& each : list.tensors) {
      file_bytes_ += each.info.bytes;
      if (!each.matrix.empty()) pools_.reserve(each.content, each.info.bytes);
    }
    pools_.fill(options.threads > 0 ? options.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
    std::vector<TensorInfo> tensors;
    for (SyntheticTensor& each : list.tensors) {
      each.info.data = each.matrix.empty() ? make_vector(each, options.seed)
                                           : pools_.stretch(each.content, each.info.bytes, each.matrix);
      tensors.push_back(std::move(each.info));
    }
    add_tensors(std::move(tensors));
    index_tensors();
  }

  std::vector<std::string> gguf_strings(std::string_view key) const override {
    if (container_ != Container::kGguf) return {};
    if (key == "tokenizer.ggml.tokens") return vocabulary_.tokens;
    if (key == "tokenizer.ggml.merges") return vocabulary_.merges;
    return {};
  }
  std::vector<double> gguf_numbers(std::string_view key) const override {
    if (container_ != Container::kGguf || key != "tokenizer.ggml.token_type") return {};
    return {vocabulary_.types.begin(), vocabulary_.types.end()};
  }
  /// Other tensors lie on the same pages.
  void drop_pages(const std::byte*, std::size_t) const override {}

 private:
  const std::byte* make_vector(const SyntheticTensor& tensor, std::uint64_t seed) {
    const WeightFormat format = tensor.info.dtype == "F32" ? WeightFormat::kF32 : WeightFormat::kBF16;
    const auto element = static_cast<std::size_t>(weight_format_block(format).bytes);
    vectors_.emplace_back(tensor.info.bytes);
    RandomBits random(hash_of(seed, tensor.info.name));
    for (std::size_t at = 0; at < tensor.info.bytes; at += element) {
      store_scalar(format, draw(tensor.vector, random), vectors_.back().data() + at);
    }
    return vectors_.back().data();
  }

  SyntheticVocabulary vocabulary_;
  RandomPools pools_;
  std::vector<std::vector<std::byte>> vectors_;
};

void state_quantisation(nlohmann::json& config, const SyntheticTensors& list) {
  nlohmann::json quantisation{{"bits", kAffine.bits}, {"group_size", kAffine.group_size}, {"mode", "affine"}};
  for (const auto& [path, setting] : list.exceptions) {
    quantisation[path] = {{"bits", setting.bits}, {"group_size", setting.group_size}};
  }
  for (const std::string& path : list.dense_matrices) quantisation[path] = false;
  config["quantization"] = quantisation;
  config["quantization_config"] = quantisation;
}

/// The preset's config.json with what the options change.
nlohmann::json configuration(const SyntheticPreset& preset, const SyntheticOptions& options) {
  nlohmann::json config = nlohmann::json::parse(preset.config);
  nlohmann::json& text = text_config_of(config);
  if (options.layers < 0 || options.layers > limits::kLayerCountMax) {
    fail(ErrorCode::kInvalidArgument, "{} layers can't be made; use 1 to {}", options.layers, limits::kLayerCountMax);
  }
  if (options.layers > 0) text["num_hidden_layers"] = options.layers;
  if (options.vocabulary > 0) {
    text["vocab_size"] = options.vocabulary;
    for (nlohmann::json* each : {&config, &text}) {  // special tokens lie at the end, as far as there are any
      if (each->contains("bos_token_id")) (*each)["bos_token_id"] = options.vocabulary - 2;
      if (each->contains("eos_token_id")) (*each)["eos_token_id"] = options.vocabulary - 1;
    }
  }
  if (options.mtp && !preset.has_mtp) {
    fail(ErrorCode::kInvalidArgument, "{} has no MTP head", preset.name);
  }
  if (preset.has_mtp) text["mtp_num_hidden_layers"] = options.mtp ? 1 : 0;
  return config;
}

}  // namespace

const std::vector<std::string_view>& synthetic_formats() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> result;
    for (const Format& format : kFormats) result.push_back(format.name);
    return result;
  }();
  return names;
}

SyntheticModel make_synthetic_model(const SyntheticOptions& options) {
  const SyntheticPreset& preset = find_synthetic_preset(options.preset);
  const Format& format = find_format(options.format);
  const bool gguf = options.gguf || format.gguf_only;
  if (gguf && preset.gguf_architecture.empty()) {
    fail(ErrorCode::kInvalidArgument, "{} can't be a GGUF file here: this build reads none of its family", preset.name);
  }
  if (gguf && format.format == WeightFormat::kAffine) {
    fail(ErrorCode::kInvalidArgument, "a GGUF file can't hold {}; choose q4_0, q4_1, q8_0 or bf16", format.name);
  }
  nlohmann::json config = configuration(preset, options);
  const nlohmann::json& text = text_config_of(config);
  SyntheticModel model;
  const auto token = [&text, &config](const char* key) {  // the wrapper's end token is the chat's
    return config.value(key, text.value(key, -1));
  };
  model.vocabulary = make_vocabulary(text["vocab_size"].get<std::int32_t>(), token("bos_token_id"),
                                     token("eos_token_id"), std::string(preset.pre_tokenizer));
  const Container container = gguf ? Container::kGguf : Container::kMlx;
  const bool tied = text.value("tie_word_embeddings", false);
  if (gguf) {
    model.gguf_metadata = gguf_model_metadata(preset, text, options.format, model.vocabulary);
    config = gguf_config(model.gguf_metadata);
  }
  const ShapeProbe probe(container, config, tied, options.mtp);
  SyntheticTensors list =
      list_tensors(describe_model(probe), TensorNames(probe), container, format.format, kAffine);
  if (format.format == WeightFormat::kAffine) state_quantisation(config, list);
  model.checkpoint = std::make_shared<SyntheticCheckpoint>("synthetic:" + options.preset, container, std::move(config),
                                                           model.vocabulary, std::move(list), options);
  return model;
}

}  // namespace tensorfold
