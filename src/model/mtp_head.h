// The multi-token-prediction head of a checkpoint on any backend (families-a.md 1.5). It borrows the model's embedding,
// output head and layer code, and owns only its weights' use, its keys and the states that a chain of drafts hands on.
// Everything runs in batches over all lanes; a row's bits don't depend on the batch.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "model/draft_head.h"
#include "model/draft_output.h"
#include "model/kept_rows.h"
#include "model/layer_runner.h"

namespace tensorfold {

class MtpHeadRunner final : public MtpHead {
 public:
  /// All references outlive this. `hidden` holds fp32 final-normed rows of the last pass; `cache` is the head's
  /// layer's.
  MtpHeadRunner(const ModelDescription& model, const ModelWeights& weights, ops::Backend& backend, LayerRunner& runner,
                const KeptRows& hidden, const LayerCache& cache, std::int64_t rows_max);

  std::int32_t depth_max() const override { return head_.depth_max; }
  void absorb(const std::vector<AbsorbLane>& lanes, DraftLogits& result) override;
  void step(const std::vector<Step>& steps, DraftLogits& result) override;
  /// Makes room for results of `lanes` lanes at a time.
  void reserve(std::int64_t lanes);

 private:
  /// Pairs in the order in which they run: those whose result is wanted come first, each with a span of its own.
  struct Batch {
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t> sources;  // row of the state that each pair joins
    LayerRows rows;                     // spans of the head's group alone
    std::vector<std::int32_t> entries;  // of the wanted pairs
    void add(std::int32_t token, std::int32_t source, std::int32_t position);
    std::vector<ops::LaneSpan>& spans() { return rows.spans.back(); }
  };

  ops::LaneSpan span(std::int32_t slot, const std::vector<PageTable>& pages, std::int32_t first_row,
                     std::int32_t row_count, std::int32_t position) const;
  void check(const Batch& batch) const;
  /// Runs the batch over states [.., hidden] and leaves the wanted pairs' own states in states_[target].
  void run(Batch& batch, const float* states, std::size_t target, const char* name, DraftLogits& result);
  void run_operations(Batch& batch, const float* states, const LayerRows& wanted, std::size_t target);
  void reserve_states(std::size_t target, std::int64_t rows);

  const ModelDescription& model_;
  const ModelWeights& weights_;
  const MtpDescription& head_;
  ops::Backend& backend_;
  LayerRunner& runner_;
  const KeptRows& hidden_;
  const LayerCache& cache_;
  std::int64_t rows_max_;
  DraftOutput output_;
  std::array<std::unique_ptr<ops::Buffer>, 2> states_;  // fp32 [rows, hidden]: what a next level continues
  std::size_t current_ = 0;                             // the one that the last result wrote
  std::int64_t state_rows_ = 0;                         // rows in it
};

}  // namespace tensorfold
