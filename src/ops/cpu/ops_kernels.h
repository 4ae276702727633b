// The table of row, attention and recurrence kernels that each instruction set provides. It is plain data over plain
// types: the kernel units (ops_kernels_<path>.cpp) are compiled with flags of their own and may share no inline code
// with the rest of the program, so this header must not include the standard library's templates.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorfold::ops::cpu {

/// Floats before the output in an attention record: 16 lanes of the row sum, the running maximum, the folded sum.
constexpr std::int64_t kRecordSums = 0;
constexpr std::int64_t kRecordMaximum = 16;
constexpr std::int64_t kRecordSum = 17;
constexpr std::int64_t kRecordOutput = 32;
constexpr std::int64_t kTileKeys = 64;
constexpr std::int64_t kTilePairs = kTileKeys / 2;

constexpr std::int64_t round_up_16(std::int64_t n) {
  return (n + 15) / 16 * 16;
}
constexpr std::int64_t record_floats(std::int64_t head_dim) {
  return kRecordOutput + round_up_16(head_dim);
}

/// One head's q or k (RoPE and optional norm) or v, rounded to bf16.
struct HeadPrepare {
  const float* x = nullptr;
  const float* norm_weight = nullptr;  // null: no norm
  float epsilon = 0.0f;
  std::int64_t head_dim = 0;
  const float* cosines = nullptr;  // [rotary / 2]
  const float* sines = nullptr;
  std::int64_t rotary_half = 0;  // 0: no rotation
  float* scratch = nullptr;      // [round_up_16(head_dim)]
  std::uint16_t* out = nullptr;  // [head_dim]
};

/// One tile of 64 keys of one kv head against a block of query rows.
struct AttentionTile {
  const std::uint32_t* keys = nullptr;    // [4][head_dim / 2][16] pairs along head_dim
  const std::uint32_t* values = nullptr;  // [32][round_up_16(head_dim)] pairs along keys
  std::int64_t head_dim = 0;
  const float* q = nullptr;  // [rows] of pack_queries
  std::int64_t rows = 0;
  const std::int32_t* first = nullptr;  // [rows] first and last visible key of the tile, 0 <= first <= last <= 63
  const std::int32_t* last = nullptr;
  float scale_log2 = 0.0f;
  float* scores = nullptr;         // [rows, 64] scratch
  std::uint32_t* masks = nullptr;  // [rows, 32] scratch
  float* records = nullptr;        // [rows, record_floats]
};

/// Sixteen columns of one value head's state over consecutive rows of one lane.
struct DeltaChunk {
  float* state = nullptr;  // [k_dim, 16]
  std::int64_t k_dim = 0;
  std::int64_t width = 0;  // columns in use, 1 to 16
  std::int64_t rows = 0;
  std::int64_t row_stride = 0;
  const float* q = nullptr;  // row 0; row r at + r · row_stride
  const float* k = nullptr;
  float* v = nullptr;  // read, then overwritten with the row's output when `outputs`
  const float* beta = nullptr;
  const float* growth = nullptr;  // exp(g)
  bool outputs = true;
};

struct DeltaOutput {
  const float* o = nullptr;
  const float* z = nullptr;
  const float* norm_weight = nullptr;
  std::int64_t v_dim = 0;
  float epsilon = 0.0f;
  bool sigmoid_gate = false;
  std::uint16_t* out = nullptr;
};

/// One row of a dynamic grouped convolution.
struct BlockConvolveRow {
  const float* y = nullptr;         // [width]
  const float* previous = nullptr;  // the row before it in its block, or null
  const float* base[2] = {};        // [width] of tap 0 and tap 1
  const float* dynamic[2] = {};     // [width / group_size] of tap 0 and tap 1
  std::int64_t width = 0;
  std::int64_t group_size = 0;
  float* residual = nullptr;     // added into, or
  std::uint16_t* out = nullptr;  // rounded to bf16
};

enum class Transcendental : std::uint8_t { kExp, kExp2, kTanh, kSigmoid, kSoftplus };

struct OpsKernels {
  // norm.h
  void (*rms_norm_row)(const float* x, const float* weight, float epsilon, std::int64_t width, std::uint16_t* out);
  void (*rms_norm_row_float)(const float* x, const float* weight, float epsilon, std::int64_t width, float* out);
  void (*rms_norm_add_row)(const float* x, const float* weight, float epsilon, std::int64_t width, float* residual);
  // elementwise.h
  void (*gated_silu)(const float* gate, const float* up, std::int64_t count, std::uint16_t* out);
  void (*gated_gelu)(const float* gate, const float* up, std::int64_t count, std::uint16_t* out);
  void (*soft_cap)(float* values, std::int64_t count, float cap);
  // block_convolution.h
  void (*block_convolve)(const BlockConvolveRow& row);
  // attention.h
  void (*prepare_head)(const HeadPrepare& head);
  /// Queries of some heads in the form that attention_tile reads: round_up_16(head_dim) floats a head.
  void (*pack_queries)(const std::uint16_t* q, std::int64_t heads, std::int64_t head_dim, float* out);
  void (*attention_open)(float* record, std::int64_t head_dim);
  void (*attention_tile)(const AttentionTile& tile);
  void (*attention_close)(float* record);
  void (*attention_merge)(float* into, const float* next, std::int64_t head_dim);
  void (*attention_finish)(const float* record, std::int64_t head_dim, const float* gate, std::uint16_t* out);
  // gated_delta.h
  void (*delta_convolve)(const float* const* rows, std::int64_t step, std::int64_t count, std::int64_t first_channel,
                         std::int64_t channels, const float* weight, std::int64_t taps, float* out,
                         std::int64_t out_stride);
  void (*delta_normalise)(float* head, std::int64_t k_dim, bool is_query);
  void (*delta_gates)(const float* b, const float* a, const float* decay, const float* dt_bias, std::int64_t heads,
                      float* beta, float* growth);
  void (*delta_chunk)(const DeltaChunk& chunk);
  void (*delta_output)(const DeltaOutput& output);
  // moe.h
  void (*softmax)(const float* logits, std::int64_t count, float* probabilities);
  void (*add_scaled)(float* residual, const float* x, float scale, std::int64_t count);
  float (*sigmoid)(float x);
  // For tests: the parts that must agree on every path.
  void (*transcendental)(Transcendental which, const float* x, std::int64_t count, float* out);
  void (*round_bf16)(const float* x, std::int64_t count, std::uint16_t* out);
};

#if defined(__x86_64__)
namespace avx2 {
extern const OpsKernels kOpsKernels;
}
namespace avx512 {
extern const OpsKernels kOpsKernels;
}
namespace avx512_bf16 {
extern const OpsKernels kOpsKernels;
}
#elif defined(__aarch64__)
namespace neon {
extern const OpsKernels kOpsKernels;
}
#endif

}  // namespace tensorfold::ops::cpu
