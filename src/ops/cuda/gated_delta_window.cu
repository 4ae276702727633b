// The recurrence of windows and other short lanes, their gated norm, and what every lane leaves in its slot besides the
// state. A head of a lane belongs to one cluster of CTAs, a column of its state to eight threads, which keep it in registers:
// it is read once (before the wait: nothing of this pass writes it earlier) and written at most once.
//
// Trees: rows are visited depth first, the child with the most rows below it last, so that a state has to be put aside only
// for lighter branches; with 16 rows never more than three at a time (kSavedStates), in shared memory.
//
// Outputs of a row meet in the shared memory of the CTA that finishes it (rows go round the cluster), where one warp takes the
// norm over the head. Where a head's CTAs are no cluster (window_shape), outputs go to the working rows instead.
//
// Further CTAs of the same launch copy tails and windows: a thread owns the channels it copies, so nothing is read after it
// has been overwritten.
//
// Where few heads leave the card idle, rows are prepared here as well (prepares_rows): each CTA makes the head's q and k and its
// columns of v, which saves a launch. Then copying must not overtake the reading: CTAs count themselves when they have read
// (kCounters), and those that copy wait for them. Lower blocks are resident first, so what is waited for is running.
#include <algorithm>

#include "base/assert.h"
#include "base/limits.h"
#include "ops/cuda/gated_delta_row.cuh"

namespace tensorfold::ops::cuda::delta {
namespace {

static_assert(kWindowRows >= limits::kTreeRowsMax);

constexpr int kTileRows = 2 * kWindowRows;  // of shared memory: the last replayed rows and all rows of the pass
constexpr int kSavedStates = 3;             // 1 + log2(16 rows / 4): a lighter child has less than half of the rows
constexpr int kThreadsMax = 256;
constexpr int kClusterMax = 8;
constexpr int kTailRowsMax = 7;
constexpr int kPreparedTaps = 4;            // of rows that are prepared here; heads of up to 128 dimensions
constexpr int kPreparedRows = 1;            // of a lane: with more a launch of many CTAs prepares them sooner
constexpr int kPreparingCtasPerSm = 2;

struct WindowShape {
  std::int32_t cluster;      // CTAs of a head
  std::int32_t warps;        // of a CTA
  std::int32_t scan_blocks;  // CTAs of the recurrence; the others copy
  std::int32_t copy_blocks;  // of a lane
  std::int32_t finish_rows;  // rows that a CTA finishes at most; 0: outputs go to the working rows
  bool saves_states;         // there may be trees
  std::uint32_t* readers;    // [2][lanes]: CTAs that have read what copying overwrites, CTAs that have copied; null: nobody waits
};

/// One visit of a tree's row.
struct WalkStep {
  std::int8_t row;
  std::int8_t load;  // saved state that the row starts from; -1: the state of the step before
  std::int8_t save;  // where the state after the row is kept for its later children; -1: nowhere
};

/// Shared memory of a CTA; every part begins at a multiple of 16 bytes.
struct SharedLayout {
  __host__ __device__ SharedLayout(const Params& p, const WindowShape& shape) {
    const int columns = shape.warps * kColumnsPerWarp, padded = p.v_padded();
    int at = 0;
    const auto take = [&at](int bytes) {
      const int place = at;
      at += (bytes + 15) / 16 * 16;
      return place;
    };
    keys = take(kTileRows * 2 * p.k_padded() * 2);
    values = take(kTileRows * columns * 4);
    gates = take(kTileRows * 8);
    outputs = take(shape.finish_rows * padded * 4);
    z = take(shape.finish_rows * padded * 4);
    weight = take(shape.finish_rows > 0 ? padded * 4 : 0);
    steps = take(kWindowRows * static_cast<int>(sizeof(WalkStep)));
    saved = take(shape.saves_states ? kSavedStates * shape.warps * 32 * p.lane_elements * 4 : 0);
    bytes = at;
  }
  int keys, values, gates, outputs, z, weight, steps, saved, bytes;
};

// --- Clusters. Without them (cluster of 1) the CTA's own barrier does. "aligned" asks that a warp's threads come together;
// where some of them were on a way of their own just before, nothing else makes them.

__device__ __forceinline__ void cluster_arrive() {
  __syncwarp();
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
  __syncwarp();
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
/// Writes to the same place of another CTA's shared memory.
__device__ __forceinline__ void store_remote(float* shared, int rank, float value) {
#if __CUDA_ARCH__ >= 900
  const auto mine = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  std::uint32_t theirs;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(mine), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(theirs), "f"(value) : "memory");
#endif
}

/// The order in which a tree's rows are visited; by one thread.
__device__ void plan_walk(const std::int32_t* parents, int rows, WalkStep* steps) {
  std::int8_t size[kWindowRows], level[kWindowRows];
  std::uint16_t children[kWindowRows];  // not yet visited, a bit a row
  for (int row = 0; row < rows; ++row) {
    size[row] = 1;
    children[row] = 0;
  }
  for (int row = rows - 1; row > 0; --row) {
    size[parents[row]] = static_cast<std::int8_t>(size[parents[row]] + size[row]);
    children[parents[row]] = static_cast<std::uint16_t>(children[parents[row]] | 1u << row);
  }
  level[0] = 0;
  int row = 0, before = -1;
  for (int visit = 0; visit < rows; ++visit) {
    const bool follows = row == 0 || parents[row] == before;
    const bool branches = __popc(children[row]) > 1;
    steps[visit] = {static_cast<std::int8_t>(row), follows ? std::int8_t{-1} : level[parents[row]],
                    branches ? level[row] : std::int8_t{-1}};
    before = row;
    int from = row;
    while (from > 0 && children[from] == 0) from = parents[from];
    if (children[from] == 0) return;
    int lightest = -1;
    for (unsigned left = children[from]; left != 0; left &= left - 1) {
      const int child = __ffs(static_cast<int>(left)) - 1;
      if (lightest < 0 || size[child] < size[lightest]) lightest = child;
    }
    children[from] = static_cast<std::uint16_t>(children[from] & ~(1u << lightest));
    level[lightest] = static_cast<std::int8_t>(level[from] + (children[from] != 0));
    row = lightest;
  }
}

/// One CTA's part of a head: the recurrence over a lane's rows.
template <int kElements, bool kPrepares>
class WindowRun {
 public:
  __device__ WindowRun(const Params& p, const WindowShape& shape, char* shared)
      : p_(p), shape_(shape), layout_(p, shape), shared_(shared) {
    const int block = static_cast<int>(blockIdx.x);
    rank_ = block % shape.cluster;
    head_ = block / shape.cluster % p.geometry.v_heads;
    lane_index_ = block / shape.cluster / p.geometry.v_heads;
    lane_ = pass_lanes(p.lanes)[lane_index_];
    warp_ = static_cast<int>(threadIdx.x) / 32;
    thread_ = static_cast<int>(threadIdx.x) % 32;
    group_ = rank_ * shape.warps + warp_;
    is_active_ = group_ < p.column_groups;
  }

  __device__ void run() {
    if (lane_.row_count > kWindowRows || lane_.row_count + lane_.replay_count == 0) return wait_for_previous();
    if (lane_.parents >= 0 && threadIdx.x == 0) {
      plan_walk(pass_words(p_.lanes.header) + lane_.parents, lane_.row_count, part<WalkStep>(layout_.steps));
    }
    float* stored = state_of(p_, slot_of(p_, lane_), head_, group_);
    float state[kElements] = {};
    if (is_active_) load_state(stored, thread_, state);
    if (meets()) cluster_arrive();  // "I run": then others may write to my shared memory
    const int replays = kPrepares ? replay_and_prepare(state) : replay_prepared(state);
    if (is_active_ && !lane_.commits && lane_.replay_count > 0) store_state(stored, thread_, state);
    if (meets()) cluster_wait();
    if (lane_.parents >= 0) {
      run_tree(replays, state);
    } else {
      for (int row = 0; row < lane_.row_count; ++row) step(replays, row, state);
    }
    if (is_active_ && lane_.commits) store_state(stored, thread_, state);
    if (shape_.finish_rows > 0) finish_rows();
  }

 private:
  /// Advances the state by the replayed rows and brings the pass's rows into shared memory; returns where they begin there.
  __device__ int replay_prepared(float (&state)[kElements]) {
    wait_for_previous();
    stage_finish();
    int at = 0;
    for (; lane_.replay_count - at > kWindowRows; at += kWindowRows) {
      stage(at, kWindowRows);
      for (int row = 0; row < kWindowRows; ++row) advance_by(row, state);
      __syncthreads();
    }
    const int replays = lane_.replay_count - at;
    stage(at, replays + lane_.row_count);
    for (int row = 0; row < replays; ++row) advance_by(row, state);
    return replays;
  }

  /// The same from the rows' inputs. Chains only. What lies in the slot is read before the wait.
  __device__ int replay_and_prepare(float (&state)[kElements]) {
    int at = 0;
    for (; lane_.replay_count - at > kWindowRows; at += kWindowRows) {
      prepare_tile(at, kWindowRows, false);
      for (int row = 0; row < kWindowRows; ++row) advance_by(row, state);
      __syncthreads();
    }
    const int replays = lane_.replay_count - at;
    prepare_tile(at, replays + lane_.row_count, true);
    if (threadIdx.x == 0) {
      __threadfence();
      atomicAdd(shape_.readers + lane_index_, 1u);
    }
    for (int row = 0; row < replays; ++row) advance_by(row, state);
    return replays;
  }

  /// Prepares `count` rows of the sequence from `first` on; the last tile waits for the kernel before.
  __device__ void prepare_tile(int first, int count, bool waits) {
    const int tasks = count * kPartsOfRow;
    RowPart mine(*this, first, min(warp_, tasks - 1));
    if (warp_ < tasks) mine.load(*this, false);
    if (waits) {
      wait_for_previous();
      stage_finish();
      close_copies();
    }
    // From the last thread down: the last warps have least to do.
    const int gate_row = static_cast<int>(blockDim.x) - 1 - static_cast<int>(threadIdx.x);
    if (gate_row < count) {
      part<float2>(layout_.gates)[gate_row] =
          gates_of(p_, lane_, slot_of(p_, lane_), first + gate_row, head_, p_.decay[head_], p_.dt_bias[head_]);
    }
    if (warp_ < tasks) {
      mine.load(*this, true);
      mine.store(*this, first);
    }
    for (int task = warp_ + shape_.warps; task < tasks; task += shape_.warps) {
      RowPart next(*this, first, task);
      next.load(*this, false);
      next.load(*this, true);
      next.store(*this, first);
    }
    if (waits) wait_copies<0>();
    __syncthreads();
  }

  static constexpr int kPartsOfRow = 3;

  /// A head's q, k or v of one row on its way through a warp.
  struct RowPart {
    /// Of task `task` of the rows from `first` on in the sequence.
    __device__ RowPart(const WindowRun& run, int first, int task)
        : at(first + task / kPartsOfRow), head(run.part_head(task % kPartsOfRow)) {
      weights.load(run.p_, head, 4 * run.thread_);
    }
    /// The inputs that come from the pass, or those that the slot holds.
    __device__ void load(const WindowRun& run, bool of_pass) {
      const float* slot = slot_of(run.p_, run.lane_);
#pragma unroll
      for (int j = 0; j < kPreparedTaps; ++j) {
        const int from = at - (kPreparedTaps - 1) + j;
        if ((from >= run.lane_.replay_count) != of_pass || from < at - run.p_.tail_rows) continue;
        x[j] = load_four(input_row(run.p_, run.lane_, slot, from) + head.first_channel, 4 * run.thread_, head.width,
                         run.p_.vectors);
      }
    }
    /// To shared memory, the row `first` of the sequence being the first there.
    __device__ void store(const WindowRun& run, int first) {
      float4 y[1] = {convolve(weights, x)};
      if (head.kind != Head::kValue) {
        const int which = head.kind == Head::kKey;
        return store_key(run.p_, head.kind, const_cast<std::uint16_t*>(run.key_row(at - first, which)), y, run.thread_);
      }
      const int group = run.thread_ - run.rank_ * run.shape_.warps;  // of the CTA: a thread has a group's four columns
      if (group < 0 || group >= run.shape_.warps) return;
      run.template part<float4>(run.layout_.values)[(at - first) * run.shape_.warps + group] = y[0];
    }

    int at;
    Head head;
    TapWeights<kPreparedTaps> weights;
    float4 x[kPreparedTaps] = {};
  };

  __device__ Head part_head(int part) const {
    const int key_head = head_ / (p_.geometry.v_heads / p_.geometry.k_heads);
    return head_of(p_, part == 0 ? key_head : part == 1 ? p_.geometry.k_heads + key_head : 2 * p_.geometry.k_heads + head_);
  }

  /// Whether the head's CTAs are a cluster.
  __device__ bool meets() const { return shape_.cluster > 1 && shape_.finish_rows > 0; }

  template <typename T>
  __device__ T* part(int offset) const {
    return reinterpret_cast<T*>(shared_ + offset);
  }
  __device__ const std::uint16_t* key_row(int row, int which) const {
    return part<std::uint16_t>(layout_.keys) + (row * 2 + which) * 8 * kElements;
  }

  /// Brings `count` rows of the sequence from `at` on into shared memory.
  __device__ void stage(int at, int count) {
    constexpr int kPieces = 2 * kElements;  // of 16 bytes: q and k
    const int threads = static_cast<int>(blockDim.x), key_head = head_ / (p_.geometry.v_heads / p_.geometry.k_heads);
    for (int i = static_cast<int>(threadIdx.x); i < count * kPieces; i += threads) {
      const int row = i / kPieces, piece = i % kPieces;
      const std::int64_t from = working_row(p_, lane_, lane_index_, at + row) * p_.geometry.k_heads + key_head;
      copy_async<16>(part<char>(layout_.keys) + i * 16, p_.keys + (from * kPieces + piece) * 8);
    }
    const int groups = min(shape_.warps, p_.column_groups - rank_ * shape_.warps);
    for (int i = static_cast<int>(threadIdx.x); i < count * groups; i += threads) {
      const int row = i / groups, group = i % groups;
      const std::int64_t from = working_row(p_, lane_, lane_index_, at + row) * p_.geometry.v_heads + head_;
      copy_async<16>(part<float4>(layout_.values) + row * shape_.warps + group,
                     p_.values + from * p_.v_padded() + (rank_ * shape_.warps + group) * kColumnsPerWarp);
    }
    for (int row = static_cast<int>(threadIdx.x); row < count; row += threads) {
      const std::int64_t from = working_row(p_, lane_, lane_index_, at + row) * p_.geometry.v_heads + head_;
      copy_async<8>(part<float2>(layout_.gates) + row, p_.gates + from);
    }
    close_copies();
    wait_copies<0>();
    __syncthreads();
  }

  /// What finishing the CTA's rows takes besides their outputs.
  __device__ void stage_finish() {
    if (shape_.finish_rows == 0) return;
    const int v_dim = p_.geometry.v_dim;
    for (int i = static_cast<int>(threadIdx.x); i < v_dim; i += static_cast<int>(blockDim.x)) {
      if (rank_ < lane_.row_count) copy_async<4>(part<float>(layout_.weight) + i, p_.norm_weight + i);
      for (int row = rank_; row < lane_.row_count; row += shape_.cluster) {
        copy_async<4>(part<float>(layout_.z) + row / shape_.cluster * p_.v_padded() + i, z_row(row) + i);
      }
    }
  }
  __device__ const float* z_row(int row) const {
    return p_.projected + static_cast<std::int64_t>(lane_.first_row + row) * p_.stride + p_.z_offset +
           head_ * p_.geometry.v_dim;
  }

  __device__ float value(int row) const {
    return part<float>(layout_.values)[row * shape_.warps * kColumnsPerWarp + warp_ * kColumnsPerWarp + thread_ / 8];
  }

  __device__ void advance_by(int row, float (&state)[kElements]) {
    if (!is_active_) return;
    float k[kElements];
    load_keys(key_row(row, 1), thread_ % 8, k);
    advance(state, k, part<float2>(layout_.gates)[row], value(row));
  }

  /// Row `row` of the pass; `replays` rows precede the pass's in shared memory.
  __device__ void step(int replays, int row, float (&state)[kElements]) {
    if (!is_active_) return;
    advance_by(replays + row, state);
    float q[kElements];
    load_keys(key_row(replays + row, 0), thread_ % 8, q);
    put_output(row, add_lanes(output_share(state, q)));
  }

  __device__ void put_output(int row, float output) {
    if (thread_ % 8 != 0) return;
    const int column = group_ * kColumnsPerWarp + thread_ / 8;
    if (shape_.finish_rows == 0) {
      const std::int64_t working = p_.replay_rows() + lane_.first_row + row;
      p_.values[(working * p_.geometry.v_heads + head_) * p_.v_padded() + column] = output;
      return;
    }
    float* place = part<float>(layout_.outputs) + row / shape_.cluster * p_.v_padded() + column;
    if (meets()) {
      store_remote(place, row % shape_.cluster, output);
    } else {
      *place = output;
    }
  }

  __device__ void run_tree(int replays, float (&state)[kElements]) {
    const WalkStep* steps = part<WalkStep>(layout_.steps);  // written before stage()'s barrier
    float4* saved = part<float4>(layout_.saved) + threadIdx.x;
    const int part_stride = static_cast<int>(blockDim.x);
    for (int visit = 0; visit < lane_.row_count; ++visit) {
      const WalkStep at = steps[visit];
      if (at.load >= 0) {
#pragma unroll
        for (int i = 0; i < kElements / 4; ++i) {
          const float4 x = saved[(at.load * (kElements / 4) + i) * part_stride];
          state[4 * i] = x.x;
          state[4 * i + 1] = x.y;
          state[4 * i + 2] = x.z;
          state[4 * i + 3] = x.w;
        }
      }
      step(replays, at.row, state);
      if (at.save >= 0) {
#pragma unroll
        for (int i = 0; i < kElements / 4; ++i) {
          saved[(at.save * (kElements / 4) + i) * part_stride] =
              make_float4(state[4 * i], state[4 * i + 1], state[4 * i + 2], state[4 * i + 3]);
        }
      }
    }
  }

  __device__ void finish_rows() {
    if (meets()) {
      cluster_arrive();
      cluster_wait();
    } else {
      __syncthreads();
    }
    for (int mine = warp_;; mine += shape_.warps) {
      const int row = mine * shape_.cluster + rank_;
      if (row >= lane_.row_count) return;
      const std::int64_t out = (static_cast<std::int64_t>(lane_.first_row + row) * p_.geometry.v_heads + head_) *
                               p_.geometry.v_dim;
      gated_norm(p_, part<float>(layout_.outputs) + mine * p_.v_padded(), part<float>(layout_.z) + mine * p_.v_padded(),
                 true, part<float>(layout_.weight), p_.out + out, thread_);
    }
  }

  const Params& p_;
  const WindowShape& shape_;
  const SharedLayout layout_;
  char* shared_;
  DeviceLane lane_;
  int rank_, head_, lane_index_, warp_, thread_, group_;
  bool is_active_;
};

/// Tail and window of one lane; four channels a thread, or one where they aren't aligned.
template <typename Vector>
__device__ void copy_channels(const Params& p, const DeviceLane& lane, int first, int step) {
  constexpr int kWidth = sizeof(Vector) / 4;
  float* slot = slot_of(p, lane);
  const int committed = lane.replay_count + (lane.commits ? lane.row_count : 0);
  for (int c = first * kWidth; c < p.channels; c += step * kWidth) {
    const auto at = [c](auto* row) { return reinterpret_cast<Vector*>(const_cast<float*>(row + c)); };
    if (committed > 0) {
      Vector rows[kTailRowsMax];
#pragma unroll
      for (int j = 0; j < kTailRowsMax; ++j) {
        if (j < p.tail_rows) rows[j] = *at(input_row(p, lane, slot, committed - p.tail_rows + j));
      }
#pragma unroll
      for (int j = 0; j < kTailRowsMax; ++j) {
        if (j < p.tail_rows) *at(slot + p.tail + static_cast<std::int64_t>(j) * p.channels) = rows[j];
      }
    }
    if (lane.commits) continue;
    const float* input = p.projected + static_cast<std::int64_t>(lane.first_row) * p.stride + p.qkv_offset;
    float* window = slot + p.window;
    int row = 0;
    for (; row + 4 <= lane.row_count; row += 4) {  // four loads at a time are on their way
      Vector rows[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) rows[i] = *at(input + (row + i) * p.stride);
#pragma unroll
      for (int i = 0; i < 4; ++i) *at(window + (row + i) * p.window_stride) = rows[i];
    }
    for (; row < lane.row_count; ++row) *at(window + row * p.window_stride) = *at(input + row * p.stride);
  }
}

/// Returns when every CTA of the lane has read the slot; the last one of those that copy leaves zeros.
__device__ void wait_for_readers(const Params& p, const WindowShape& shape, int lane_index) {
  if (threadIdx.x == 0) {
    std::uint32_t* readers = shape.readers + lane_index;
    std::uint32_t* copied = readers + p.lane_count;
    const auto expected = static_cast<std::uint32_t>(p.geometry.v_heads * shape.cluster);
    while (*static_cast<volatile std::uint32_t*>(readers) != expected) __nanosleep(40);
    __threadfence();
    if (atomicAdd(copied, 1u) + 1 == static_cast<std::uint32_t>(shape.copy_blocks)) {
      *readers = 0;
      *copied = 0;
    }
  }
  __syncthreads();
}

__device__ void copy_inputs(const Params& p, const WindowShape& shape, int block) {
  wait_for_previous();
  const int lane_index = block / shape.copy_blocks;
  if (lane_index >= p.lane_count) return;
  const DeviceLane lane = pass_lanes(p.lanes)[lane_index];
  if (lane.row_count + lane.replay_count == 0) return;
  if (shape.readers != nullptr) wait_for_readers(p, shape, lane_index);
  const int first = block % shape.copy_blocks * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  const int step = shape.copy_blocks * static_cast<int>(blockDim.x);
  if (p.vectors) {
    copy_channels<float4>(p, lane, first, step);
  } else {
    copy_channels<float>(p, lane, first, step);
  }
  if (lane.commits) return;
  const int v_heads = p.geometry.v_heads;
  float* window = slot_of(p, lane) + p.window + p.channels;
  for (int i = first; i < lane.row_count * v_heads; i += step) {
    const int row = i / v_heads, head = i % v_heads;
    const float* input = p.projected + static_cast<std::int64_t>(lane.first_row + row) * p.stride;
    window[row * p.window_stride + head] = input[p.b_offset + head];
    window[row * p.window_stride + v_heads + head] = input[p.a_offset + head];
  }
}

template <int kElements, bool kPrepares>
__global__ void __launch_bounds__(kThreadsMax, kElements > 16 ? 1 : kPrepares ? kPreparingCtasPerSm : 3) run_window_rows(
    const __grid_constant__ Params p, const __grid_constant__ WindowShape shape) {
  extern __shared__ __align__(16) char shared[];
  allow_next();
  if (static_cast<int>(blockIdx.x) >= shape.scan_blocks) {
    copy_inputs(p, shape, static_cast<int>(blockIdx.x) - shape.scan_blocks);
    return;
  }
  WindowRun<kElements, kPrepares>(p, shape, shared).run();
}

/// A launch whose CTAs of a head meet in a cluster, or don't.
WindowShape window_shape(const Params& p, const Lanes& lanes, bool meets) {
  WindowShape shape = {};
  const int warps = meets ? 8 : 4;
  shape.cluster = 1;
  while ((!meets || shape.cluster < kClusterMax) && shape.cluster * warps < p.column_groups) shape.cluster *= 2;
  shape.warps = (p.column_groups + shape.cluster - 1) / shape.cluster;
  shape.finish_rows = (std::clamp(lanes.rows_max, 1, kWindowRows) + shape.cluster - 1) / shape.cluster;
  if (!meets && shape.cluster > 1) shape.finish_rows = 0;
  TF_ASSERT(shape.warps * 32 <= kThreadsMax && shape.cluster * shape.warps >= p.column_groups);
  const int per_thread = p.vectors ? 4 : 1;
  shape.copy_blocks = (p.channels + per_thread * shape.warps * 32 - 1) / (per_thread * shape.warps * 32);
  shape.scan_blocks = p.lane_count * p.geometry.v_heads * shape.cluster;
  shape.saves_states = lanes.any_tree;
  return shape;
}

/// Few heads: clusters, so that a head is spread over SMs and yet finished by this launch. Where heads fill the card anyway,
/// clusters hold CTAs up, and the norm in a launch of its own costs less; nor do they exist on every GPU, and on some their
/// wider CTAs lack the shared memory.
WindowShape window_shape(const CudaContext& context, const Params& p, const Lanes& lanes) {
  const DeviceFacts& facts = context.facts();
  if (facts.compute_capability >= 90 && p.lane_count * p.geometry.v_heads <= facts.sm_count) {
    const WindowShape shape = window_shape(p, lanes, true);
    if (SharedLayout(p, shape).bytes <= facts.shared_bytes_max) return shape;
  }
  return window_shape(p, lanes, false);
}

}  // namespace

bool prepares_rows(const CudaContext& context, const Params& p, const Lanes& lanes) {
  if (lanes.any_tree || lanes.rows_max > kPreparedRows || p.geometry.conv_kernel > kPreparedTaps) return false;
  if (p.k_padded() > 128 || p.v_padded() > 128) return false;
  const WindowShape shape = window_shape(context, p, lanes);
  return shape.finish_rows > 0 && shape.scan_blocks <= kPreparingCtasPerSm * context.facts().sm_count;
}

bool run_windows(CudaContext& context, const Params& p, const Lanes& lanes, bool prepares) {
  WindowShape shape = window_shape(context, p, lanes);
  if (prepares) {
    const std::size_t bytes = static_cast<std::size_t>(p.lane_count) * 2 * sizeof(std::uint32_t);
    shape.readers = static_cast<std::uint32_t*>(context.scratch(Scratch::kCounters, bytes));
  }
  const int blocks = shape.scan_blocks + p.lane_count * shape.copy_blocks;
  LaunchShape launch_shape;
  launch_shape.cluster = shape.finish_rows > 0 ? shape.cluster : 1;
  launch_shape.grid = static_cast<unsigned>((blocks + shape.cluster - 1) / shape.cluster * shape.cluster);
  launch_shape.block = static_cast<unsigned>(shape.warps * 32);
  launch_shape.shared_bytes = static_cast<std::size_t>(SharedLayout(p, shape).bytes);
  const auto kernel = p.lane_elements == 32  ? run_window_rows<32, false>
                      : p.lane_elements == 8 ? (prepares ? run_window_rows<8, true> : run_window_rows<8, false>)
                                             : (prepares ? run_window_rows<16, true> : run_window_rows<16, false>);
  launch(context, "the recurrence of a Gated DeltaNet layer", kernel, launch_shape, p, shape);
  return shape.finish_rows > 0;
}

}  // namespace tensorfold::ops::cuda::delta
