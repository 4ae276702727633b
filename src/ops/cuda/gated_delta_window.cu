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
// A decode pass launches this once a layer for a row or two, and between two launches other kernels have filled the SM's
// instruction cache: each instruction is fetched from afar, once. So what a launch executes is kept short: one loop runs over
// all rows of a lane, what threads of a warp can compute side by side is not unrolled (addresses of rows), and what the host
// knows comes as a parameter.
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
constexpr int kPartsOfRow = 3;              // q, k and v of a head
constexpr int kPreparedRows = 1;            // of a lane: with more a launch of many CTAs prepares them sooner
constexpr int kPreparingCtasPerSm = 2;
constexpr int kPrefetchFloats = 16;         // of a thread: eight threads have a row of 128

/// Shared memory of a CTA; every part begins at a multiple of 16 bytes.
struct SharedLayout {
  std::int32_t keys, values, gates, outputs, z, weight, steps, saved, bytes;
};

struct WindowShape {
  std::int32_t cluster;      // CTAs of a head, 1 << cluster_bits
  std::int32_t cluster_bits;
  std::int32_t warps;        // of a CTA
  std::int32_t heads_per_key;
  std::int32_t scan_blocks;  // CTAs of the recurrence; the others copy
  std::int32_t copy_blocks;  // of a lane; together their threads cover the channels
  std::int32_t finish_rows;  // rows that a CTA finishes at most; 0: outputs go to the working rows
  bool saves_states;         // there may be trees
  SharedLayout shared;
  std::uint32_t* readers;    // [2][lanes]: CTAs that have read what copying overwrites, CTAs that have copied; null: nobody waits
};

/// One visit of a tree's row.
struct WalkStep {
  std::int8_t row;
  std::int8_t load;  // saved state that the row starts from; -1: the state of the step before
  std::int8_t save;  // where the state after the row is kept for its later children; -1: nowhere
};

SharedLayout shared_layout(const Params& p, const WindowShape& shape) {
  const int columns = shape.warps * kColumnsPerWarp, padded = p.v_padded();
  SharedLayout layout = {};
  const auto take = [&layout](int bytes) {
    const int place = layout.bytes;
    layout.bytes += (bytes + 15) / 16 * 16;
    return place;
  };
  layout.keys = take(kTileRows * 2 * p.k_padded() * 2);
  layout.values = take(kTileRows * columns * 4);
  layout.gates = take(kTileRows * 8);
  layout.outputs = take(shape.finish_rows * padded * 4);
  layout.z = take(shape.finish_rows * padded * 4);
  layout.weight = take(shape.finish_rows > 0 ? padded * 4 : 0);
  layout.steps = take(kWindowRows * static_cast<int>(sizeof(WalkStep)));
  layout.saved = take(shape.saves_states ? kSavedStates * shape.warps * 32 * p.lane_elements * 4 : 0);
  return layout;
}

// --- Clusters. Without them (cluster of 1) the CTA's own barrier does. "aligned" asks that a warp's threads come together;
// where some of them were on a way of their own just before, nothing else makes them.

/// Says that this CTA runs, not what it wrote.
__device__ __forceinline__ void cluster_announce() {
  __syncwarp();
#if __CUDA_ARCH__ >= 900
  cluster_arrive_relaxed();
#endif
}
__device__ __forceinline__ void cluster_arrive() {
  __syncwarp();
#if __CUDA_ARCH__ >= 900
  cluster_arrive_release();
#endif
}
__device__ __forceinline__ void cluster_wait() {
  __syncwarp();
#if __CUDA_ARCH__ >= 900
  cluster_wait_acquire();
#endif
}
/// Writes to the same place of another CTA's shared memory.
__device__ __forceinline__ void store_remote(float* shared, int rank, float value) {
#if __CUDA_ARCH__ >= 900
  store_in_cluster(cluster_address(shared_address(shared), rank), value);
#endif
}

/// Brings kPrefetchFloats floats from `row` on into the second-level cache.
__device__ __forceinline__ void prefetch(const float* row) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(row));
  asm volatile("prefetch.global.L2 [%0];" ::"l"(row + kPrefetchFloats / 2));
}

/// Adds one; what the CTA did before its last barrier comes before it. Cheaper than a fence that orders everything.
__device__ __forceinline__ void count_release(std::uint32_t* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

/// What thread `source` of the warp has; in global memory, which the compiler wouldn't know otherwise.
__device__ __forceinline__ const float* pointer_of(const float* mine, int source) {
  return static_cast<const float*>(__cvta_global_to_generic(__shfl_sync(~0u, __cvta_generic_to_global(mine), source)));
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
  __device__ WindowRun(const Params& p, const WindowShape& shape, char* shared) : p_(p), shape_(shape), shared_(shared) {
    const unsigned head_of_pass = blockIdx.x >> shape.cluster_bits, v_heads = static_cast<unsigned>(p.geometry.v_heads);
    rank_ = static_cast<int>(blockIdx.x) & (shape.cluster - 1);
    lane_index_ = static_cast<int>(head_of_pass / v_heads);
    head_ = static_cast<int>(head_of_pass) - lane_index_ * p.geometry.v_heads;
    key_head_ = static_cast<int>(static_cast<unsigned>(head_) / static_cast<unsigned>(shape.heads_per_key));
    lane_ = pass_lanes(p.lanes)[lane_index_];
    warp_ = static_cast<int>(threadIdx.x / 32);
    thread_ = static_cast<int>(threadIdx.x % 32);
    group_ = rank_ * shape.warps + warp_;
    is_active_ = group_ < p.column_groups;
  }

  __device__ void run() {
    if (lane_.row_count > kWindowRows || lane_.row_count + lane_.replay_count == 0) return wait_for_previous();
    if (lane_.parents >= 0 && threadIdx.x == 0) {
      plan_walk(pass_words(p_.lanes.header) + lane_.parents, lane_.row_count, part<WalkStep>(shape_.shared.steps));
    }
    float* stored = state_of(p_, slot_of(p_, lane_), head_, group_);
    float state[kElements] = {};
    if (is_active_) load_state(stored, thread_, state);
    if (meets()) cluster_announce();  // then others may write to my shared memory
    if constexpr (!kPrepares) {
      wait_for_previous();
      stage_finish();
    }
    // Tiles of replayed rows, and the last one, which has all rows of the pass.
#pragma unroll 1
    for (int first = 0;; first += kWindowRows) {
      const bool is_last = lane_.replay_count - first <= kWindowRows;
      const int count = is_last ? lane_.replay_count + lane_.row_count - first : kWindowRows;
      if constexpr (kPrepares) {
        prepare_tile(first, count, is_last);
      } else {
        stage(first, count);
      }
      if (is_last) begin_last_tile();
      if (is_active_) run_tile(first, count, stored, state);
      if (is_last) break;
      __syncthreads();
    }
    if (shape_.finish_rows > 0) finish_rows();
  }

 private:
  __device__ void begin_last_tile() {
    if (kPrepares && threadIdx.x == 0) count_release(shape_.readers + lane_index_);  // what copying overwrites has been read
    if (meets()) cluster_wait();
  }

  /// Prepares `count` rows of the sequence from `first` on. Chains only. The last tile waits for the kernel before.
  __device__ void prepare_tile(int first, int count, bool waits) {
    const int tasks = count * kPartsOfRow;
    int task = warp_;
#pragma unroll 1
    do {
      RowPart mine(*this, first, min(task, tasks - 1));
      const bool is_first = task == warp_;
      if (is_first && waits) wait_for_previous();
      if (task < tasks) mine.load(*this);
      if (is_first) {  // while the inputs are on their way
        if (waits) stage_finish();
        prepare_gates(first, count);
      }
      if (task < tasks) mine.store(*this, first);
      task += shape_.warps;
    } while (task < tasks);
    if (waits) {
      commit_copies();
      wait_copies<0>();
    }
    __syncthreads();
  }

  /// From the last thread down: the last warps have least to do.
  __device__ void prepare_gates(int first, int count) {
    const int row = static_cast<int>(blockDim.x) - 1 - static_cast<int>(threadIdx.x);
    if (row >= count) return;
    part<float2>(shape_.shared.gates)[row] =
        gates_of(p_, lane_, slot_of(p_, lane_), first + row, head_, p_.decay[head_], p_.dt_bias[head_]);
  }

  /// A head's q, k or v of one row on its way through a warp.
  struct RowPart {
    /// Of task `task` of the rows from `first` on in the sequence.
    __device__ RowPart(const WindowRun& run, int first, int task) : at(first + task / kPartsOfRow) {
      const GatedDeltaGeometry& g = run.p_.geometry;
      const int part = task % kPartsOfRow;
      const int values_begin = 2 * g.k_heads * g.k_dim;
      head.kind = static_cast<Head::Kind>(part);
      head.index = part == Head::kValue ? run.head_ : run.key_head_;
      head.width = part == Head::kValue ? g.v_dim : g.k_dim;
      head.first_channel = head.index * head.width + (part == Head::kValue ? values_begin : part * g.k_heads * g.k_dim);
      weights.load(run.p_, head, 4 * run.thread_);
      const int from = at - (kPreparedTaps - 1) + run.thread_ % kPreparedTaps;
      my_input = input_row(run.p_, run.lane_, slot_of(run.p_, run.lane_), max(from, at - run.p_.tail_rows)) +
                 head.first_channel;
      // What lies in the slot is there before the wait, but far away.
      const int piece = run.thread_ / kPreparedTaps * kPrefetchFloats;
      if (from < run.lane_.replay_count && piece + kPrefetchFloats <= head.width) prefetch(my_input + piece);
    }
    __device__ void load(const WindowRun& run) {
      const float* rows[kPreparedTaps];
#pragma unroll
      for (int j = 0; j < kPreparedTaps; ++j) rows[j] = pointer_of(my_input, j);
      const int first = 4 * run.thread_, missing = kPreparedTaps - run.p_.geometry.conv_kernel;
      if (missing == 0 && run.p_.vectors && first < head.width) {
#pragma unroll
        for (int j = 0; j < kPreparedTaps; ++j) x[j] = *reinterpret_cast<const float4*>(rows[j] + first);
        return;
      }
#pragma unroll
      for (int j = 0; j < kPreparedTaps; ++j) {
        x[j] = j < missing ? float4{} : load_four(rows[j], first, head.width, run.p_.vectors);
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
      run.template part<float4>(run.shape_.shared.values)[(at - first) * run.shape_.warps + group] = y[0];
    }

    int at;
    Head head;
    TapWeights<kPreparedTaps> weights;
    const float* my_input;  // the row of inputs of tap `thread % kPreparedTaps`
    float4 x[kPreparedTaps];
  };

  /// Whether the head's CTAs are a cluster.
  __device__ bool meets() const { return shape_.cluster > 1 && shape_.finish_rows > 0; }

  template <typename T>
  __device__ T* part(int offset) const {
    return reinterpret_cast<T*>(shared_ + offset);
  }
  __device__ const std::uint16_t* key_row(int row, int which) const {
    return part<std::uint16_t>(shape_.shared.keys) + (row * 2 + which) * 8 * kElements;
  }

  /// Brings `count` rows of the sequence from `at` on into shared memory; a warp brings a row.
  __device__ void stage(int at, int count) {
    constexpr int kPieces = 2 * kElements;  // of 16 bytes: q and k
    const int group = rank_ * shape_.warps + thread_;
#pragma unroll 1
    for (int row = warp_; row < count; row += shape_.warps) {
      const std::int64_t from = working_row(p_, lane_, lane_index_, at + row);
      const std::uint16_t* keys = p_.keys + (from * p_.geometry.k_heads + key_head_) * kPieces * 8;
#pragma unroll
      for (int piece = thread_; piece < kPieces; piece += 32) {
        copy_async<16>(part<char>(shape_.shared.keys) + (row * kPieces + piece) * 16, keys + piece * 8);
      }
      const std::int64_t of_head = from * p_.geometry.v_heads + head_;
      if (thread_ < shape_.warps && group < p_.column_groups) {
        copy_async<16>(part<float4>(shape_.shared.values) + row * shape_.warps + thread_,
                       p_.values + of_head * p_.v_padded() + group * kColumnsPerWarp);
      }
      if (thread_ == 0) copy_async<8>(part<float2>(shape_.shared.gates) + row, p_.gates + of_head);
    }
    commit_copies();
    wait_copies<0>();
    __syncthreads();
  }

  /// What finishing the CTA's rows takes besides their outputs.
  __device__ void stage_finish() {
    if (shape_.finish_rows == 0 || rank_ >= lane_.row_count) return;
    const int v_dim = p_.geometry.v_dim;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < v_dim; i += static_cast<int>(blockDim.x)) {
      copy_async<4>(part<float>(shape_.shared.weight) + i, p_.norm_weight + i);
      float* z = part<float>(shape_.shared.z) + i;
#pragma unroll 1
      for (int row = rank_; row < lane_.row_count; row += shape_.cluster, z += p_.v_padded()) {
        copy_async<4>(z, z_row(row) + i);
      }
    }
  }
  __device__ const float* z_row(int row) const {
    return p_.projected + static_cast<std::int64_t>(lane_.first_row + row) * p_.stride + p_.z_offset +
           head_ * p_.geometry.v_dim;
  }

  __device__ float value(int row) const {
    return part<float>(shape_.shared.values)[row * shape_.warps * kColumnsPerWarp + warp_ * kColumnsPerWarp + thread_ / 8];
  }

  /// Advances the state by the tile's rows, puts the outputs of those that are the pass's, and stores the state in the slot
  /// where what is settled ends: after the replayed rows, or after all. Row `first` of the sequence is the tile's first. One
  /// loop, so that a decode pass's replayed rows and its own run the same instructions.
  __device__ void run_tile(int first, int count, float* stored, float (&state)[kElements]) {
    const int replays = lane_.replay_count - first;  // the pass's rows come after them
    const int settled = lane_.commits ? replays + lane_.row_count : lane_.replay_count > 0 ? replays : -1;
#pragma unroll 1
    for (int at = 0;; ++at) {
      if (at == settled) store_state(stored, thread_, state);
      if (at == count) return;
      const bool is_of_pass = at >= replays;
      int row = at, save_at = -1;
      if (is_of_pass && lane_.parents >= 0) {
        const WalkStep visit = part<WalkStep>(shape_.shared.steps)[at - replays];  // written before stage()'s barrier
        if (visit.load >= 0) load_saved(visit.load, state);
        row = replays + visit.row;
        save_at = visit.save;
      }
      float k[kElements];
      load_keys(key_row(row, 1), thread_ % 8, k);
      advance(state, k, part<float2>(shape_.shared.gates)[row], value(row));
      if (!is_of_pass) continue;
      float q[kElements];
      load_keys(key_row(row, 0), thread_ % 8, q);
      put_output(row - replays, add_lanes(output_share(state, q)));
      if (save_at >= 0) save(save_at, state);
    }
  }

  __device__ void put_output(int row, float output) {
    if (thread_ % 8 != 0) return;
    const int column = group_ * kColumnsPerWarp + thread_ / 8;
    if (shape_.finish_rows == 0) {
      const std::int64_t working = p_.replay_rows() + lane_.first_row + row;
      p_.values[(working * p_.geometry.v_heads + head_) * p_.v_padded() + column] = output;
      return;
    }
    float* place = part<float>(shape_.shared.outputs) + (row >> shape_.cluster_bits) * p_.v_padded() + column;
    if (meets()) {
      store_remote(place, row & (shape_.cluster - 1), output);
    } else {
      *place = output;
    }
  }

  // Trees: states that later children start from, in shared memory.

  __device__ float4* saved_state(int index) const {
    return part<float4>(shape_.shared.saved) + index * (kElements / 4) * static_cast<int>(blockDim.x) + threadIdx.x;
  }
  __device__ void load_saved(int index, float (&state)[kElements]) const {
    const float4* saved = saved_state(index);
#pragma unroll
    for (int i = 0; i < kElements / 4; ++i) {
      const float4 x = saved[i * static_cast<int>(blockDim.x)];
      state[4 * i] = x.x;
      state[4 * i + 1] = x.y;
      state[4 * i + 2] = x.z;
      state[4 * i + 3] = x.w;
    }
  }
  __device__ void save(int index, const float (&state)[kElements]) const {
    float4* saved = saved_state(index);
#pragma unroll
    for (int i = 0; i < kElements / 4; ++i) {
      saved[i * static_cast<int>(blockDim.x)] =
          make_float4(state[4 * i], state[4 * i + 1], state[4 * i + 2], state[4 * i + 3]);
    }
  }

  __device__ void finish_rows() {
    if (meets()) {
      cluster_arrive();
      cluster_wait();
    } else {
      __syncthreads();
    }
#pragma unroll 1
    for (int mine = warp_;; mine += shape_.warps) {
      const int row = (mine << shape_.cluster_bits) + rank_;
      if (row >= lane_.row_count) return;
      const std::int64_t out = (static_cast<std::int64_t>(lane_.first_row + row) * p_.geometry.v_heads + head_) *
                               p_.geometry.v_dim;
      gated_norm<true>(p_, part<float>(shape_.shared.outputs) + mine * p_.v_padded(),
                       part<float>(shape_.shared.z) + mine * p_.v_padded(), part<float>(shape_.shared.weight), p_.out + out,
                       thread_);
    }
  }

  const Params& p_;
  const WindowShape& shape_;
  char* shared_;
  DeviceLane lane_;
  int rank_, head_, key_head_, lane_index_, warp_, thread_, group_;
  bool is_active_;
};

/// Tail and window of one lane; a thread has four channels, or one where they aren't aligned.
template <typename Vector>
__device__ void copy_channels(const Params& p, const DeviceLane& lane, int thread_of_lane) {
  const int c = thread_of_lane * static_cast<int>(sizeof(Vector) / 4);
  const bool is_channel = c < p.channels;
  const auto at = [](auto* place) { return reinterpret_cast<Vector*>(const_cast<float*>(place)); };
  float* slot = slot_of(p, lane);
  const int committed = lane.replay_count + (lane.commits ? lane.row_count : 0);
  if (committed > 0) {
    // Thread j of a warp finds the row that becomes row j of the tail.
    const int mine = min(static_cast<int>(threadIdx.x % 32), p.tail_rows - 1);
    const float* my_input = input_row(p, lane, slot, committed - p.tail_rows + mine);
    Vector rows[kTailRowsMax];
#pragma unroll
    for (int j = 0; j < kTailRowsMax; ++j) {
      if (j == p.tail_rows) break;
      const float* input = pointer_of(my_input, j);
      if (is_channel) rows[j] = *at(input + c);
    }
    float* tail = slot + p.tail + c;
#pragma unroll
    for (int j = 0; j < kTailRowsMax; ++j) {
      if (j == p.tail_rows) break;
      if (is_channel) *at(tail) = rows[j];
      tail += p.channels;
    }
  }
  if (lane.commits || !is_channel) return;
  const float* input = p.projected + static_cast<std::int64_t>(lane.first_row) * p.stride + p.qkv_offset + c;
  float* window = slot + p.window + c;
  int left = lane.row_count;
#pragma unroll 1
  for (; left >= 4; left -= 4) {  // four loads at a time are on their way
    Vector rows[4];
#pragma unroll
    for (int i = 0; i < 4; ++i, input += p.stride) rows[i] = *at(input);
#pragma unroll
    for (int i = 0; i < 4; ++i, window += p.window_stride) *at(window) = rows[i];
  }
#pragma unroll 1
  for (; left > 0; --left, input += p.stride, window += p.window_stride) *at(window) = *at(input);
}

/// Returns when every CTA of the lane has read the slot; the last one of those that copy leaves zeros.
__device__ void wait_for_readers(const Params& p, const WindowShape& shape, int lane_index) {
  if (threadIdx.x == 0) {
    std::uint32_t* readers = shape.readers + lane_index;
    std::uint32_t* copied = readers + p.lane_count;
    const auto expected = static_cast<std::uint32_t>(p.geometry.v_heads * shape.cluster);
    while (load_acquire(readers) != expected) __nanosleep(40);
    if (atomicAdd(copied, 1u) + 1 == static_cast<std::uint32_t>(shape.copy_blocks)) {
      *readers = 0;
      *copied = 0;
    }
  }
  __syncthreads();
}

__device__ void copy_inputs(const Params& p, const WindowShape& shape, int block) {
  const int lane_index = static_cast<int>(static_cast<unsigned>(block) / static_cast<unsigned>(shape.copy_blocks));
  if (lane_index >= p.lane_count) return wait_for_previous();
  const DeviceLane lane = pass_lanes(p.lanes)[lane_index];
  wait_for_previous();
  if (lane.row_count + lane.replay_count == 0) return;
  if (shape.readers != nullptr) wait_for_readers(p, shape, lane_index);
  const int first = (block - lane_index * shape.copy_blocks) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  const int step = shape.copy_blocks * static_cast<int>(blockDim.x);
  if (p.vectors) {
    copy_channels<float4>(p, lane, first);
  } else {
    copy_channels<float>(p, lane, first);
  }
  if (lane.commits) return;
  const int v_heads = p.geometry.v_heads;
  float* window = slot_of(p, lane) + p.window + p.channels;
#pragma unroll 1
  for (int i = first; i < lane.row_count * v_heads; i += step) {
    const int row = static_cast<int>(static_cast<unsigned>(i) / static_cast<unsigned>(v_heads)), head = i - row * v_heads;
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
  while ((!meets || 1 << shape.cluster_bits < kClusterMax) && warps << shape.cluster_bits < p.column_groups) {
    ++shape.cluster_bits;
  }
  shape.cluster = 1 << shape.cluster_bits;
  shape.warps = (p.column_groups + shape.cluster - 1) / shape.cluster;
  shape.heads_per_key = p.geometry.v_heads / p.geometry.k_heads;
  shape.finish_rows = (std::clamp(lanes.rows_max, 1, kWindowRows) + shape.cluster - 1) / shape.cluster;
  if (!meets && shape.cluster > 1) shape.finish_rows = 0;
  TF_ASSERT(shape.warps * 32 <= kThreadsMax && shape.cluster * shape.warps >= p.column_groups);
  const int per_thread = p.vectors ? 4 : 1;
  shape.copy_blocks = (p.channels + per_thread * shape.warps * 32 - 1) / (per_thread * shape.warps * 32);
  shape.scan_blocks = p.lane_count * p.geometry.v_heads * shape.cluster;
  shape.saves_states = lanes.any_tree;
  shape.shared = shared_layout(p, shape);
  return shape;
}

/// Few heads: clusters, so that a head is spread over SMs and yet finished by this launch. Where heads fill the card anyway,
/// clusters hold CTAs up, and the norm in a launch of its own costs less; nor do they exist on every GPU, and on some their
/// wider CTAs lack the shared memory.
WindowShape window_shape(const CudaContext& context, const Params& p, const Lanes& lanes) {
  const DeviceFacts& facts = context.facts();
  if (facts.compute_capability >= 90 && p.lane_count * p.geometry.v_heads <= facts.sm_count) {
    const WindowShape shape = window_shape(p, lanes, true);
    if (shape.shared.bytes <= facts.shared_bytes_max) return shape;
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
  launch_shape.shared_bytes = static_cast<std::size_t>(shape.shared.bytes);
  const auto kernel = p.lane_elements == 32  ? run_window_rows<32, false>
                      : p.lane_elements == 8 ? (prepares ? run_window_rows<8, true> : run_window_rows<8, false>)
                                             : (prepares ? run_window_rows<16, true> : run_window_rows<16, false>);
  launch(context, "the recurrence of a Gated DeltaNet layer", kernel, launch_shape, p, shape);
  return shape.finish_rows > 0;
}

}  // namespace tensorfold::ops::cuda::delta
