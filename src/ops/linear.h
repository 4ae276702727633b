// Linear layers and embedding lookup.
//
// Arithmetic (one-arithmetic.md rules 1-3): a weight reaches the product as to_bf16(decode_row(...)); the input is bf16.
// CPU order ("AMX order"), K zero-padded to a multiple of 32, one segment:
//     for each block of 32 k:  e = o = 0;  for i in 0..15: e = fma(w[2i], x[2i], e); o = fma(w[2i+1], x[2i+1], o)
//                              acc = acc + (e + o)
// with denormals flushed on input and output. Then, in this order: y = acc (+ bias, fp32) ; with accumulate, y += that.
// The reference backend uses fp64 sums and, with rounding none, unrounded weights (fp32) and inputs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/weight_format.h"
#include "ops/elementwise.h"
#include "ops/types.h"

namespace tensorfold::ops {

struct RmsNormParams;

/// A linear layer in the backend's own packed layout. Packed weights take at most 1.05 times the file's bytes, whatever
/// the format; blocks that the format shares (scales, mins) stay shared.
class Linear {
 public:
  virtual ~Linear() = default;
  virtual std::int64_t rows() const = 0;     // N outputs (of one expert)
  virtual std::int64_t columns() const = 0;  // K inputs
  virtual std::int64_t experts() const = 0;  // 1 unless an expert stack
  virtual std::size_t packed_bytes() const = 0;
};

/// What to load. Parts are stacked by output rows in order (q|k|v or gate|up of one layer, each in its own format); for an
/// expert stack every part has the same number of experts and the stacking is per expert.
struct LinearSource {
  std::string name;
  std::vector<WeightView> parts;
  /// Optional, per part: logical output row i of the part is stored row row_orders[part][i] (GGUF llama q and k). Empty =
  /// as stored.
  std::vector<std::vector<std::int32_t>> row_orders;
  /// Optional fp32 bias over all stacked rows; empty = none. Not for expert stacks.
  std::vector<float> bias;
  /// How the CUDA backend adds K-segments (one-arithmetic.md rule 1): true for layers whose K may be split over ranks.
  bool segment_tree = false;
  /// Rows are gate|up: outputs that are only read in pairs (backends may store them side by side).
  bool paired_halves = false;
  /// This matrix is (also) an embedding table: rows are looked up by id with embed().
  bool embedding = false;
};

struct LinearParams {
  const Linear* weight = nullptr;   // experts() == 1
  const Activation* x = nullptr;    // [rows, K], row stride K elements
  std::int64_t rows = 0;            // 0 is allowed and does nothing
  float* y = nullptr;               // [rows, N], row stride y_stride floats
  std::int64_t y_stride = 0;        // >= N
  bool accumulate = false;          // y += instead of y =
  const std::int32_t* row_index = nullptr;  // optional host array: row r of the call reads x row row_index[r]
  /// Optional, where Backend::norms_inputs() allows it: x, which is norm->out, isn't there yet; the layer computes what it
  /// reads of it. Whole in memory it is afterwards with keeps_norm alone. Without row_index.
  const RmsNormParams* norm = nullptr;
  bool keeps_norm = false;
};

/// out = to_bf16(act(gate) · up) straight from a layer of paired halves: linear() and gated_activation() (elementwise.h) in
/// one, with their bits.
struct GatedLinearParams {
  const Linear* weight = nullptr;  // rows = 2 · width: gate, then up; LinearSource::paired_halves
  const Activation* x = nullptr;   // [rows, K]
  std::int64_t rows = 0;
  ActivationKind kind = ActivationKind::kSilu;
  Activation* out = nullptr;       // [rows, width]
  const RmsNormParams* norm = nullptr;  // as in LinearParams; not kept
};

/// out[r] = to_bf16(decoded table row tokens[r]) · scale, fp32 (rounding none: without to_bf16). For the CPU and CUDA
/// backends the table row is rounded to bf16 first, as in the product with a tied head.
struct EmbedParams {
  const Linear* table = nullptr;
  const std::int32_t* tokens = nullptr;  // host array, `rows` ids, each in [0, N) (the executor checks)
  std::int64_t rows = 0;
  float scale = 1.0f;
  float* out = nullptr;  // [rows, K] fp32
};

}  // namespace tensorfold::ops
