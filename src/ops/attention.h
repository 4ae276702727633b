// Softmax attention over a paged KV cache, and the step before it: per-head norms, RoPE and the write of keys and values.
//
// attention_prepare, per row and head: v -> bf16. q, k: optional RMS norm over the head (norm.h arithmetic over head_dim,
// without an intermediate rounding), then RoPE in fp32 (x'_i = x_i·cos − x_{i+r/2}·sin as fma(x_i, cos, −(x_{i+r/2}·sin));
// x'_{i+r/2} = fma(x_{i+r/2}, cos, x_i·sin); dims beyond `rotary_dims` pass through), then one rounding to bf16.
//
// attention (one-arithmetic.md rule 5), per row and query head, kv head = head / (heads / kv_heads): keys are cut at
// absolute positions into segments (segment_end() below) and tiles of 64. Per tile: scores s_j = (q·k_j)·scale·log2(e)
// (scale·log2(e) formed once in fp32; the dot in the CPU's 32-block order over head_dim), masked ones replaced by -inf;
// m' = max(m, tile max); P_j = exp2(s_j − m'); P to bf16; O = O · exp2(m − m'), skipped only when that factor is exactly 1;
// O += P·V by ascending keys in 32-blocks at absolute positions (AMX order over keys); the row sum l adds the unrounded P_j
// in 16 virtual lanes (lane = key mod 16, ascending over the segment), rescaled like O, lanes folded 8,4,2,1 at the
// segment's end. Segments merge in ascending order by one fold function; a segment without visible keys is skipped.
// out = O / l (fp32), multiplied by sigmoid(gate) when there is a gate, rounded once to bf16.
// The reference backend computes plain softmax in fp64.
//
// Trees (LaneSpan::parents): a row sees the committed keys and those of its path, each at its sequence index. A tile that
// holds window positions is gathered per path, so that a row's bits are those of its path as a chain. attention_prepare
// leaves a tree's keys and values in the slot; attention_replay moves the accepted ones into the pages, and runs before
// anything reads or writes the lane's pages or slot again.
#pragma once

#include <cstdint>

#include "ops/types.h"

namespace tensorfold::ops {

struct KvGeometry {
  std::int32_t kv_heads = 0;
  std::int32_t head_dim = 0;
};

/// One layer's pool of pages, and its share of the slots. A page holds keys and values of 64 consecutive positions for all
/// kv heads in the backend's own layout; page 0 is reserved for padding rows. Pages are zeroed when handed to a stream.
struct KvPool {
  void* pages = nullptr;
  std::size_t page_bytes = 0;  // Backend::kv_page_bytes
  /// Keys and values of one tree of up to kTreeRowsMax rows a slot: slot s's at trees + s · tree_bytes. Null where no lane
  /// brings a tree.
  void* trees = nullptr;
  std::size_t tree_bytes = 0;  // Backend::kv_tree_bytes
};

/// cos/sin of every position, computed in double on the host and rounded to fp32: table[(position · rotary_dims/2 + i)·2]
/// = cos, +1 = sin. Every kernel reads it (rule 9).
struct RopeTable {
  const float* cos_sin = nullptr;  // backend memory
  std::int32_t rotary_dims = 0;
  std::int32_t positions = 0;      // rows in the table
};

struct AttentionPrepareParams {
  KvGeometry geometry;
  std::int32_t heads = 0;
  /// Output of the fused projection: [rows, stride]; q of head h at q_offset + h·q_head_stride, k at k_offset + g·head_dim,
  /// v at v_offset + g·head_dim. (Gated attention interleaves query and gate per head: q_head_stride = 2·head_dim.)
  const float* qkv = nullptr;
  std::int64_t stride = 0;
  std::int64_t q_offset = 0, q_head_stride = 0, k_offset = 0, v_offset = 0;
  const float* q_norm = nullptr;  // [head_dim] or null
  const float* k_norm = nullptr;
  float epsilon = 0.0f;
  RopeTable rope;
  const std::int32_t* rope_positions = nullptr;  // host array [rows]: table row of each row
  const LaneSpan* lanes = nullptr;  // host array; spans cover the rows in order
  std::int32_t lane_count = 0;
  KvPool pool;
  Activation* q_out = nullptr;  // [rows, heads · head_dim]
};

struct AttentionParams {
  KvGeometry geometry;
  std::int32_t heads = 0;
  const Activation* q = nullptr;  // [rows, heads · head_dim]
  KvPool pool;
  const LaneSpan* lanes = nullptr;
  std::int32_t lane_count = 0;
  float scale = 1.0f;
  std::int32_t window = 0;        // sliding window W: row at position p sees keys (p − W, p]; 0 = all
  /// Optional output gate: [rows, gate_stride], gate of head h element d at gate_offset + h·gate_head_stride + d.
  const float* gate = nullptr;
  std::int64_t gate_stride = 0, gate_offset = 0, gate_head_stride = 0;
  Activation* out = nullptr;      // [rows, heads · head_dim]
};

/// Moves keys and values of the accepted rows of trees: for every lane with replay_tree, those of row replay_rows[i] of
/// slot's tree go to sequence index position − replay_count + i. Other lanes are left alone, rows are not looked at.
struct AttentionReplayParams {
  KvGeometry geometry;
  KvPool pool;
  const LaneSpan* lanes = nullptr;
  std::int32_t lane_count = 0;
};

/// End (exclusive) of the segment that holds key `position`: 128 keys below 2,048, 256 to 8,192, 512 to 32,768, 1,024
/// beyond. A constant of absolute positions, so it can't depend on a batch.
constexpr std::int64_t segment_end(std::int64_t position) {
  const std::int64_t length = position < 2048 ? 128 : position < 8192 ? 256 : position < 32768 ? 512 : 1024;
  return (position / length + 1) * length;
}

}  // namespace tensorfold::ops
