// The Gated DeltaNet mixer on the CPU: the layout of a slot, and the three loops that a pass is made of. The arithmetic
// is in kernels_gated_delta.inl.
//
// Slot, fp32: state [v_heads][v_dim / 16][k_dim][16] | tail [conv_kernel − 1, channels] | window [rows, channels +
// 2·v_heads], a window row being the pre-convolution channels, then b, then a: a replay runs the very kernels that the
// row would have run.
//
// A lane's rows form one sequence: the tail, the replayed rows, the pass's rows. Loop 1 (rows × heads) convolves,
// normalises and forms the gates; loop 2 (value heads × sixteen columns) runs the recurrence through all rows, its
// output taking v's place; loop 3 (rows × heads) norms and gates the output, and writes tail and window.
//
// In a tree each row convolves the inputs of its own path, and loop 2 walks the rows depth first: a row's state is kept
// only while a sibling still has to start from its parent's (state_steps).
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "ops/cpu/cpu_operations.h"
#include "ops/row_tree.h"

namespace tensorfold::ops::cpu {
namespace {

struct SlotLayout {
  explicit SlotLayout(const GatedDeltaGeometry& g)
      : channels(g.conv_channels()),
        chunks((g.v_dim + 15) / 16),
        chunk_floats(16ll * g.k_dim),
        tail_rows(g.conv_kernel - 1),
        tail(g.v_heads * chunks * chunk_floats),
        window(tail + round_up_16(tail_rows * channels)),
        window_stride(round_up_16(channels + 2ll * g.v_heads)) {}
  std::int64_t window_rows(std::size_t slot_bytes) const {
    return (static_cast<std::int64_t>(slot_bytes / sizeof(float)) - window) / window_stride;
  }
  std::int64_t channels;
  std::int64_t chunks;
  std::int64_t chunk_floats;
  std::int64_t tail_rows;
  std::int64_t tail;  // offsets in floats; the state is at 0
  std::int64_t window;
  std::int64_t window_stride;
};

/// One row of a tree in loop 2: the state that it starts from is in buffer `from`, the one that it leaves goes to `to`.
struct StateStep {
  std::int32_t row;
  std::int32_t from, to;
};

/// Rows depth first. The last child takes its parent's buffer over; the others copy it first, because their siblings
/// start from it too.
std::vector<StateStep> state_steps(const RowTree& tree) {
  std::vector<StateStep> steps;
  RowTree::Rows buffer{};         // of a row's state after its step
  RowTree::Rows children_left{};  // not yet visited
  for (std::int32_t row = 1; row < tree.row_count; ++row) {
    ++children_left[static_cast<std::size_t>(tree.parent[static_cast<std::size_t>(row)])];
  }
  for (std::int32_t i = 0; i < tree.row_count; ++i) {
    const std::int32_t row = tree.preorder[static_cast<std::size_t>(i)];
    const auto at = static_cast<std::size_t>(row);
    if (row > 0) {
      const auto parent = static_cast<std::size_t>(tree.parent[at]);
      // A copy goes one buffer up: whatever used it before was a sibling's branch, and that is finished.
      buffer[at] = --children_left[parent] == 0 ? buffer[parent] : buffer[parent] + 1;
      steps.push_back({row, buffer[parent], buffer[at]});
    } else {
      steps.push_back({0, 0, 0});
    }
  }
  return steps;
}

struct LaneSequence {
  const LaneSpan* lane = nullptr;
  float* slot = nullptr;
  std::int64_t first_row = 0;  // in the pass's working rows
  std::int64_t replayed = 0;
  std::int64_t rows = 0;         // replayed and new
  std::int64_t first_input = 0;  // in inputs_: the tail's rows, then `rows` more
  std::int64_t first_path = 0;   // in paths_, of a tree: the taps of each row
  std::vector<StateStep> steps;  // of a tree
};

class GatedDeltaPass {
 public:
  GatedDeltaPass(CpuContext& context, const GatedDeltaParams& params)
      : context_(context),
        kernels_(context.kernels),
        p_(params),
        g_(params.geometry),
        layout_(params.geometry),
        heads_(2ll * g_.k_heads + g_.v_heads),
        stride_(round_up_16(layout_.channels) + 2 * round_up_16(g_.v_heads)),
        beta_(round_up_16(layout_.channels)),
        growth_(beta_ + round_up_16(g_.v_heads)) {}

  void run() {
    gather();
    if (total_rows_ == 0) return;
    working_ = context_.shared_scratch.floats(total_rows_ * stride_);
    convolve();
    recur();
    finish();
  }

 private:
  void gather() {
    for (std::int32_t l = 0; l < p_.lane_count; ++l) {
      const LaneSpan& lane = p_.lanes[l];
      TF_ASSERT(lane.commits || lane.row_count <= layout_.window_rows(p_.slot_bytes));
      LaneSequence sequence;
      sequence.lane = &lane;
      sequence.slot = reinterpret_cast<float*>(static_cast<std::byte*>(p_.slots) +
                                               static_cast<std::size_t>(lane.slot) * p_.slot_bytes);
      sequence.first_row = total_rows_;
      sequence.replayed = lane.replay_count;
      sequence.rows = sequence.replayed + lane.row_count;
      sequence.first_input = static_cast<std::int64_t>(inputs_.size());
      total_rows_ += sequence.rows;
      gather_inputs(sequence);
      if (lane.parents != nullptr) gather_tree(sequence);
      sequences_.push_back(sequence);
    }
  }

  void gather_inputs(const LaneSequence& sequence) {
    const LaneSpan& lane = *sequence.lane;
    for (std::int64_t j = 0; j < layout_.tail_rows; ++j) {
      inputs_.push_back(sequence.slot + layout_.tail + j * layout_.channels);
    }
    for (std::int32_t i = 0; i < lane.replay_count; ++i) {
      TF_ASSERT(lane.replay_rows[i] >= 0 && lane.replay_rows[i] < layout_.window_rows(p_.slot_bytes));
      inputs_.push_back(sequence.slot + layout_.window + lane.replay_rows[i] * layout_.window_stride);
    }
    for (std::int32_t r = 0; r < lane.row_count; ++r) inputs_.push_back(projected(lane, r) + p_.qkv_offset);
  }

  /// The inputs of each row's convolution: the last ones of its path, the row's own at the end.
  void gather_tree(LaneSequence& sequence) {
    const RowTree tree = row_tree(*sequence.lane);
    sequence.steps = state_steps(tree);
    buffers_ = std::max(buffers_, tree.depth_max + 1);
    sequence.first_path = static_cast<std::int64_t>(paths_.size());
    const std::int64_t first_new = sequence.first_input + layout_.tail_rows + sequence.replayed;
    for (std::int32_t row = 0; row < tree.row_count; ++row) {
      std::int32_t on_path = row;
      std::int64_t input = first_new + row;
      paths_.resize(paths_.size() + static_cast<std::size_t>(g_.conv_kernel));
      for (std::int32_t tap = 1; tap <= g_.conv_kernel; ++tap) {
        paths_[paths_.size() - static_cast<std::size_t>(tap)] = inputs_[static_cast<std::size_t>(input)];
        on_path = on_path >= 0 ? tree.parent[static_cast<std::size_t>(on_path)] : -1;
        // Above the root: the committed rows, one after the other.
        input = on_path >= 0 ? first_new + on_path : std::min(input, first_new) - 1;
      }
    }
  }

  const float* projected(const LaneSpan& lane, std::int64_t row) const {
    return p_.projected + (lane.first_row + row) * p_.stride;
  }

  /// Rows of one lane by heads: enough pieces for the threads, whatever the shape of the pass.
  struct Piece {
    std::int32_t sequence;
    std::int32_t row_begin, row_end;
    std::int32_t head_begin, head_end;
  };
  std::vector<Piece> pieces(std::int64_t heads, bool new_rows_only) const {
    constexpr std::int64_t kRows = 32;
    const std::int64_t wanted = 4ll * context_.pool.thread_count();
    const std::int64_t blocks = (total_rows_ + kRows - 1) / kRows + static_cast<std::int64_t>(sequences_.size()) - 1;
    const std::int64_t parts = std::clamp<std::int64_t>(wanted / std::max<std::int64_t>(1, blocks), 1, heads);
    std::vector<Piece> result;
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      for (std::int64_t row = new_rows_only ? sequences_[s].replayed : 0; row < sequences_[s].rows; row += kRows) {
        for (std::int64_t part = 0; part < parts; ++part) {
          result.push_back({static_cast<std::int32_t>(s), static_cast<std::int32_t>(row),
                            static_cast<std::int32_t>(std::min(row + kRows, sequences_[s].rows)),
                            static_cast<std::int32_t>(heads * part / parts),
                            static_cast<std::int32_t>(heads * (part + 1) / parts)});
        }
      }
    }
    return result;
  }

  void convolve() {
    const std::vector<Piece> work = pieces(heads_, false);
    run_items(context_, static_cast<std::int64_t>(work.size()), total_rows_ * layout_.channels * 3,
              [&](std::int64_t item, int) { convolve_piece(work[static_cast<std::size_t>(item)]); });
  }

  void convolve_piece(const Piece& piece) {
    const LaneSequence& sequence = sequences_[static_cast<std::size_t>(piece.sequence)];
    float* rows = working_ + (sequence.first_row + piece.row_begin) * stride_;
    const std::int64_t count = piece.row_end - piece.row_begin;
    // Replayed rows and chains follow one another; a tree's rows bring the taps of their paths.
    const std::int64_t chain_rows =
        sequence.steps.empty() ? count : std::clamp<std::int64_t>(sequence.replayed - piece.row_begin, 0, count);
    const std::int64_t keys = 2ll * g_.k_heads;
    for (std::int64_t head = piece.head_begin; head < piece.head_end; ++head) {
      const bool is_value = head >= keys;
      const std::int64_t channel = is_value ? keys * g_.k_dim + (head - keys) * g_.v_dim : head * g_.k_dim;
      const std::int64_t width = is_value ? g_.v_dim : g_.k_dim;
      if (chain_rows > 0) {
        kernels_.delta_convolve(inputs_.data() + sequence.first_input + piece.row_begin, 1, chain_rows, channel, width,
                                p_.conv_weight, g_.conv_kernel, rows + channel, stride_);
      }
      if (chain_rows < count) {
        const std::int64_t first = piece.row_begin + chain_rows - sequence.replayed;
        kernels_.delta_convolve(paths_.data() + sequence.first_path + first * g_.conv_kernel, g_.conv_kernel,
                                count - chain_rows, channel, width, p_.conv_weight, g_.conv_kernel,
                                rows + chain_rows * stride_ + channel, stride_);
      }
      if (is_value) continue;
      for (std::int64_t r = 0; r < count; ++r) {
        kernels_.delta_normalise(rows + r * stride_ + channel, g_.k_dim, head < g_.k_heads);
      }
    }
    if (piece.head_begin != 0) return;
    for (std::int64_t r = 0; r < count; ++r) {
      const RowGates gates = gates_of(sequence, piece.row_begin + r);
      kernels_.delta_gates(gates.b, gates.a, p_.decay, p_.dt_bias, g_.v_heads, rows + r * stride_ + beta_,
                           rows + r * stride_ + growth_);
    }
  }

  struct RowGates {
    const float* b;
    const float* a;
  };
  RowGates gates_of(const LaneSequence& sequence, std::int64_t row) const {
    if (row < sequence.replayed) {
      const float* b =
          inputs_[static_cast<std::size_t>(sequence.first_input + layout_.tail_rows + row)] + layout_.channels;
      return {b, b + g_.v_heads};
    }
    const float* input = projected(*sequence.lane, row - sequence.replayed);
    return {input + p_.b_offset, input + p_.a_offset};
  }

  void recur() {
    const std::int64_t per_lane = g_.v_heads * layout_.chunks;
    const std::int64_t per_thread = layout_.chunk_floats * buffers_;
    float* scratch = context_.thread_scratch.floats(per_thread * context_.pool.thread_count());
    const std::int64_t items = static_cast<std::int64_t>(sequences_.size()) * per_lane;
    const std::int64_t work = total_rows_ * per_lane * g_.k_dim * 8;
    run_items(context_, items, work, [&](std::int64_t item, int thread) {
      const std::int64_t index = item % per_lane;
      recur_chunk(sequences_[static_cast<std::size_t>(item / per_lane)], index / layout_.chunks, index % layout_.chunks,
                  scratch + thread * per_thread);
    });
  }

  void recur_chunk(const LaneSequence& sequence, std::int64_t head, std::int64_t chunk, float* scratch) {
    float* rows = working_ + sequence.first_row * stride_;
    const std::int64_t key_head = head / (g_.v_heads / g_.k_heads);
    DeltaChunk c;
    c.state = sequence.slot + (head * layout_.chunks + chunk) * layout_.chunk_floats;
    c.k_dim = g_.k_dim;
    c.width = std::min<std::int64_t>(16, g_.v_dim - 16 * chunk);
    c.row_stride = stride_;
    c.q = rows + key_head * g_.k_dim;
    c.k = rows + (g_.k_heads + key_head) * g_.k_dim;
    c.v = rows + value_channel(head) + 16 * chunk;
    c.beta = rows + beta_ + head;
    c.growth = rows + growth_ + head;
    if (sequence.replayed > 0) {
      c.rows = sequence.replayed;
      c.outputs = false;
      kernels_.delta_chunk(c);
      c = skip_rows(c, sequence.replayed);
    }
    c.rows = sequence.rows - sequence.replayed;
    if (c.rows == 0) return;
    c.outputs = true;
    if (!sequence.lane->commits) {
      copy_state(c.state, scratch);
      c.state = scratch;
    }
    if (sequence.steps.empty()) {
      kernels_.delta_chunk(c);
    } else {
      recur_tree(sequence.steps, c, scratch);
    }
  }

  void recur_tree(const std::vector<StateStep>& steps, const DeltaChunk& rows, float* buffers) {
    for (const StateStep& step : steps) {
      DeltaChunk c = skip_rows(rows, step.row);
      c.rows = 1;
      c.state = buffers + step.to * layout_.chunk_floats;
      if (step.from != step.to) copy_state(buffers + step.from * layout_.chunk_floats, c.state);
      kernels_.delta_chunk(c);
    }
  }

  DeltaChunk skip_rows(DeltaChunk chunk, std::int64_t rows) const {
    const std::int64_t skipped = rows * stride_;
    chunk.q += skipped;
    chunk.k += skipped;
    chunk.v += skipped;
    chunk.beta += skipped;
    chunk.growth += skipped;
    return chunk;
  }

  void copy_state(const float* from, float* to) const {
    std::memcpy(to, from, static_cast<std::size_t>(layout_.chunk_floats) * sizeof(float));
  }

  std::int64_t value_channel(std::int64_t head) const { return 2ll * g_.k_heads * g_.k_dim + head * g_.v_dim; }

  void finish() {
    const std::vector<Piece> work = pieces(g_.v_heads, true);
    const auto outputs = static_cast<std::int64_t>(work.size()), lanes = static_cast<std::int64_t>(sequences_.size());
    run_items(context_, outputs + lanes, total_rows_ * g_.v_heads * g_.v_dim * 3, [&](std::int64_t item, int) {
      if (item < outputs) {
        finish_piece(work[static_cast<std::size_t>(item)]);
      } else {
        store_inputs(sequences_[static_cast<std::size_t>(item - outputs)]);
      }
    });
  }

  void finish_piece(const Piece& piece) {
    const LaneSequence& sequence = sequences_[static_cast<std::size_t>(piece.sequence)];
    for (std::int64_t row = piece.row_begin; row < piece.row_end; ++row) {
      const std::int64_t pass_row = sequence.lane->first_row + row - sequence.replayed;
      for (std::int64_t head = piece.head_begin; head < piece.head_end; ++head) {
        DeltaOutput output;
        output.o = working_ + (sequence.first_row + row) * stride_ + value_channel(head);
        output.z = p_.projected + pass_row * p_.stride + p_.z_offset + head * g_.v_dim;
        output.norm_weight = p_.norm_weight;
        output.v_dim = g_.v_dim;
        output.epsilon = p_.epsilon;
        output.sigmoid_gate = p_.sigmoid_gate;
        output.out = bf16_of(p_.out) + (pass_row * g_.v_heads + head) * g_.v_dim;
        kernels_.delta_output(output);
      }
    }
  }

  /// The tail after the last committed row, then the window; in this order, as the tail may take rows of the old
  /// window.
  void store_inputs(const LaneSequence& sequence) {
    const LaneSpan& lane = *sequence.lane;
    const std::int64_t committed = lane.commits ? sequence.rows : sequence.replayed;
    for (std::int64_t j = 0; committed > 0 && j < layout_.tail_rows; ++j) {
      // A source inside the tail lies beyond row j, so it hasn't been overwritten.
      std::memcpy(sequence.slot + layout_.tail + j * layout_.channels,
                  inputs_[static_cast<std::size_t>(sequence.first_input + committed + j)],
                  static_cast<std::size_t>(layout_.channels) * sizeof(float));
    }
    if (lane.commits) return;
    for (std::int64_t r = 0; r < lane.row_count; ++r) {
      float* kept = sequence.slot + layout_.window + r * layout_.window_stride;
      const float* input = projected(lane, r);
      const std::size_t gate_bytes = static_cast<std::size_t>(g_.v_heads) * sizeof(float);
      std::memcpy(kept, input + p_.qkv_offset, static_cast<std::size_t>(layout_.channels) * sizeof(float));
      std::memcpy(kept + layout_.channels, input + p_.b_offset, gate_bytes);
      std::memcpy(kept + layout_.channels + g_.v_heads, input + p_.a_offset, gate_bytes);
    }
  }

  CpuContext& context_;
  const OpsKernels& kernels_;
  const GatedDeltaParams& p_;
  const GatedDeltaGeometry& g_;
  SlotLayout layout_;
  std::int64_t heads_;   // of q, k and v
  std::int64_t stride_;  // floats of a working row: convolved channels, beta, growth
  std::int64_t beta_;
  std::int64_t growth_;
  std::vector<LaneSequence> sequences_;
  std::vector<const float*> inputs_;
  std::vector<const float*> paths_;  // trees: [row][tap]
  std::int32_t buffers_ = 1;         // states that loop 2 keeps at a time
  std::int64_t total_rows_ = 0;
  float* working_ = nullptr;
};

}  // namespace

std::size_t gated_delta_state_bytes(const GatedDeltaGeometry& geometry) {
  return static_cast<std::size_t>(SlotLayout(geometry).window) * sizeof(float);
}

std::size_t gated_delta_window_row_bytes(const GatedDeltaGeometry& geometry) {
  return static_cast<std::size_t>(SlotLayout(geometry).window_stride) * sizeof(float);
}

void gated_delta(CpuContext& context, const GatedDeltaParams& p) {
  TF_ASSERT(p.geometry.k_heads > 0 && p.geometry.v_heads % p.geometry.k_heads == 0);
  TF_ASSERT(p.geometry.conv_kernel >= 2 && p.geometry.conv_kernel <= 8);
  TF_ASSERT(p.slot_bytes >= gated_delta_state_bytes(p.geometry));
  GatedDeltaPass(context, p).run();
}

}  // namespace tensorfold::ops::cpu
