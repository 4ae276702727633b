// See write_synthetic.h.
#include "convert/synthetic/write_synthetic.h"

#include <utility>

#include "base/error.h"
#include "convert/convert.h"

namespace tensorfold {

void write_synthetic_gguf(const SyntheticModel& model, const std::filesystem::path& file,
                          const SyntheticProgress& progress) {
  if (model.checkpoint->container() != Container::kGguf) {
    fail(ErrorCode::kInvalidArgument, "a GGUF file needs the format q4_0, q4_1, q8_0 or bf16");
  }
  std::error_code error;
  if (std::filesystem::exists(file, error)) {
    fail(ErrorCode::kInvalidArgument, "{}: exists already; nothing is overwritten", file.string());
  }
  write_gguf(file, model.gguf_metadata, model.checkpoint->tensors(), progress);
}

// A conversion that changes nothing: every tensor is copied as it is.
void write_synthetic_mlx(const SyntheticModel& model, const std::filesystem::path& folder,
                         std::map<std::string, std::string> files, const SyntheticProgress& progress) {
  if (model.checkpoint->container() == Container::kGguf) {
    fail(ErrorCode::kInvalidArgument, "an MLX folder needs the format affine4 or bf16");
  }
  ConversionPlan plan;
  plan.checkpoint = model.checkpoint;
  plan.config = model.checkpoint->config();
  plan.files = std::move(files);
  for (const TensorInfo& tensor : model.checkpoint->tensors()) {
    PlannedVector vector;
    vector.name = tensor.name;
    vector.source = &tensor;
    vector.shape = tensor.shape;
    vector.verbatim = true;
    plan.vectors.push_back(std::move(vector));
  }
  convert(plan, folder, progress);
}

}  // namespace tensorfold
