// Finding, checking and packing single tensors of a checkpoint: names, fused parts, expert stacks, vectors. Shared by
// the loaders of models, MTP heads and drafters, which differ in what they describe, not in how a tensor is read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/description.h"
#include "model/tensor_names.h"
#include "ops/backend.h"

namespace tensorfold {

/// A matrix in memory instead of in the file; alive until the backend has packed it.
struct GatheredStack {
  std::vector<std::byte> data, scales, biases;
};

enum class LinearUse {
  kOrdinary,
  kEmbedding,     // also a table
  kGateUp,        // rows that are read in pairs: gate, then up
  kSplitColumns,  // its columns may be split over GPUs: sums follow the tree that they would (one-arithmetic.md, rule 1)
};

class TensorLoader {
 public:
  /// May replace a part of a linear layer on its way to the backend; the new view may point into `stack`.
  using Rework = std::function<void(WeightView& view, GatheredStack& stack)>;

  TensorLoader(const Checkpoint& checkpoint, TensorNames names, ops::Backend& backend,
               std::function<void(double, const std::string&)> progress);
  void set_rework(Rework rework) { rework_ = std::move(rework); }

  std::unique_ptr<ops::Linear> linear(const LinearDescription& description, LinearUse use = LinearUse::kOrdinary);
  /// Some rows of a matrix of one part: the ranges, one after the other.
  std::unique_ptr<ops::Linear> rows_of(const LinearDescription& description, const std::vector<IdRange>& ranges);
  /// A small dense tensor in backend memory, owned by take_vectors().
  const float* vector(const std::string& canonical, std::int64_t count,
                      const std::function<float(float)>& transform = {});
  const float* norm(const NormDescription& description);
  /// The matrix as it lies in the file, without packing it.
  WeightView table(const std::string& canonical, std::int64_t rows, std::int64_t columns);

  /// Stops the load when a tensor was neither used nor matches a pattern ('*' = any run) of `ignored`, by its name.
  void check_every_tensor_used(const std::vector<std::string>& ignored, const std::string& owner) const;

  std::vector<std::unique_ptr<ops::Buffer>> take_vectors() { return std::move(vectors_); }
  std::uint64_t packed_bytes() const { return packed_bytes_; }

 private:
  WeightView claim_weight(const std::string& base, std::int64_t rows, std::int64_t columns, std::int64_t experts);
  void add_part(ops::LinearSource& source, const LinearDescription& description, const LinearPart& part);
  void add_expert_parts(ops::LinearSource& source, const LinearDescription& description);
  WeightView gather_experts(const LinearPart& part, std::int64_t experts, std::int64_t columns);
  void drop_source_pages(const ops::LinearSource& source);
  void report(const std::string& what);

  const Checkpoint& checkpoint_;
  TensorNames names_;
  ops::Backend& backend_;
  std::function<void(double, const std::string&)> progress_;
  Rework rework_;
  std::set<std::string, std::less<>> claimed_;
  std::vector<std::unique_ptr<GatheredStack>> gathered_;
  std::uint64_t bytes_total_ = 0, bytes_done_ = 0;
  std::vector<std::unique_ptr<ops::Buffer>> vectors_;
  std::uint64_t packed_bytes_ = 0;
};

}  // namespace tensorfold
