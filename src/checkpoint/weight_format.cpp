#include "checkpoint/weight_format.h"

#include "base/error.h"

namespace tensorfold {

const char* weight_format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kF16:
      return "f16";
    case WeightFormat::kBF16:
      return "bf16";
    case WeightFormat::kAffine:
      return "affine";
    case WeightFormat::kQ4_0:
      return "q4_0";
    case WeightFormat::kQ4_1:
      return "q4_1";
    case WeightFormat::kQ5_0:
      return "q5_0";
    case WeightFormat::kQ5_1:
      return "q5_1";
    case WeightFormat::kQ8_0:
      return "q8_0";
    case WeightFormat::kQ4_K:
      return "q4_k";
    case WeightFormat::kQ5_K:
      return "q5_k";
    case WeightFormat::kQ6_K:
      return "q6_k";
  }
  return "unknown";
}

BlockShape weight_format_block(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return {1, 4};
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      return {1, 2};
    case WeightFormat::kQ4_0:
      return {32, 18};
    case WeightFormat::kQ4_1:
      return {32, 20};
    case WeightFormat::kQ5_0:
      return {32, 22};
    case WeightFormat::kQ5_1:
      return {32, 24};
    case WeightFormat::kQ8_0:
      return {32, 34};
    case WeightFormat::kQ4_K:
      return {256, 144};
    case WeightFormat::kQ5_K:
      return {256, 176};
    case WeightFormat::kQ6_K:
      return {256, 210};
    case WeightFormat::kAffine:
      break;
  }
  TF_ASSERT(!"an affine matrix has no fixed block");
  return {1, 1};
}

}  // namespace tensorfold
