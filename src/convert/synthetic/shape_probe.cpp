// See shape_probe.h.
#include "convert/synthetic/shape_probe.h"

#include "base/error.h"

namespace tensorfold {

ShapeProbe::ShapeProbe(Container container, const nlohmann::json& config, bool tied, bool mtp)
    : container_(container), config_(config), tied_(tied) {
  // MLX conversions of multimodal wrappers have the text model under a name of its own.
  outer_prefix_ = config.contains("text_config") ? "language_model." : "";
  body_prefix_ = outer_prefix_ + "model.";
  if (mtp) {
    TensorInfo head;
    head.name = outer_prefix_ + "mtp.norm.weight";
    tensors_.push_back(std::move(head));
  }
  convolution_.shape = {1, 2, 1};  // channels, taps, 1: the order tells an MLX conversion, the sizes nothing
}

const TensorInfo* ShapeProbe::find(std::string_view name) const {
  return container_ == Container::kMlx && name.ends_with("conv1d.weight") ? &convolution_ : nullptr;
}

WeightView ShapeProbe::weight(std::string_view base, std::int64_t, std::int64_t, std::int64_t) const {
  fail(ErrorCode::kInternal, "a description asked for the weights of {}", base);
}

bool ShapeProbe::has_weight(std::string_view base) const {
  if (container_ == Container::kGguf) return base != "output" || !tied_;
  if (base == outer_prefix_ + "lm_head") return !tied_;
  return base.starts_with(body_prefix_);
}

// Norms are asked for their means: those of a conversion multiply by about 1.
std::vector<float> ShapeProbe::values(std::string_view, std::int64_t count) const {
  return std::vector<float>(static_cast<std::size_t>(count), 1.0f);
}

}  // namespace tensorfold
