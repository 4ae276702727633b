// The layers of every family on any backend: one decoder layer over the rows of a pass, in the two halves that a caller
// may want apart (keys are written for all rows, the rest is computed for some), and the workspace that layers share.
// It stands between the executor, the MTP head and the backend so that a head's layer is the model's layer, to the bit.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/description.h"
#include "model/layer_caches.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace tensorfold {

/// The rows of a pass as layers see them.
struct LayerRows {
  std::int64_t rows = 0;
  std::vector<std::int32_t> rope_positions;       // [rows]
  std::vector<std::vector<ops::LaneSpan>> spans;  // [cache group][lane]
};

/// The widths, in elements a row, that decide the workspace.
struct LayerWidths {
  std::int64_t wide = 0;     // fp32 projections
  std::int64_t mixed = 0;    // activations after mixers and gates
  std::int64_t queries = 0;  // activations
  std::int64_t router = 0;   // experts
  void include(const LayerDescription& layer);
};

class LayerRunner {
 public:
  /// Called with the experts chosen in a layer: host memory [rows, top_k], valid during the call.
  using OnExperts = std::function<void(const std::int32_t* experts, std::int64_t rows, std::int32_t top_k)>;

  /// Allocates the workspace for passes of up to `rows_max` rows.
  LayerRunner(ops::Backend& backend, std::int64_t hidden_size, std::int64_t rows_max, const LayerWidths& widths);

  /// The tables that AttentionMixer::rope indexes; backend memory that outlives their use.
  void set_ropes(std::vector<ops::RopeTable> ropes) { ropes_ = std::move(ropes); }

  /// One layer over the residual stream of `rows`.
  void run(const LayerDescription& layer, const LayerWeights& weights, const LayerCache& cache, const LayerRows& rows,
           const OnExperts& on_experts = {});
  /// The same in two halves, for layers with attention. First: norm, projections, keys and values into the pages.
  void write_keys(const LayerDescription& layer, const LayerWeights& weights, const LayerCache& cache,
                  const LayerRows& rows);
  /// Second: attention and all that follows, for the first rows.rows rows of write_keys.
  void finish(const LayerDescription& layer, const LayerWeights& weights, const LayerCache& cache,
              const LayerRows& rows, const OnExperts& on_experts = {});

  void run_linear(const ops::Linear& weight, const ops::Activation* x, std::int64_t rows, float* y, bool accumulate);
  /// The same of the normed residual stream, y = weight · norm. `keeps_norm`: others read normed() afterwards.
  void run_normed_linear(const ops::RmsNormParams& norm, const ops::Linear& weight, float* y, bool keeps_norm = false);

  // The workspace, rows_max rows of each.
  float* residual() { return floats(residual_); }             // [rows, hidden]
  ops::Activation* normed() { return activations(normed_); }  // [rows, hidden]
  float* wide() { return floats(wide_); }                     // [rows, widest projection]
  ops::Activation* mixed() { return activations(mixed_); }    // [rows, widest mixer or feed-forward inner]
  ops::Activation* queries() { return activations(queries_); }  // [rows, heads · head_dim]
  float* output() { return floats(output_); }                 // [rows, hidden]
  /// Test hook (one-arithmetic.md, rule 13): fills the workspace with NaN bytes, as stale memory might hold.
  void poison();

 private:
  void run_attention(const AttentionMixer& mixer, const AttentionWeights& weights, const LayerCache& cache,
                     const LayerRows& rows, float* output, bool accumulate);
  void run_gated_delta(const GatedDeltaMixer& mixer, const GatedDeltaWeights& weights, const LayerCache& cache,
                       const LayerRows& rows, const ops::RmsNormParams& norm, float* output, bool accumulate);
  void run_feed_forward(const LayerDescription& layer, const LayerWeights& weights, std::int64_t rows,
                        const OnExperts& on_experts);
  void run_gate_up(const ops::Linear& weight, std::int64_t rows, std::int64_t width, ops::ActivationKind kind,
                   const ops::RmsNormParams* norm);
  void run_dense(const DenseFeedForward& feed_forward, const DenseWeights& weights, const ops::RmsNormParams& norm,
                 float* output, bool accumulate);
  void run_moe(const MoeFeedForward& feed_forward, const MoeWeights& weights, const ops::RmsNormParams& norm,
               const OnExperts& on_experts);
  /// Of the residual stream, into normed().
  ops::RmsNormParams norm_of(const NormDescription& description, const float* weight, std::int64_t rows);
  void add_post_norm(const NormDescription& description, const float* weight, std::int64_t rows);

  static float* floats(const std::unique_ptr<ops::Buffer>& buffer) { return static_cast<float*>(buffer->data()); }
  static ops::Activation* activations(const std::unique_ptr<ops::Buffer>& buffer) {
    return static_cast<ops::Activation*>(buffer->data());
  }

  ops::Backend& backend_;
  std::int64_t hidden_size_;
  std::vector<ops::RopeTable> ropes_;
  std::unique_ptr<ops::Buffer> residual_;  // fp32
  std::unique_ptr<ops::Buffer> normed_;    // activations
  std::unique_ptr<ops::Buffer> wide_;      // fp32
  std::unique_ptr<ops::Buffer> mixed_;     // activations
  std::unique_ptr<ops::Buffer> queries_;   // activations [rows, heads · head_dim]
  std::unique_ptr<ops::Buffer> output_;    // fp32
  std::unique_ptr<ops::Buffer> router_;    // [rows, experts + 1] fp32: logits, and the shared expert's gate
};

ops::KvGeometry kv_geometry(const AttentionMixer& mixer);

}  // namespace tensorfold
