// The one executor: walks any description on any backend. It makes the plan's lanes into spans and passes them down the
// layers, and knows nothing of scheduling or text. What a layer computes is model/layer_runner's, the memory of streams
// is model/layer_caches'. One thread drives it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "model/block_drafter.h"
#include "model/description.h"
#include "model/kept_rows.h"
#include "model/lane_windows.h"
#include "model/language_model.h"
#include "model/layer_caches.h"
#include "model/layer_runner.h"
#include "model/logits_head.h"
#include "model/mtp_head.h"
#include "model/plan_check.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace tensorfold {

/// Test hooks: see inside a pass. Pointers are host memory, valid during the call.
struct ExecutorObserver {
  std::function<void(std::int32_t layer, const float* residual, std::int64_t rows)> on_layer;
  std::function<void(std::int32_t layer, const std::int32_t* experts, std::int64_t rows, std::int32_t top_k)>
      on_experts;
};

class Executor final : public LanguageModel {
 public:
  Executor(ModelDescription description, ModelWeights weights, std::unique_ptr<ops::Backend> backend,
           std::unique_ptr<LoadedDrafter> drafter = nullptr);
  ~Executor() override;

  const ModelFacts& facts() const override { return facts_; }
  MemoryAvailable memory_available() const override { return backend_->memory_available(); }
  void warm_up(std::int32_t pass_rows) override;
  void allocate_caches(const std::vector<std::int32_t>& page_counts, std::int32_t slot_count,
                       std::int32_t window_rows) override;
  void zero_page(std::int32_t group, std::int32_t page) override { layer_caches_.zero_page(group, page); }
  void zero_slot(std::int32_t slot) override;
  void copy_page(std::int32_t group, std::int32_t from, std::int32_t to) override {
    layer_caches_.copy_page(group, from, to);
  }
  void copy_slot(std::int32_t from, std::int32_t to) override;
  void settle(const PlanLane& lane) override;
  void read_page(std::int32_t group, std::int32_t page, std::byte* out) override {
    layer_caches_.read_page(group, page, out);
  }
  void write_page(std::int32_t group, std::int32_t page, const std::byte* bytes) override {
    layer_caches_.write_page(group, page, bytes);
  }
  std::size_t slot_state_bytes() const override { return layer_caches_.slot_state_bytes(); }
  void read_slot(std::int32_t slot, std::byte* out) override { layer_caches_.read_slot(slot, out); }
  void write_slot(std::int32_t slot, const std::byte* bytes) override;
  std::shared_ptr<std::byte[]> allocate_snapshot() override;
  void finish_copies() override { backend_->synchronise(); }
  std::vector<ops::PassTime> take_pass_times() override { return backend_->take_pass_times(); }
  void reserve_passes(std::int32_t pass_rows, std::int32_t lanes, std::int32_t logits_rows) override;
  void forward(const RoundPlan& plan, ForwardResult& result) override;
  void forward_beside(const RoundPlan& plan, ForwardResult& result, const std::function<void()>& host_work) override;
  const float* logits_row(const ForwardResult& result, std::size_t index) override;
  MtpHead* mtp_head() override { return mtp_head_.get(); }
  BlockDrafter* block_drafter() override { return drafter_.get(); }

  const ModelDescription& description() const { return description_; }
  void set_observer(ExecutorObserver observer) { observer_ = std::move(observer); }
  /// Test hooks (rule 13): fill a page or slot with NaN bytes, as stale memory might hold.
  void poison_page(std::int32_t group, std::int32_t page) override { layer_caches_.poison_page(group, page); }
  void poison_slot(std::int32_t slot) override { layer_caches_.poison_slot(slot); }
  void poison_workspace();

 private:
  struct Pass;

  /// widest_plan()'s pass, and drafters' passes over its rows.
  void run_widest_pass(std::int32_t lanes, std::int32_t rows);
  void warm_mtp_head(const std::vector<AbsorbLane>& absorbed);
  void warm_drafter(const std::vector<AbsorbLane>& absorbed);
  void add_mtp_cache();
  void add_drafter_caches(DrafterDescription& drafter);
  void build_rope_tables(std::int32_t positions);
  static ops::LaneSpan span_of(const PlanLane& lane, const PageTable& pages);
  /// Moves what trees have left in slots into the pages; spans are [cache group][lane].
  void replay_trees(const std::vector<std::vector<ops::LaneSpan>>& spans);
  Pass prepare(const RoundPlan& plan);
  void add_draw(const PlanRow& row, Pass& pass) const;
  /// Rounds the pass up to the backend's row bucket and names it, so that the backend may replay it.
  void pad(Pass& pass) const;
  ops::PassInputs inputs_of(const Pass& pass) const;
  /// Makes room before the pass: within it nothing may be allocated.
  void reserve_outputs(const Pass& pass);
  void reserve_draws(std::size_t rows);
  void run_operations(const Pass& pass);
  void keep_taps(std::int32_t layer, const Pass& pass);
  void read_results(Pass& pass, ForwardResult& result);

  ModelDescription description_;
  ModelWeights weights_;
  std::unique_ptr<ops::Backend> backend_;
  ModelFacts facts_;
  ExecutorObserver observer_;
  LayerCaches layer_caches_;  // the model's layers, then those of drafters
  LaneWindows windows_;
  PlanBounds bounds_;
  std::vector<std::unique_ptr<ops::Buffer>> rope_tables_;
  std::unique_ptr<LayerRunner> runner_;
  std::unique_ptr<LogitsHead> logits_;
  KeptRows hidden_;                          // fp32 [rows, hidden], final-normed
  std::unique_ptr<MtpHeadRunner> mtp_head_;  // null without a head
  KeptRows taps_;  // activations [rows, taps · hidden], residual stream after the drafter's layers
  std::unique_ptr<DflashDrafter> drafter_;  // null without a drafter
  std::vector<float> host_hidden_;
  std::int32_t warm_rows_ = 0;  // of the largest warm_up()
  std::unique_ptr<ops::Buffer> drawn_;  // int32, a token a logits row; on the host, so that no copy follows the pass
};

}  // namespace tensorfold
