// A linear layer of the CUDA backend: its parts in device memory, as packed_linear.h lays them out. Host code only; kernels
// are handed PackedPart by value.
#pragma once

#include <memory>
#include <vector>

#include "ops/backend.h"
#include "ops/cuda/linear/packed_linear.h"
#include "ops/linear.h"

namespace tensorfold::ops::cuda {

class WeightLoader;

class CudaLinear final : public Linear {
 public:
  std::int64_t rows() const override { return rows_; }
  std::int64_t columns() const override { return columns_; }
  std::int64_t experts() const override { return experts_; }
  std::size_t packed_bytes() const override { return packed_bytes_; }

  /// In order of output rows. One part covers the layer when all rows are stored alike.
  const std::vector<PackedPart>& parts() const { return parts_; }

 private:
  friend class WeightLoader;
  std::int64_t rows_ = 0, columns_ = 0, experts_ = 1;
  std::size_t packed_bytes_ = 0;
  std::vector<PackedPart> parts_;
  std::vector<std::unique_ptr<Buffer>> memory_;
};

inline const CudaLinear& cuda_linear(const Linear* weight) {
  return static_cast<const CudaLinear&>(*weight);
}

}  // namespace tensorfold::ops::cuda
