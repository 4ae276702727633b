// The tensors that a model's description asks for, in the names, shapes and formats of one container: what a checkpoint
// of that model would hold. Made from the description that loading follows, so a family that is served can be made up
// without a word about it here.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/affine.h"
#include "checkpoint/checkpoint.h"
#include "convert/synthetic/random_pools.h"
#include "model/description.h"
#include "model/tensor_names.h"

namespace tensorfold {

/// How a vector's values are drawn: around what such a vector holds in trained models.
enum class VectorKind : std::uint8_t { kNorm, kZeroCentredNorm, kBias, kConvolution, kDecayLog, kTimeStepBias };

struct SyntheticTensor {
  TensorInfo info;         // no data yet
  std::string matrix;      // path of the matrix it is a part of; empty: a vector
  RandomContent content;   // of a matrix
  VectorKind vector = VectorKind::kNorm;
};

struct SyntheticTensors {
  std::vector<SyntheticTensor> tensors;
  std::map<std::string, AffineSetting> exceptions;  // matrices that aren't of the usual affine setting, by path
  std::vector<std::string> dense_matrices;          // ... that are stored dense, where others are affine
};

/// `format`: of the matrices (BF16, the affine setting `affine`, Q4_0, Q4_1 or Q8_0). Routers are 8-bit affine, as
/// mlx-lm has them.
SyntheticTensors list_tensors(const ModelDescription& description, const TensorNames& names, Container container,
                              WeightFormat format, const AffineSetting& affine);

}  // namespace tensorfold
