// A backend that takes weights by their shapes alone and computes nothing: enough to load a model of any size, and so to
// have every name, shape and format of its checkpoint checked.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "ops/backend.h"

namespace tensorfold::test {

class ShapeBackend final : public ops::Backend {
 public:
  std::int64_t parameters = 0;  // of all matrices, in the order of loading no matter

  const ops::BackendInfo& info() const override { return info_; }
  std::unique_ptr<ops::Buffer> allocate(std::size_t bytes, const char*) override {
    return std::make_unique<Bytes>(bytes);
  }
  void copy_to_backend(void* destination, const void* source, std::size_t bytes) override {
    std::memcpy(destination, source, bytes);
  }
  void copy_to_host(void* destination, const void* source, std::size_t bytes) override {
    std::memcpy(destination, source, bytes);
  }
  void zero(void* destination, std::size_t bytes) override { std::memset(destination, 0, bytes); }
  void synchronise() override {}
  std::unique_ptr<ops::Linear> load_linear(const ops::LinearSource& source) override {
    auto linear = std::make_unique<Shape>();
    for (const WeightView& part : source.parts) linear->rows_ += part.rows;
    linear->columns_ = source.parts[0].columns;
    linear->experts_ = source.parts[0].experts;
    parameters += linear->rows_ * linear->columns_ * linear->experts_;
    return linear;
  }
  std::size_t kv_page_bytes(const ops::KvGeometry&) const override { return 64; }
  std::size_t kv_tree_bytes(const ops::KvGeometry&) const override { return 64; }
  std::size_t gated_delta_state_bytes(const ops::GatedDeltaGeometry&) const override { return 64; }
  std::size_t gated_delta_window_row_bytes(const ops::GatedDeltaGeometry&) const override { return 64; }

  void linear(const ops::LinearParams&) override { TF_ASSERT(false); }
  void embed(const ops::EmbedParams&) override { TF_ASSERT(false); }
  void rms_norm(const ops::RmsNormParams&) override { TF_ASSERT(false); }
  void rms_norm_add(const ops::RmsNormAddParams&) override { TF_ASSERT(false); }
  void attention_prepare(const ops::AttentionPrepareParams&) override { TF_ASSERT(false); }
  void attention(const ops::AttentionParams&) override { TF_ASSERT(false); }
  void attention_replay(const ops::AttentionReplayParams&) override { TF_ASSERT(false); }
  void gated_activation(const ops::GatedActivationParams&) override { TF_ASSERT(false); }
  void soft_cap(const ops::SoftCapParams&) override { TF_ASSERT(false); }
  void round_rows(const ops::RoundRowsParams&) override { TF_ASSERT(false); }
  void block_convolution(const ops::BlockConvolutionParams&) override { TF_ASSERT(false); }
  void gated_delta(const ops::GatedDeltaParams&) override { TF_ASSERT(false); }
  void moe(const ops::MoeParams&) override { TF_ASSERT(false); }

 private:
  struct Bytes final : ops::Buffer {
    explicit Bytes(std::size_t bytes) : memory(bytes) {}
    void* data() override { return memory.data(); }
    std::size_t bytes() const override { return memory.size(); }
    std::vector<std::byte> memory;
  };
  struct Shape final : ops::Linear {
    std::int64_t rows() const override { return rows_; }
    std::int64_t columns() const override { return columns_; }
    std::int64_t experts() const override { return experts_; }
    std::size_t packed_bytes() const override { return 0; }
    std::int64_t rows_ = 0, columns_ = 0, experts_ = 1;
  };
  ops::BackendInfo info_{.name = "shapes", .path = "none", .activation_bytes = 2};
};

}  // namespace tensorfold::test
