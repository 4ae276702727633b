// A block drafter on any backend (families-a.md 4): context keys from tapped rows of the target, and one bidirectional
// or causal block of mask tokens a lane, run through the drafter's layers in one batch over all lanes. It borrows the
// model's embedding, output head and workspace; its keys live in the executor's cache groups like everybody's.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/limits.h"
#include "model/draft_head.h"
#include "model/draft_output.h"
#include "model/drafter_weights.h"
#include "model/kept_rows.h"
#include "model/layer_runner.h"
#include "model/weights.h"

namespace tensorfold {

class DflashDrafter final : public BlockDrafter {
 public:
  /// References outlive this. `taps` holds activations of the last pass's tapped rows, [row, taps · hidden]; `caches`
  /// are those of the drafter's layers, in order. The workspace of `runner` admits what include_widths() adds.
  DflashDrafter(LoadedDrafter drafter, const ModelDescription& model, const ModelWeights& weights,
                ops::Backend& backend, LayerRunner& runner, const KeptRows& taps, const LayerCache* caches,
                std::int64_t rows_max);

  static void include_widths(const DrafterDescription& drafter, LayerWidths& widths);
  /// Builds the table of rotations; positions of a block may lie up to kDraftBlockRowsMax past the context.
  void set_positions(std::int32_t positions);

  /// Makes room for what the widest batch of blocks leaves.
  void reserve();

  std::int32_t block_rows() const override { return drafter_.block_rows; }
  std::int32_t block_rows_max() const override { return static_cast<std::int32_t>(limits::kDraftBlockRowsMax); }
  bool has_selector() const override { return drafter_.selector.has_value(); }
  void absorb(const std::vector<AbsorbLane>& lanes) override;
  void propose(const std::vector<Block>& blocks, std::vector<BlockCandidates>& result) override;
  void pair_scores(const BlockCandidates& candidates, std::int32_t depth, std::int32_t predecessor,
                   float* scores) const override;

  const DrafterDescription& description() const { return drafter_; }
  /// Test hook: called with the final-normed rows that logits were taken of, unrounded; host memory [rows, hidden].
  void set_on_hidden(std::function<void(const float* hidden, std::int64_t rows)> hook) { on_hidden_ = std::move(hook); }
  /// Test hook: the context features of absorbed rows, unrounded.
  void set_on_context(std::function<void(const float* features, std::int64_t rows)> hook) {
    on_context_ = std::move(hook);
  }

 private:
  /// The rows of one batch of blocks. Lists are padded to the backend's row buckets: `rows` holds tokens, `row_count` is
  /// computed, and of `drafted` the first `drafted_count` are meant.
  struct Batch {
    std::int64_t rows = 0, row_count = 0;
    std::vector<std::int32_t> tokens, positions, starts;
    std::vector<std::int32_t> drafted;  // rows that predict a token: all but each block's first
    std::int64_t drafted_count = 0;
    std::size_t first_block = 0, block_count = 0;
    std::vector<std::vector<ops::LaneSpan>> spans;  // [layer]; layers whose spans are alike share the first one's
  };
  struct AbsorbBatch {
    std::int64_t rows = 0;
    std::vector<std::int32_t> sources, positions;   // padded
    std::vector<std::vector<ops::LaneSpan>> spans;  // [layer], as above
  };

  Batch make_batch(const std::vector<Block>& blocks, std::size_t first) const;
  AbsorbBatch make_absorb_batch(const std::vector<AbsorbLane>& lanes) const;
  /// The first layer whose spans `layer` shares: same pages, window and visibility.
  std::size_t span_owner(std::size_t layer) const;
  ops::PassInputs pass_inputs(const std::vector<std::vector<ops::LaneSpan>>& spans, const char* name) const;
  ops::LaneSpan span(const std::vector<PageTable>& pages, const LayerCache& cache, std::int32_t window,
                     std::int32_t first_row, std::int32_t row_count, std::int32_t position) const;
  void write_keys(const DrafterLayer& layer, const DrafterLayerWeights& weights, const LayerCache& cache,
                  const std::vector<ops::LaneSpan>& spans, const std::vector<std::int32_t>& positions, bool queries);
  void attend(const DrafterLayer& layer, const LayerCache& cache, const std::vector<ops::LaneSpan>& spans);
  /// The normed input of a layer's half, through the convolution before it where there is one, in runner.normed().
  void enter(const NormDescription& norm, const float* weight, const BlockConvolutionWeights& convolution,
             const Batch& batch);
  /// mixed -> projection -> the convolution after it -> residual.
  void leave(const ops::Linear& projection, const BlockConvolutionWeights& convolution, const Batch& batch);
  void convolve(const BlockConvolutionWeights& convolution, int side, const Batch& batch, float* residual,
                ops::Activation* out);
  void run_layer(std::size_t index, const Batch& batch);
  void absorb_operations(const AbsorbBatch& batch);
  /// Layers, final norm, projected states and the first part of the logits.
  void block_operations(const Batch& batch);
  /// Room for what block_operations() leaves of `rows` drafted rows.
  void reserve_outputs(std::int64_t rows);
  void take_candidates(const Batch& batch, const std::vector<Block>& blocks, std::vector<BlockCandidates>& result);
  std::vector<float> read_projected(std::int64_t rows);
  std::int64_t groups() const { return drafter_.hidden_size / drafter_.convolution_group; }

  DrafterDescription drafter_;
  DrafterWeights weights_;
  const ModelDescription& model_;
  const ModelWeights& model_weights_;
  ops::Backend& backend_;
  LayerRunner& runner_;
  const KeptRows& taps_;
  const LayerCache* caches_;
  std::int64_t rows_max_;
  DraftOutput output_;
  std::unique_ptr<ops::Buffer> rope_table_;
  ops::RopeTable rope_;
  std::unique_ptr<ops::Buffer> dynamic_;    // [rows, 2 sides · 2 taps · groups] fp32
  std::unique_ptr<ops::Buffer> projected_;  // [rows, rank] fp32, grown on demand
  std::function<void(const float*, std::int64_t)> on_hidden_, on_context_;
};

}  // namespace tensorfold
