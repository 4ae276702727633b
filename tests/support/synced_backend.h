// A backend that returns from every operation only when it is done, for tests that read results in place: tests of
// operations were written for host memory.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "ops/backend.h"

namespace tensorfold::test {

class SyncedBackend : public ops::Backend {
 public:
  explicit SyncedBackend(std::unique_ptr<ops::Backend> backend) : backend_(std::move(backend)) {}

  const ops::BackendInfo& info() const override { return backend_->info(); }
  std::unique_ptr<ops::Buffer> allocate(std::size_t bytes, const char* purpose) override {
    return backend_->allocate(bytes, purpose);
  }
  std::unique_ptr<ops::Buffer> allocate_host(std::size_t bytes, const char* purpose) override {
    return backend_->allocate_host(bytes, purpose);
  }
  MemoryAvailable memory_available() const override { return backend_->memory_available(); }
  void copy_to_backend(void* destination, const void* source, std::size_t bytes) override {
    backend_->copy_to_backend(destination, source, bytes);
    backend_->synchronise();
  }
  void copy_to_host(void* destination, const void* source, std::size_t bytes) override {
    backend_->copy_to_host(destination, source, bytes);
  }
  void zero(void* destination, std::size_t bytes) override {
    backend_->zero(destination, bytes);
    backend_->synchronise();
  }
  void synchronise() override { backend_->synchronise(); }
  std::int64_t row_bucket(std::int64_t rows) const override { return backend_->row_bucket(rows); }

  std::unique_ptr<ops::Linear> load_linear(const ops::LinearSource& source) override {
    auto linear = backend_->load_linear(source);
    backend_->synchronise();
    return linear;
  }
  void linear(const ops::LinearParams& params) override { backend_->linear(params), finish(); }
  void embed(const ops::EmbedParams& params) override { backend_->embed(params), finish(); }
  bool gated_linear(const ops::GatedLinearParams& params) override {
    const bool ran = backend_->gated_linear(params);
    finish();
    return ran;
  }
  bool norms_inputs(const ops::Linear& weight, const ops::RmsNormParams& norm) override {
    return backend_->norms_inputs(weight, norm);
  }
  void rms_norm(const ops::RmsNormParams& params) override { backend_->rms_norm(params), finish(); }
  void rms_norm_add(const ops::RmsNormAddParams& params) override { backend_->rms_norm_add(params), finish(); }
  std::size_t kv_page_bytes(const ops::KvGeometry& geometry) const override { return backend_->kv_page_bytes(geometry); }
  std::size_t kv_tree_bytes(const ops::KvGeometry& geometry) const override { return backend_->kv_tree_bytes(geometry); }
  void attention_prepare(const ops::AttentionPrepareParams& params) override {
    backend_->attention_prepare(params), finish();
  }
  void attention(const ops::AttentionParams& params) override { backend_->attention(params), finish(); }
  void attention_replay(const ops::AttentionReplayParams& params) override {
    backend_->attention_replay(params), finish();
  }
  void gated_activation(const ops::GatedActivationParams& params) override {
    backend_->gated_activation(params), finish();
  }
  void soft_cap(const ops::SoftCapParams& params) override { backend_->soft_cap(params), finish(); }
  void round_rows(const ops::RoundRowsParams& params) override { backend_->round_rows(params), finish(); }
  void block_convolution(const ops::BlockConvolutionParams& params) override {
    backend_->block_convolution(params), finish();
  }
  std::size_t gated_delta_state_bytes(const ops::GatedDeltaGeometry& geometry) const override {
    return backend_->gated_delta_state_bytes(geometry);
  }
  std::size_t gated_delta_window_row_bytes(const ops::GatedDeltaGeometry& geometry) const override {
    return backend_->gated_delta_window_row_bytes(geometry);
  }
  void gated_delta(const ops::GatedDeltaParams& params) override { backend_->gated_delta(params), finish(); }
  void moe(const ops::MoeParams& params) override { backend_->moe(params), finish(); }
  bool moe_runs_shared(const ops::MoeParams& params) override { return backend_->moe_runs_shared(params); }
  bool can_draw(const SamplingRule& rule) const override { return backend_->can_draw(rule); }
  void draw(const ops::DrawParams& params) override { backend_->draw(params), finish(); }

 private:
  void finish() { backend_->synchronise(); }

  std::unique_ptr<ops::Backend> backend_;
};

}  // namespace tensorfold::test
