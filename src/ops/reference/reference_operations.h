// The one class behind make_reference_backend(), shared by the files that implement it, one an operation. Private to
// this folder.
#pragma once

#include <cmath>
#include <vector>

#include "base/bf16.h"
#include "base/thread_pool.h"
#include "ops/reference/reference_backend.h"

namespace tensorfold::ops {

/// Weights decoded once, at load: [experts, rows, columns] in fp32, already rounded to bf16 when rounding says so.
class ReferenceLinear final : public Linear {
 public:
  std::int64_t rows() const override { return rows_; }
  std::int64_t columns() const override { return columns_; }
  std::int64_t experts() const override { return experts_; }
  std::size_t packed_bytes() const override { return (weights_.size() + bias_.size()) * sizeof(float); }

  const float* row(std::int64_t expert, std::int64_t row) const {
    return weights_.data() + (expert * rows_ + row) * columns_;
  }

  std::int64_t rows_ = 0;
  std::int64_t columns_ = 0;
  std::int64_t experts_ = 0;
  std::vector<float> weights_;
  std::vector<float> bias_;  // empty = none
};

/// The lane and the row of every row of a pass, so that rows can be shared out over threads.
struct LaneRow {
  const LaneSpan* lane;
  std::int32_t row;    // of the pass
  std::int32_t depth;  // below the span's first row
  std::int64_t position() const { return static_cast<std::int64_t>(lane->position) + depth; }
};
std::vector<LaneRow> rows_of_lanes(const LaneSpan* lanes, std::int32_t lane_count);

class ReferenceBackend final : public Backend {
 public:
  ReferenceBackend(Rounding rounding, int threads);

  const BackendInfo& info() const override { return info_; }
  std::unique_ptr<Buffer> allocate(std::size_t bytes, const char* purpose) override;
  void copy_to_backend(void* destination, const void* source, std::size_t bytes) override;
  void copy_to_host(void* destination, const void* source, std::size_t bytes) override;
  void zero(void* destination, std::size_t bytes) override;
  void synchronise() override {}

  std::unique_ptr<Linear> load_linear(const LinearSource& source) override;
  void linear(const LinearParams& params) override;
  void embed(const EmbedParams& params) override;
  void rms_norm(const RmsNormParams& params) override;
  void rms_norm_add(const RmsNormAddParams& params) override;
  std::size_t kv_page_bytes(const KvGeometry& geometry) const override;
  std::size_t kv_tree_bytes(const KvGeometry& geometry) const override;
  void attention_prepare(const AttentionPrepareParams& params) override;
  void attention(const AttentionParams& params) override;
  void attention_replay(const AttentionReplayParams& params) override;
  void gated_activation(const GatedActivationParams& params) override;
  void soft_cap(const SoftCapParams& params) override;
  void round_rows(const RoundRowsParams& params) override;
  void block_convolution(const BlockConvolutionParams& params) override;
  std::size_t gated_delta_state_bytes(const GatedDeltaGeometry& geometry) const override;
  std::size_t gated_delta_window_row_bytes(const GatedDeltaGeometry& geometry) const override;
  void gated_delta(const GatedDeltaParams& params) override;
  void moe(const MoeParams& params) override;

 private:
  /// A rounding point: bf16 with Rounding::kBackend, the plain fp32 value otherwise.
  float round_point(double value) const {
    const float narrow = static_cast<float>(value);
    return rounding_ == Rounding::kBackend ? to_float(to_bf16(narrow)) : narrow;
  }
  /// A row's norm of `width` elements before any rounding; weight may be null.
  static void normalise(const float* x, const float* weight, float epsilon, std::int64_t width, double* out);
  class RowKeys;
  void softmax_attention(const AttentionParams& params, const LaneRow& at, std::int32_t head) const;
  void plain_softmax(const AttentionParams& params, const RowKeys& keys, std::int32_t head, const float* query,
                     double* out) const;
  void tiled_softmax(const AttentionParams& params, const RowKeys& keys, std::int32_t head, const float* query,
                     double* out) const;
  void gated_delta_lane(const GatedDeltaParams& params, const LaneSpan& lane);
  void moe_row(const MoeParams& params, std::int64_t row) const;
  void expert_output(const MoeParams& params, std::int32_t expert, const float* x, float* out) const;

  Rounding rounding_;
  BackendInfo info_;
  ThreadPool pool_;
};

/// Activations of this backend are fp32.
inline const float* values_of(const Activation* activations) {
  return reinterpret_cast<const float*>(activations);
}
inline float* values_of(Activation* activations) {
  return reinterpret_cast<float*>(activations);
}

inline double dot(const float* a, const float* b, std::int64_t count) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

inline double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

double activate(ActivationKind kind, double x);

}  // namespace tensorfold::ops
