// A backend that can leave out all operations of a pass but those of one kind, or these alone: the pass then takes what that kind
// takes for all layers, or that much less, on the model's own weights, in the way the backend really runs them (captured, queued, on
// its threads).
// Timing each call instead would measure a GPU's launches. What a pass computes that way is nonsense and is thrown away.
//
// A new operation of ops/backend.h is added here too (tools/check_forwarders.py): one that has a default there would
// silently not be forwarded.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/backend.h"

namespace tensorfold::measure {

/// The calls of one kind in one pass. Bytes are those that have to be moved at least: weights, states, keys, and the
/// operation's own inputs and outputs.
struct OperationCalls {
  std::int64_t calls = 0;
  double bytes = 0.0;
};

class SelectiveBackend final : public ops::Backend {
 public:
  explicit SelectiveBackend(std::unique_ptr<ops::Backend> inner);
  ~SelectiveBackend() override;

  enum class Mode {
    kAll,     // everything, as if this weren't here
    kRecord,  // everything, and the calls are counted
    kOne,     // the operations named by select() alone
    kAllBut,  // everything but those named by leave_out()
    kNone,    // nothing: what remains is a pass's own cost
  };
  void set_mode(Mode mode) { mode_ = mode; }
  void select(const std::string& operation);
  void leave_out(const std::string& operation);
  /// Of the passes since the last call, by name.
  std::map<std::string, OperationCalls> take_calls();

  const ops::BackendInfo& info() const override { return inner_->info(); }
  std::unique_ptr<ops::Buffer> allocate(std::size_t bytes, const char* purpose) override;
  std::unique_ptr<ops::Buffer> allocate_host(std::size_t bytes, const char* purpose) override {
    return inner_->allocate_host(bytes, purpose);
  }
  MemoryAvailable memory_available() const override { return inner_->memory_available(); }
  void reserve_growth() override { inner_->reserve_growth(); }
  void reserve_passes(const ops::PassBounds& bounds) override { inner_->reserve_passes(bounds); }
  void copy_to_backend(void* destination, const void* source, std::size_t bytes) override;
  void copy_to_host(void* destination, const void* source, std::size_t bytes) override;
  void queue_copy_to_host(void* destination, const void* source, std::size_t bytes) override {
    inner_->queue_copy_to_host(destination, source, bytes);
  }
  void zero(void* destination, std::size_t bytes) override { inner_->zero(destination, bytes); }
  void synchronise() override { inner_->synchronise(); }
  /// A pass that leaves draws out has none that could fall.
  void await_draws(const std::int32_t* draws, std::int64_t count) override {
    runs("draw") ? inner_->await_draws(draws, count) : inner_->synchronise();
  }
  std::int64_t row_bucket(std::int64_t rows) const override { return inner_->row_bucket(rows); }
  bool begin_pass(const ops::PassInputs& inputs) override;
  void end_pass() override;
  void abandon_pass() override;
  std::vector<ops::PassTime> take_pass_times() override { return inner_->take_pass_times(); }
  std::unique_ptr<ops::Linear> load_linear(const ops::LinearSource& source) override;
  void linear(const ops::LinearParams& params) override;
  void embed(const ops::EmbedParams& params) override;
  bool gated_linear(const ops::GatedLinearParams& params) override;
  bool norms_inputs(const ops::Linear& weight, const ops::RmsNormParams& norm) override {
    return inner_->norms_inputs(weight, norm);
  }
  void rms_norm(const ops::RmsNormParams& params) override;
  void rms_norm_add(const ops::RmsNormAddParams& params) override;
  std::size_t kv_page_bytes(const ops::KvGeometry& geometry) const override { return inner_->kv_page_bytes(geometry); }
  std::size_t kv_tree_bytes(const ops::KvGeometry& geometry) const override { return inner_->kv_tree_bytes(geometry); }
  void attention_prepare(const ops::AttentionPrepareParams& params) override;
  void attention(const ops::AttentionParams& params) override;
  void attention_replay(const ops::AttentionReplayParams& params) override;
  void gated_activation(const ops::GatedActivationParams& params) override;
  void soft_cap(const ops::SoftCapParams& params) override;
  void round_rows(const ops::RoundRowsParams& params) override;
  void block_convolution(const ops::BlockConvolutionParams& params) override;
  std::size_t gated_delta_state_bytes(const ops::GatedDeltaGeometry& geometry) const override {
    return inner_->gated_delta_state_bytes(geometry);
  }
  std::size_t gated_delta_window_row_bytes(const ops::GatedDeltaGeometry& geometry) const override {
    return inner_->gated_delta_window_row_bytes(geometry);
  }
  std::size_t gated_delta_work_row_bytes(const ops::GatedDeltaGeometry& geometry) const override {
    return inner_->gated_delta_work_row_bytes(geometry);
  }
  void gated_delta(const ops::GatedDeltaParams& params) override;
  void moe(const ops::MoeParams& params) override;
  bool moe_runs_shared(const ops::MoeParams& params) override { return inner_->moe_runs_shared(params); }
  bool can_draw(const SamplingRule& rule) const override { return inner_->can_draw(rule); }
  void draw(const ops::DrawParams& params) override;

 private:
  /// Whether a call of `operation` runs now.
  bool runs(const std::string& operation) const {
    return mode_ == Mode::kAll || mode_ == Mode::kRecord || (mode_ == Mode::kOne && operation == selected_) ||
           (mode_ == Mode::kAllBut && operation != selected_);
  }
  /// Counts a call that is being recorded; `bytes` is evaluated only then.
  template <typename Bytes>
  void count(const std::string& operation, const Bytes& bytes);
  std::string label(const ops::Linear& weight) const;
  double activation_bytes() const { return inner_->info().activation_bytes; }

  std::unique_ptr<ops::Backend> inner_;
  Mode mode_ = Mode::kAll;
  std::string selected_;
  std::map<const ops::Linear*, std::string> labels_;
  std::map<std::string, OperationCalls> calls_;
  /// Layers and row counts for which gated_linear() is there: a pass that leaves it out leaves out no more than that.
  std::set<std::pair<const ops::Linear*, std::int64_t>> gated_;
  std::unique_ptr<ops::PassInputs> inputs_;  // of the running pass, when its name had to be another
};

}  // namespace tensorfold::measure
