// What cuda_attention's checks run on: lanes with random inputs, random page tables and pages that start as NaN.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "cuda_harness.h"
#include "ops/cuda/cuda_operations.h"

namespace tensorfold::ops::cuda::bench {

struct AttentionShape {
  std::int32_t heads, kv_heads, head_dim;
  std::int32_t window = 0;
  std::int32_t rotary_dims = 0;
  bool norms = false;
  bool gated = false;
  std::int64_t q_head_stride() const { return gated ? 2 * head_dim : head_dim; }
  std::int64_t k_offset() const { return heads * q_head_stride(); }
  std::int64_t v_offset() const { return k_offset() + kv_heads * head_dim; }
  std::int64_t row_floats() const { return v_offset() + kv_heads * head_dim; }
  std::int64_t out_elements() const { return static_cast<std::int64_t>(heads) * head_dim; }
  float scale() const;
};

/// Rows of one lane in a call. `sources` are places in the input pool, one a row; empty: those of the lane's positions.
struct Step {
  int lane = 0;
  int position = 0;
  int count = 0;
  std::vector<std::int64_t> sources = {};
  std::vector<std::int32_t> parents = {};
  std::vector<std::int32_t> replay_rows = {};
  bool mutual = false;
};

using Rows = std::vector<std::vector<std::uint16_t>>;  // one a row: bf16 bits

class World {
 public:
  World(BenchContext& context, const AttentionShape& shape, int lanes, int length);
  ~World();

  const AttentionShape& shape() const { return shape_; }
  BenchContext& context() { return context_; }
  std::int64_t source(int lane, int position) const { return lane * 400'003ll + position * 37ll; }
  std::int64_t tree_source(unsigned seed, int row) const { return 6'000'000ll + (seed % 1000) * 1009ll + row * 53ll; }
  std::int64_t nan_source() const { return kPoolFloats; }

  void fill(int lane, int begin, int end);
  /// NaN in everything of the lane's pages from `position` on, and in all trees.
  void poison(int lane, int position);
  Rows run(const std::vector<Step>& steps);
  /// The row's output computed in double from the inputs.
  std::vector<double> expected(int lane, int position) const;

 private:
  static constexpr std::int64_t kPoolFloats = 8'000'000;

  KvPool pool() const { return {pages_.data(), page_bytes_, trees_.data(), tree_bytes_}; }
  AttentionPrepareParams prepare_params(const float* qkv, std::int64_t stride, const std::vector<LaneSpan>& spans,
                                        const std::vector<std::int32_t>& positions) const;
  std::vector<double> prepared(std::int64_t source, std::int64_t offset, const std::vector<float>& norm, int position,
                               bool rotate) const;

  BenchContext& context_;
  AttentionShape shape_;
  int length_;
  std::size_t page_bytes_, tree_bytes_;
  DeviceArray<std::byte> pages_, trees_;
  DeviceArray<float> inputs_, staged_, device_norms_, device_cos_sin_;
  DeviceArray<std::uint16_t> q_, out_;
  int lanes_;
  std::vector<float> host_inputs_, q_norm_, k_norm_, cos_sin_;
  std::vector<std::vector<std::int32_t>> tables_;
};

inline float float_of(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  static_assert(sizeof(value) == sizeof(wide));
  __builtin_memcpy(&value, &wide, sizeof(value));
  return value;
}

/// cuda_attention_checks.cpp. The number of rows that differ or are wrong.
long check_attention(BenchContext& context, bool quick);
long check_attention_trees(BenchContext& context);
/// cuda_attention.cpp
void time_attention(BenchContext& context, bool quick);

}  // namespace tensorfold::ops::cuda::bench
