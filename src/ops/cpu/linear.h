// Linear layers, expert stacks and embedding tables of the CPU backend: packing at load, and the products. Every path,
// thread count and batch gives the same bits (ops/linear.h states the order of operations).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "base/host_pages.h"
#include "base/thread_pool.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/linear_layout.h"
#include "ops/linear.h"

namespace tensorfold::ops::cpu {

/// One of the stacked parts: its own format and panels. Expert e's panels follow expert e-1's.
struct PackedPart {
  PanelLayout layout;
  std::int64_t first_row = 0;  // among the stacked rows
  std::int64_t rows = 0;
  std::int64_t panels = 0;  // of one expert
  bool decode_in_default_mode = false;
  HostPages storage;
  std::uint8_t* data() const { return reinterpret_cast<std::uint8_t*>(storage.data()); }
};

class CpuLinear : public Linear {
 public:
  std::int64_t rows() const override { return rows_; }
  std::int64_t columns() const override { return columns_; }
  std::int64_t experts() const override { return experts_; }
  std::size_t packed_bytes() const override;

  CpuPath path() const { return path_; }
  const std::vector<PackedPart>& parts() const { return parts_; }
  const std::vector<float>& bias() const { return bias_; }

 private:
  friend std::unique_ptr<CpuLinear> pack_linear(const LinearSource& source, CpuPath path, ThreadPool& pool);

  CpuPath path_ = CpuPath::kAvx2;
  std::int64_t rows_ = 0;
  std::int64_t columns_ = 0;
  std::int64_t experts_ = 1;
  std::vector<PackedPart> parts_;
  std::vector<float> bias_;
};

/// Copies the source into packed form; the mapped pages may be dropped afterwards. Throws Error(kInvalidCheckpoint)
/// when the parts don't fit together or a view's bytes don't match its shape.
std::unique_ptr<CpuLinear> pack_linear(const LinearSource& source, CpuPath path, ThreadPool& pool);

/// params.weight is a CpuLinear, params.x is bf16.
void linear(ThreadPool& pool, const LinearParams& params);

/// One expert of a stack applied to some rows of x: row r of the job reads x row row_index[r] (or r when null) and
/// writes y + r·y_stride.
struct ExpertJob {
  std::int32_t expert = 0;
  const std::int32_t* row_index = nullptr;
  std::int64_t rows = 0;
  float* y = nullptr;
};

/// All jobs in one parallel loop. x row stride is columns().
void linear_experts(ThreadPool& pool, const CpuLinear& weight, const Bf16* x, std::span<const ExpertJob> jobs,
                    std::int64_t y_stride);
void linear_expert(ThreadPool& pool, const CpuLinear& weight, std::int32_t expert, const Bf16* x, std::int64_t rows,
                   const std::int32_t* row_index, float* y, std::int64_t y_stride);

void embed(ThreadPool& pool, const EmbedParams& params);

/// The weights of one stacked row before their rounding to bf16 (f16 and f32 checkpoints: after it), columns() values.
/// The packed form's inverse, for embedding lookups and tests.
void decode_packed_row(const CpuLinear& weight, std::int64_t expert, std::int64_t row, float* out);

}  // namespace tensorfold::ops::cpu
