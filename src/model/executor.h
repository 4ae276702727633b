// The one executor: walks any description on any backend. It owns the KV pools and the state slots, checks each plan, and
// knows nothing of scheduling or text; what a layer computes is model/layer_runner's. One thread drives it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "model/description.h"
#include "model/language_model.h"
#include "model/layer_runner.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace tensorfold {

/// Test hooks: see inside a pass. Pointers are host memory, valid during the call.
struct ExecutorObserver {
  std::function<void(std::int32_t layer, const float* residual, std::int64_t rows)> on_layer;
  std::function<void(std::int32_t layer, const std::int32_t* experts, std::int64_t rows, std::int32_t top_k)> on_experts;
};

class Executor final : public LanguageModel {
 public:
  Executor(ModelDescription description, ModelWeights weights, std::unique_ptr<ops::Backend> backend);
  ~Executor() override;

  const ModelFacts& facts() const override { return facts_; }
  void allocate_caches(const std::vector<std::int32_t>& page_counts, std::int32_t slot_count,
                       std::int32_t window_rows) override;
  void zero_page(std::int32_t group, std::int32_t page) override;
  void zero_slot(std::int32_t slot) override;
  void copy_page(std::int32_t group, std::int32_t from, std::int32_t to) override;
  void copy_slot(std::int32_t from, std::int32_t to) override;
  void settle(const PlanLane& lane) override;
  void read_page(std::int32_t group, std::int32_t page, std::byte* out) override;
  void write_page(std::int32_t group, std::int32_t page, const std::byte* bytes) override;
  std::size_t slot_state_bytes() const override;
  void read_slot(std::int32_t slot, std::byte* out) override;
  void write_slot(std::int32_t slot, const std::byte* bytes) override;
  void forward(const RoundPlan& plan, ForwardResult& result) override;

  const ModelDescription& description() const { return description_; }
  void set_observer(ExecutorObserver observer) { observer_ = std::move(observer); }
  /// Test hook (rule 13): fills a page or slot with NaN bytes, as stale memory might hold.
  void poison_page(std::int32_t group, std::int32_t page) override;
  void poison_workspace();

 private:
  struct Pass;

  void build_rope_tables(std::int32_t positions);
  void check_plan(const RoundPlan& plan) const;
  Pass prepare(const RoundPlan& plan);
  void run_head(const Pass& pass, ForwardResult& result);
  void return_hidden(const Pass& pass, ForwardResult& result);
  void for_each_unit(std::int32_t group, std::int32_t unit, const std::function<void(std::byte*, std::size_t)>& visit);

  float* floats(const std::unique_ptr<ops::Buffer>& buffer) { return static_cast<float*>(buffer->data()); }

  ModelDescription description_;
  ModelWeights weights_;
  std::unique_ptr<ops::Backend> backend_;
  ModelFacts facts_;
  ExecutorObserver observer_;
  std::vector<LayerCache> layer_caches_;  // one per layer
  std::vector<std::unique_ptr<ops::Buffer>> rope_tables_;
  std::int32_t rope_positions_ = 0;
  std::int32_t slot_count_ = 0;
  std::vector<std::int32_t> page_counts_;

  std::unique_ptr<LayerRunner> runner_;
  std::unique_ptr<ops::Buffer> logits_;        // [logit rows, vocabulary], grown on demand
  std::vector<float> host_logits_;             // only when the backend's memory is not the host's
  std::vector<float> host_hidden_;
};

}  // namespace tensorfold
