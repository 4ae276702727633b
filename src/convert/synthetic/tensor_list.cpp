// See tensor_list.h.
#include "convert/synthetic/tensor_list.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace tensorfold {
namespace {

constexpr AffineSetting kRouterSetting{8, 64};

std::string dtype_of(WeightFormat format) {
  std::string name = weight_format_name(format);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  return name;
}

class Lister {
 public:
  Lister(const ModelDescription& description, const TensorNames& names, Container container, WeightFormat format,
         const AffineSetting& affine)
      : description_(description), names_(names), container_(container), format_(format), affine_(affine) {
    // What every layer adds to the residual stream stays as large as what the embedding brought, in all layers
    // together: tokens keep apart, so that routers send them apart.
    residual_gain_ = 1.0f / std::sqrt(2.0f * static_cast<float>(description.layers.size()));
  }

  SyntheticTensors run() {
    linear(description_.embedding);
    if (description_.head) linear(*description_.head);
    norm(description_.final_norm);
    for (const LayerDescription& each : description_.layers) layer(each);
    if (const auto& mtp = description_.mtp) {
      norm(mtp->embedding_norm);
      norm(mtp->hidden_norm);
      norm(mtp->final_norm);
      linear(mtp->join);
      layer(mtp->layer);
    }
    return std::move(result_);
  }

 private:
  void layer(const LayerDescription& layer) {
    norm(layer.input_norm);
    norm(layer.feed_forward_norm);
    norm(layer.post_mixer_norm);
    norm(layer.post_feed_forward_norm);
    if (const auto* attention = std::get_if<AttentionMixer>(&layer.mixer)) {
      linear(attention->qkv);
      linear(attention->output, residual_gain_);
      norm(attention->q_norm);
      norm(attention->k_norm);
    } else {
      gated_delta(std::get<GatedDeltaMixer>(layer.mixer));
    }
    if (const auto* dense = std::get_if<DenseFeedForward>(&layer.feed_forward)) {
      linear(dense->gate_up);
      linear(dense->down, residual_gain_);
      return;
    }
    const auto& experts = std::get<MoeFeedForward>(layer.feed_forward);
    linear(experts.router, 1.0f, &kRouterSetting);
    linear(experts.gate_up);
    linear(experts.down, residual_gain_);
    if (!experts.shared) return;
    linear(experts.shared->gate_up);
    linear(experts.shared->down, residual_gain_);
    linear(experts.shared->gate, 1.0f, &kRouterSetting);
  }

  void gated_delta(const GatedDeltaMixer& mixer) {
    const auto& geometry = mixer.geometry;
    linear(mixer.input);
    linear(mixer.output, residual_gain_);
    norm(mixer.norm);
    // (channels, taps, 1), as MLX has it.
    vector(mixer.conv_weight, {geometry.conv_channels(), geometry.conv_kernel, 1}, VectorKind::kConvolution);
    vector(mixer.a_log, {geometry.v_heads}, VectorKind::kDecayLog);
    vector(mixer.dt_bias, {geometry.v_heads}, VectorKind::kTimeStepBias);
  }

  void norm(const NormDescription& norm) {
    vector(norm.weight, {norm.width}, norm.add_one ? VectorKind::kZeroCentredNorm : VectorKind::kNorm);
  }
  void norm(const std::optional<NormDescription>& optional) {
    if (optional) norm(*optional);
  }

  void vector(const std::string& canonical, std::vector<std::int64_t> shape, VectorKind kind) {
    SyntheticTensor tensor;
    tensor.info.name = names_.file_name(canonical);
    const bool single = container_ == Container::kGguf || kind == VectorKind::kDecayLog;
    tensor.info.dtype = single ? "F32" : "BF16";
    tensor.info.bytes = single ? 4 : 2;
    for (const std::int64_t dimension : shape) tensor.info.bytes *= static_cast<std::size_t>(dimension);
    tensor.info.shape = std::move(shape);
    tensor.vector = kind;
    result_.tensors.push_back(std::move(tensor));
  }

  void linear(const LinearDescription& linear, float gain = 1.0f, const AffineSetting* router = nullptr) {
    const float spread = gain / std::sqrt(static_cast<float>(linear.columns));
    for (const LinearPart& part : linear.parts) {
      std::vector<std::int64_t> shape{part.rows};
      std::string path = names_.file_name(part.name);
      if (linear.experts > 0) {
        path = names_.expert_stack_names(part.name).front();
        shape.insert(shape.begin(), linear.experts);
      }
      matrix(path, std::move(shape), linear.columns, spread, router);
      if (part.bias) vector(part.name + ".bias", {part.rows}, VectorKind::kBias);
    }
  }

  void matrix(const std::string& path, std::vector<std::int64_t> leading, std::int64_t columns, float spread,
              const AffineSetting* router) {
    if (format_ != WeightFormat::kAffine) return dense(path, std::move(leading), columns, spread, format_);
    const AffineSetting& setting = router != nullptr ? *router : affine_;
    if (columns % setting.group_size != 0) {
      result_.dense_matrices.push_back(path);
      return dense(path, std::move(leading), columns, spread, WeightFormat::kBF16);
    }
    if (router != nullptr) result_.exceptions.emplace(path, setting);
    const std::int64_t groups = columns / setting.group_size;
    const auto add = [&](const char* suffix, const char* dtype, std::int64_t last, std::size_t element_bytes,
                         RandomKind kind) {
      SyntheticTensor tensor;
      tensor.matrix = path;
      tensor.content = {kind, WeightFormat::kAffine, kind == RandomKind::kCodes ? 0 : setting.bits,
                        kind == RandomKind::kCodes ? 0.0f : spread};
      finish(std::move(tensor), path + suffix, dtype, leading, last, element_bytes);
    };
    add(".weight", "U32", columns * setting.bits / 32, 4, RandomKind::kCodes);
    add(".scales", "BF16", groups, 2, RandomKind::kAffineScales);
    add(".biases", "BF16", groups, 2, RandomKind::kAffineBiases);
  }

  void dense(const std::string& path, std::vector<std::int64_t> leading, std::int64_t columns, float spread,
             WeightFormat format) {
    const BlockShape block = weight_format_block(format);
    if (columns % block.elements != 0) {
      fail(ErrorCode::kInvalidArgument, "{} has {} columns, which {} can't hold: its blocks are {} long", path, columns,
           weight_format_name(format), block.elements);
    }
    SyntheticTensor tensor;
    tensor.matrix = path;
    tensor.content = {RandomKind::kMatrix, format, 0, spread};
    finish(std::move(tensor), path + ".weight", dtype_of(format), leading, columns, 0);
  }

  /// `element_bytes` 0: what the format of the content says of rows of `last` elements.
  void finish(SyntheticTensor tensor, std::string name, std::string dtype, std::vector<std::int64_t> shape,
              std::int64_t last, std::size_t element_bytes) {
    std::size_t rows = 1;
    for (const std::int64_t dimension : shape) rows *= static_cast<std::size_t>(dimension);
    std::size_t row_bytes = static_cast<std::size_t>(last) * element_bytes;
    if (element_bytes == 0) {
      const BlockShape block = weight_format_block(tensor.content.format);
      row_bytes = static_cast<std::size_t>(last / block.elements * block.bytes);
    }
    shape.push_back(last);
    tensor.info.name = std::move(name);
    tensor.info.dtype = std::move(dtype);
    tensor.info.shape = std::move(shape);
    tensor.info.bytes = rows * row_bytes;
    result_.tensors.push_back(std::move(tensor));
  }

  const ModelDescription& description_;
  const TensorNames& names_;
  Container container_;
  WeightFormat format_;
  AffineSetting affine_;
  float residual_gain_ = 1.0f;
  SyntheticTensors result_;
};

}  // namespace

SyntheticTensors list_tensors(const ModelDescription& description, const TensorNames& names, Container container,
                              WeightFormat format, const AffineSetting& affine) {
  return Lister(description, names, container, format, affine).run();
}

}  // namespace tensorfold
