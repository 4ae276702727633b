// The Gated DeltaNet mixer, token after token and head after head. A slot holds, all in fp32:
//   state [v_heads, k_dim, v_dim] | tail [conv_kernel − 1, channels] | window [rows, channels + 2·v_heads]
// where a window row is what a replay needs of a row: its pre-convolution channels, then b, then a.
//
// A lane's rows are run as one sequence: tail, replayed rows, the pass's rows. Where the state is written back (after
// the replay or after the last row) is the only thing that `commits` changes. In a tree a row follows its parent
// instead of the row before it, with a copy of the state that its parent left.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "ops/reference/reference_operations.h"
#include "ops/row_tree.h"

namespace tensorfold::ops {
namespace {

struct SlotLayout {
  explicit SlotLayout(const GatedDeltaGeometry& geometry)
      : channels(geometry.conv_channels()),
        head_state(static_cast<std::int64_t>(geometry.k_dim) * geometry.v_dim),
        tail_rows(geometry.conv_kernel - 1),
        tail(geometry.v_heads * head_state),
        window((tail + tail_rows * channels + 15) / 16 * 16),
        window_stride((channels + 2 * geometry.v_heads + 15) / 16 * 16) {}
  std::int64_t window_rows(std::size_t slot_bytes) const {
    return (static_cast<std::int64_t>(slot_bytes / sizeof(float)) - window) / window_stride;
  }
  std::int64_t channels;
  std::int64_t head_state;
  std::int64_t tail_rows;
  std::int64_t tail;  // offsets in floats; the state is at 0
  std::int64_t window;
  std::int64_t window_stride;
};

/// The inputs of one row of the sequence; b, a and z are null where they aren't needed.
struct RowInputs {
  const float* channels;      // q | k | v before the convolution
  std::int64_t previous = 0;  // row of the sequence that precedes it on its path
  const float* b = nullptr;
  const float* a = nullptr;
  const float* z = nullptr;
};

/// The inputs of a lane's sequence. Rows [0, tail) are only the convolution's past; rows [tail, tail + replayed) were
/// accepted in an earlier pass; the rest are this pass's.
struct Sequence {
  std::vector<RowInputs> rows;
  std::int64_t tail = 0;
  std::int64_t replayed = 0;
};

Sequence gather(const GatedDeltaParams& params, const LaneSpan& lane, const float* slot) {
  const SlotLayout layout(params.geometry);
  Sequence sequence;
  sequence.tail = layout.tail_rows;
  sequence.replayed = lane.replay_count;
  const auto row_before = [&] { return static_cast<std::int64_t>(sequence.rows.size()) - 1; };
  for (std::int64_t row = 0; row < layout.tail_rows; ++row) {
    sequence.rows.push_back({slot + layout.tail + row * layout.channels, row_before()});
  }
  for (std::int32_t i = 0; i < lane.replay_count; ++i) {
    TF_ASSERT(lane.replay_rows[i] >= 0 && lane.replay_rows[i] < layout.window_rows(params.slot_bytes));
    const float* kept = slot + layout.window + lane.replay_rows[i] * layout.window_stride;
    const float* b = kept + layout.channels;
    sequence.rows.push_back({kept, row_before(), b, b + params.geometry.v_heads, nullptr});
  }
  const auto first_new = static_cast<std::int64_t>(sequence.rows.size());
  for (std::int32_t row = 0; row < lane.row_count; ++row) {
    const float* input = params.projected + (lane.first_row + row) * params.stride;
    const bool branches = lane.parents != nullptr && lane.parents[row] >= 0;
    sequence.rows.push_back({input + params.qkv_offset, branches ? first_new + lane.parents[row] : row_before(),
                             input + params.b_offset, input + params.a_offset, input + params.z_offset});
  }
  return sequence;
}

/// silu of the causal convolution of `count` channels from `first` at row `at` of the sequence.
void convolve(const GatedDeltaParams& params, const Sequence& sequence, std::int64_t at, std::int64_t first,
              std::int64_t count, double* out) {
  const std::int64_t taps = params.geometry.conv_kernel;
  std::vector<const float*> inputs(static_cast<std::size_t>(taps));
  for (std::int64_t j = taps - 1, row = at; j >= 0; --j) {
    inputs[static_cast<std::size_t>(j)] = sequence.rows[static_cast<std::size_t>(row)].channels;
    row = sequence.rows[static_cast<std::size_t>(row)].previous;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t channel = first + i;
    double sum = 0.0;
    for (std::int64_t j = 0; j < taps; ++j) {
      const float* x = inputs[static_cast<std::size_t>(j)];
      sum += static_cast<double>(params.conv_weight[channel * taps + j]) * static_cast<double>(x[channel]);
    }
    out[i] = activate(ActivationKind::kSilu, sum);
  }
}

void normalise_length(std::vector<double>& x, double scale) {
  double sum = 0.0;
  for (const double value : x) sum += value * value;
  const double factor = scale / std::sqrt(sum + 1e-6);
  for (double& value : x) value *= factor;
}

double softplus(double x) {
  return x > 20.0 ? x : std::log1p(std::exp(x));
}

/// One value head over the lane's whole sequence.
class HeadRun {
 public:
  HeadRun(const GatedDeltaParams& params, const Sequence& sequence, std::int32_t head)
      : params_(params),
        geometry_(params.geometry),
        sequence_(sequence),
        head_(head),
        q_(static_cast<std::size_t>(geometry_.k_dim)),
        k_(static_cast<std::size_t>(geometry_.k_dim)),
        v_(static_cast<std::size_t>(geometry_.v_dim)),
        o_(static_cast<std::size_t>(geometry_.v_dim)) {}

  /// Advances `state` [k_dim, v_dim] by row `at` and leaves the row's output, before its norm, in output().
  void step(std::int64_t at, float* state) {
    load_row(at);
    const RowInputs& row = sequence_.rows[static_cast<std::size_t>(at)];
    const double beta = sigmoid(static_cast<double>(row.b[head_]));
    const double gate = static_cast<double>(params_.decay[head_]) *
                        softplus(static_cast<double>(row.a[head_]) + static_cast<double>(params_.dt_bias[head_]));
    const double keep = std::exp(gate);
    const std::int32_t v_dim = geometry_.v_dim;
    for (std::int32_t j = 0; j < v_dim; ++j) {
      double memory = 0.0;
      for (std::int32_t i = 0; i < geometry_.k_dim; ++i) {
        memory += static_cast<double>(state[i * v_dim + j]) * keep * k_[static_cast<std::size_t>(i)];
      }
      const double delta = beta * (v_[static_cast<std::size_t>(j)] - memory);
      double output = 0.0;
      for (std::int32_t i = 0; i < geometry_.k_dim; ++i) {
        float& element = state[i * v_dim + j];
        element = static_cast<float>(static_cast<double>(element) * keep + k_[static_cast<std::size_t>(i)] * delta);
        output += static_cast<double>(element) * q_[static_cast<std::size_t>(i)];
      }
      o_[static_cast<std::size_t>(j)] = output;
    }
  }

  /// The gated norm of the last step's output.
  void finish(std::int64_t at, double* y) const {
    const RowInputs& row = sequence_.rows[static_cast<std::size_t>(at)];
    double sum = 0.0;
    for (const double value : o_) sum += value * value;
    const double inverse =
        1.0 / std::sqrt(sum / static_cast<double>(geometry_.v_dim) + static_cast<double>(params_.epsilon));
    for (std::int32_t j = 0; j < geometry_.v_dim; ++j) {
      const double z = static_cast<double>(row.z[static_cast<std::int64_t>(head_) * geometry_.v_dim + j]);
      const double gate = params_.sigmoid_gate ? sigmoid(z) : activate(ActivationKind::kSilu, z);
      y[j] = o_[static_cast<std::size_t>(j)] * inverse * static_cast<double>(params_.norm_weight[j]) * gate;
    }
  }

 private:
  void load_row(std::int64_t at) {
    const std::int64_t k_dim = geometry_.k_dim;
    const std::int64_t keys = geometry_.k_heads * k_dim;
    const std::int64_t key_head = head_ / (geometry_.v_heads / geometry_.k_heads);  // repeat-interleave, not tile
    convolve(params_, sequence_, at, key_head * k_dim, k_dim, q_.data());
    convolve(params_, sequence_, at, keys + key_head * k_dim, k_dim, k_.data());
    convolve(params_, sequence_, at, 2 * keys + static_cast<std::int64_t>(head_) * geometry_.v_dim, geometry_.v_dim,
             v_.data());
    normalise_length(q_, 1.0 / std::sqrt(static_cast<double>(k_dim)));
    normalise_length(k_, 1.0);
  }

  const GatedDeltaParams& params_;
  const GatedDeltaGeometry& geometry_;
  const Sequence& sequence_;
  const std::int32_t head_;
  std::vector<double> q_, k_, v_, o_;
};

/// The last tail_rows inputs before row `end` of the sequence become the slot's tail.
void store_tail(const SlotLayout& layout, const Sequence& sequence, std::int64_t end, float* slot) {
  // Through a copy: the new tail may overlap the old one.
  std::vector<float> tail(static_cast<std::size_t>(layout.tail_rows * layout.channels));
  for (std::int64_t row = 0; row < layout.tail_rows; ++row) {
    const float* x = sequence.rows[static_cast<std::size_t>(end - layout.tail_rows + row)].channels;
    std::copy_n(x, layout.channels, tail.begin() + row * layout.channels);
  }
  std::copy(tail.begin(), tail.end(), slot + layout.tail);
}

void store_window(const GatedDeltaParams& params, const LaneSpan& lane, const SlotLayout& layout, float* slot) {
  TF_ASSERT(lane.row_count <= layout.window_rows(params.slot_bytes));
  for (std::int32_t row = 0; row < lane.row_count; ++row) {
    const float* input = params.projected + (lane.first_row + row) * params.stride;
    float* kept = slot + layout.window + row * layout.window_stride;
    std::copy_n(input + params.qkv_offset, layout.channels, kept);
    std::copy_n(input + params.b_offset, params.geometry.v_heads, kept + layout.channels);
    std::copy_n(input + params.a_offset, params.geometry.v_heads, kept + layout.channels + params.geometry.v_heads);
  }
}

}  // namespace

std::size_t ReferenceBackend::gated_delta_state_bytes(const GatedDeltaGeometry& geometry) const {
  return static_cast<std::size_t>(SlotLayout(geometry).window) * sizeof(float);
}

std::size_t ReferenceBackend::gated_delta_window_row_bytes(const GatedDeltaGeometry& geometry) const {
  return static_cast<std::size_t>(SlotLayout(geometry).window_stride) * sizeof(float);
}

void ReferenceBackend::gated_delta_lane(const GatedDeltaParams& params, const LaneSpan& lane) {
  const GatedDeltaGeometry& geometry = params.geometry;
  const SlotLayout layout(geometry);
  auto* slot = reinterpret_cast<float*>(static_cast<std::byte*>(params.slots) +
                                        static_cast<std::size_t>(lane.slot) * params.slot_bytes);
  const Sequence sequence = gather(params, lane, slot);
  const auto end = static_cast<std::int64_t>(sequence.rows.size());
  const std::int64_t first_new = sequence.tail + sequence.replayed;
  const std::int64_t out_width = static_cast<std::int64_t>(geometry.v_heads) * geometry.v_dim;
  const bool is_tree = lane.parents != nullptr;
  if (is_tree) row_tree(lane);  // checks it

  pool_.parallel_for(geometry.v_heads, [&](std::int64_t head, int) {
    HeadRun run(params, sequence, static_cast<std::int32_t>(head));
    float* stored = slot + head * layout.head_state;
    for (std::int64_t at = sequence.tail; at < first_new; ++at) run.step(at, stored);
    std::vector<float> state(stored, stored + layout.head_state);
    std::vector<std::vector<float>> states;  // of a tree: after each of its rows
    std::vector<double> y(static_cast<std::size_t>(geometry.v_dim));
    for (std::int64_t at = first_new; at < end; ++at) {
      const std::int64_t previous = sequence.rows[static_cast<std::size_t>(at)].previous;
      if (is_tree && at > first_new) state = states[static_cast<std::size_t>(previous - first_new)];
      run.step(at, state.data());
      if (is_tree) states.push_back(state);
      run.finish(at, y.data());
      float* out = values_of(params.out) + (lane.first_row + at - first_new) * out_width + head * geometry.v_dim;
      for (std::int32_t j = 0; j < geometry.v_dim; ++j) out[j] = round_point(y[static_cast<std::size_t>(j)]);
    }
    if (lane.commits) std::copy(state.begin(), state.end(), stored);
  });
  store_tail(layout, sequence, lane.commits ? end : first_new, slot);
  // Last, because the sequence may read the window that this replaces.
  if (!lane.commits) store_window(params, lane, layout, slot);
}

void ReferenceBackend::gated_delta(const GatedDeltaParams& params) {
  const GatedDeltaGeometry& geometry = params.geometry;
  TF_ASSERT(geometry.k_heads > 0 && geometry.v_heads % geometry.k_heads == 0);
  TF_ASSERT(geometry.conv_kernel >= 2 && geometry.conv_kernel <= 8);
  TF_ASSERT(params.slot_bytes >= gated_delta_state_bytes(geometry));
  for (std::int32_t lane = 0; lane < params.lane_count; ++lane) gated_delta_lane(params, params.lanes[lane]);
}

}  // namespace tensorfold::ops
