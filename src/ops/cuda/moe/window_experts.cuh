// The kernel behind window_experts.h.
//
// One CTA an SM, all of them resident. Phases:
//   plan       every CTA routes the rows and makes the same plan for itself, or reads the one that routing.cu made. While a
//              few warps route, the others multiply gate and up of the shared expert, which no routing decides: its weights
//              are asked for before the launch waits for the one before it
//   gate, up   the tiles of all items are dealt out in equal runs; a tile of 16 weight rows is 8 of gate and the 8 of up that
//              belong to them, so that one thread holds both. Four or eight warps share a tile's segments and hand them over
//              in shared memory; the item's rows of x lie there, too, doubly buffered
//   barrier    of the grid. Weights keep streaming: a warp's ring already holds blocks of down
//   down       a CTA computes 16 columns for every item, so that all that a row's residual needs ends up in its own memory
//   combine    in slot order
// Weights come by 16-byte copies into a ring of each warp's own: no barrier between who asks and who reads.
//
// Slots in this kernel: slots_per_row a row, its choices and then the shared expert. Items of the shared expert come first in
// the plan, since they are known before the routing.
//
// `inner`, what gate and up leave for down, is in the order in which down's fragments want it: of each block of 128 columns a
// lane's 32 (k = 16·j + 8·p + 2·t + b) are consecutive, at 32·t + 4·j + 2·p + b.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/activation.cuh"
#include "ops/cuda/instructions.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear/dequantise.cuh"
#include "ops/cuda/moe/block_copy.cuh"
#include "ops/cuda/moe/segment_sum.cuh"
#include "ops/cuda/moe/window_experts.h"
#include "ops/cuda/moe/window_plan.cuh"

namespace tensorfold::ops::cuda::experts {

/// Half-open run of tiles (of all items one after the other) that belong to this CTA.
struct TileRun {
  std::int32_t begin, end, tiles_per_item, first, last;
  /// Few divisions: every launch waits for this.
  __device__ TileRun(int items, int tiles) : tiles_per_item(tiles) {
    const unsigned all = items * tiles, each = all / gridDim.x, extra = all - each * gridDim.x;
    begin = static_cast<std::int32_t>(blockIdx.x * each + min(blockIdx.x, extra));
    end = begin + static_cast<std::int32_t>(each + (blockIdx.x < extra ? 1 : 0));
    first = static_cast<std::int32_t>(static_cast<unsigned>(begin) / static_cast<unsigned>(tiles));
    last = empty() ? first : static_cast<std::int32_t>(static_cast<unsigned>(end - 1) / static_cast<unsigned>(tiles)) + 1;
  }
  __device__ bool empty() const { return begin == end; }
  __device__ int first_item() const { return first; }
  __device__ int end_item() const { return last; }
  __device__ int first_tile(int item) const { return max(begin - item * tiles_per_item, 0); }
  __device__ int end_tile(int item) const { return min(end - item * tiles_per_item, tiles_per_item); }
};

/// One warp's blocks in the order in which it multiplies them: of its tiles of gate and up, then of its units of down. The
/// warp asks for them some stages ahead of using them.
class BlockCursor {
 public:
  __device__ BlockCursor(const WindowExperts& e, const WindowLaunch& launch, const WindowItem* items, int item_count,
                         const TileRun& run, int warp)
      : e_(e), launch_(launch), items_(items), item_count_(item_count), run_(run) {
    const int place = warp & ((1 << launch.sharing_shift) - 1);
    tile_slots_ = kWindowWarps >> launch.sharing_shift;
    slot_ = warp >> launch.sharing_shift;
    const int first = place * e.gate_up.segments >> launch.sharing_shift;
    const int end = (place + 1) * e.gate_up.segments >> launch.sharing_shift;
    first_block_ = first * e.gate_up.segment_blocks;
    blocks_ = min(end * e.gate_up.segment_blocks, e.gate_up.k_blocks) - first_block_;
    end_item_ = run.end_item();
    item_ = launch.gate_up && blocks_ > 0 ? run.first_item() : end_item_;
    tile_ = run.first_tile(item_) + slot_ - tile_slots_;
    down_tile_ = launch.down && item_count > 0 ? static_cast<int>(blockIdx.x) : e.down.tiles;
    unit_ = warp - kWindowWarps;
    warp_ = warp;
  }

  __device__ int block_bytes() const { return block_bytes_; }
  /// Null when there are no more.
  __device__ const std::uint8_t* next() {
    if (left_ == 0 && item_ < end_item_) start_tile();
    if (left_ == 0 && down_tile_ < e_.down.tiles) start_unit();
    if (left_ == 0) return nullptr;
    --left_;
    const std::uint8_t* block = block_;
    block_ += block_bytes_;
    return block;
  }

 private:
  __device__ void start_tile() {
    tile_ += tile_slots_;
    while (item_ < end_item_ && tile_ >= run_.end_tile(item_)) {
      ++item_;
      tile_ = run_.first_tile(item_) + slot_;
    }
    if (item_ >= end_item_) return;
    const PackedPart& part = e_.gate_up;
    block_bytes_ = part.block_bytes;
    block_ = part.blocks + items_[launch_.shared_items + item_].expert() * part.expert_bytes +
             static_cast<std::int64_t>(tile_ * part.k_blocks + first_block_) * block_bytes_;
    left_ = blocks_;
  }
  __device__ void start_unit() {
    unit_ += kWindowWarps;
    const PackedPart& part = e_.down;
    if (unit_ >= item_count_ << launch_.units_shift) {
      down_tile_ += gridDim.x;
      unit_ = warp_;
      if (unit_ >= item_count_ << launch_.units_shift) down_tile_ = part.tiles;
    }
    if (down_tile_ >= part.tiles) return;
    const int item = unit_ >> launch_.units_shift;
    const int first = (unit_ - (item << launch_.units_shift)) * launch_.unit_segments * part.segment_blocks;
    block_bytes_ = part.block_bytes;
    const std::uint8_t* expert =
        item < launch_.shared_items ? e_.shared_down : part.blocks + items_[item].expert() * part.expert_bytes;
    block_ = expert + static_cast<std::int64_t>(down_tile_ * part.k_blocks + first) * block_bytes_;
    left_ = min(launch_.unit_segments * part.segment_blocks, part.k_blocks - first);
  }

  const WindowExperts& e_;
  const WindowLaunch& launch_;
  const WindowItem* items_;
  int item_count_;
  TileRun run_;
  int tile_slots_, slot_, first_block_, blocks_, item_, end_item_, tile_, down_tile_, unit_, warp_;
  int left_ = 0;
  int block_bytes_ = 0;
  const std::uint8_t* block_ = nullptr;
};

/// A block in registers.
template <typename F>
struct HeldBlock {
  HalfCodes<F> codes[2];
  HalfScales<F> scales[2];
};

template <typename F>
__device__ __forceinline__ HeldBlock<F> read_block(std::uint32_t stage, const PackedPart& part) {
  const int lane = threadIdx.x & 31;
  HeldBlock<F> held;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    held.codes[half] = load_codes<F>(SharedBlock{stage}, half, lane);
    held.scales[half] = load_scales<F>(SharedBlock{stage}, part, half, lane);
  }
  return held;
}

/// A warp's ring of blocks, filled ahead in the cursor's order.
template <typename F, int stages>
class BlockRing {
 public:
  __device__ BlockRing(std::uint32_t base, int stage_bytes, const BlockCursor& cursor)
      : cursor_(cursor),
        policy_(policy_read_once()),
        base_(base),
        end_(base + stages * stage_bytes),
        read_(base),
        stage_bytes_(stage_bytes) {}

  __device__ __forceinline__ void fill() {
#pragma unroll 1
    for (std::uint32_t stage = base_; stage != end_; stage += stage_bytes_) ask(stage);
  }

  /// The next block; its place in the ring is asked for again at once.
  __device__ __forceinline__ HeldBlock<F> take(const PackedPart& part) {
    wait_copies<stages - 1>();
    __syncwarp();
    const HeldBlock<F> held = read_block<F>(read_, part);
    __syncwarp();
    ask(read_);
    read_ += stage_bytes_;
    if (read_ == end_) read_ = base_;
    return held;
  }

 private:
  __device__ __forceinline__ void ask(std::uint32_t stage) {
    const std::uint8_t* block = cursor_.next();
    if (block != nullptr) copy_block<F>(stage, block, cursor_.block_bytes(), policy_);
    commit_copies();
  }

  BlockCursor cursor_;
  std::uint64_t policy_;
  std::uint32_t base_, end_, read_;
  int stage_bytes_;
};

// --- gate, up ---------------------------------------------------------------------------------------------------------

/// Rows of x in two buffers of [64 columns' groups][8 rows][128 bytes], 16-byte chunk c of row r at c ^ r, so that ldmatrix
/// meets every bank once. A launch that routes holds all its rows there, row r at place r % 8 of buffer r / 8, and asks for
/// them once; otherwise the buffers take turns with the rows of the items at hand.
class ItemRows {
 public:
  __device__ ItemRows(const WindowExperts& e, const WindowLaunch& launch, const WindowPlan& plan, std::uint32_t buffers,
                      std::uint32_t barriers)
      : e_(e), launch_(launch), plan_(plan), buffers_(buffers), barriers_(barriers) {}

  /// All threads: copies of every row.
  __device__ __forceinline__ void ask_all() {
#pragma unroll 1
    for (int row = first_row(); row < e_.routing.rows; row += kWindowItemRows) copy_row(row, row);
    barrier_arrive_after_copies(barriers_);
  }
  __device__ __forceinline__ void wait_all() const { barrier_wait(barriers_, 0); }
  /// This lane's address for ldmatrix: its row of the item (lanes beyond the item's rows take the first).
  __device__ __forceinline__ std::uint32_t lane_row(WindowItem item) const {
    const int g = threadIdx.x & 7;
    return lane_place(plan_.slots[item.begin() + (g < item.count() ? g : 0)] / launch_.slots_per_row);
  }

  /// All threads: copies of item `item` into buffer `turn & 1`.
  __device__ __forceinline__ void ask(int item, int turn) {
    const int place = first_row();
    const WindowItem facts = plan_.items[item];
    if (place < facts.count()) {
      copy_row(plan_.slots[facts.begin() + place] / launch_.slots_per_row, (turn & 1) * kWindowItemRows + place);
    }
    barrier_arrive_after_copies(barriers_ + 8 * (turn & 1));
  }
  /// This lane's address for ldmatrix, once the copies have landed.
  __device__ __forceinline__ std::uint32_t wait(int turn) const {
    barrier_wait(barriers_ + 8 * (turn & 1), turn >> 1 & 1);
    return lane_place((turn & 1) * kWindowItemRows + (threadIdx.x & 7));
  }

 private:
  __device__ static int first_row() { return (threadIdx.x >> 5) % kWindowItemRows; }
  /// Where place `place` (of both buffers) begins.
  __device__ __forceinline__ std::uint32_t row_at(int place) const {
    return buffers_ + place / kWindowItemRows * (e_.gate_up.k_blocks * 2048) + place % kWindowItemRows * 128;
  }
  __device__ __forceinline__ std::uint32_t lane_place(int place) const {
    return row_at(place) + (((threadIdx.x >> 3 & 3) ^ (place & 7)) << 4);
  }
  __device__ __forceinline__ void copy_row(int row, int place) const {
    const int columns = e_.gate_up.columns;
    const std::uint16_t* source = e_.x + static_cast<std::int64_t>(row) * columns;
    const std::uint32_t target = row_at(place);
#pragma unroll 1
    for (int chunk = threadIdx.x / 32 / kWindowItemRows * 32 + (threadIdx.x & 31); chunk < e_.gate_up.k_blocks * 16;
         chunk += kWindowThreads / kWindowItemRows) {
      const int bytes = min(max(columns - chunk * 8, 0), 8) * 2;
      copy_16_padded(target + (chunk >> 3) * 1024 + (((chunk & 7) ^ (place & 7)) << 4), bytes > 0 ? source + chunk * 8 : source,
                    bytes);
    }
  }

  const WindowExperts& e_;
  const WindowLaunch& launch_;
  const WindowPlan& plan_;
  std::uint32_t buffers_, barriers_;
};
static_assert(kWindowWarps % kWindowItemRows == 0 && kWindowItemRows == 8);

/// sum += a block times the rows whose 128 columns begin at `rows` (this lane's address for ldmatrix).
template <typename F>
__device__ __forceinline__ void multiply_block(float (&sum)[4], const HeldBlock<F>& block, std::uint32_t rows) {
  std::uint32_t b[4][4];  // read at once, so that no product waits for its own
#pragma unroll
  for (int i = 0; i < 4; ++i) load_matrices((rows + (i >> 1) * 1024) ^ (i & 1) * 64u, b[i]);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t a[4];
    fragment<F, 0>(block.codes[half], block.scales[half], a);
    mma(sum, a, b[2 * half][0], b[2 * half][1]);
    fragment<F, 1>(block.codes[half], block.scales[half], a);
    mma(sum, a, b[2 * half][2], b[2 * half][3]);
    fragment<F, 2>(block.codes[half], block.scales[half], a);
    mma(sum, a, b[2 * half + 1][0], b[2 * half + 1][1]);
    fragment<F, 3>(block.codes[half], block.scales[half], a);
    mma(sum, a, b[2 * half + 1][2], b[2 * half + 1][3]);
  }
}

/// Where column `column` of a row lies in `inner`.
__device__ __forceinline__ int inner_place(int column) {
  const int j = column >> 4 & 7, p = column >> 3 & 1, t = column >> 1 & 3, b = column & 1;
  return (column & ~127) + 32 * t + 4 * j + 2 * p + b;
}

/// Writes what a finished tile holds: 8 columns of the item's rows.
__device__ __forceinline__ void write_inner(const WindowExperts& e, const WindowLaunch& launch, const WindowPlan& plan,
                                            WindowItem item, int tile, const float (&sum)[4]) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const std::int64_t stride = e.down.k_blocks * kBlockColumns;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * t + i;
    if (row >= item.count()) continue;
    const float value = activate(e.kind, sum[i]) * sum[2 + i];
    launch.inner[plan.slots[item.begin() + row] * stride + inner_place(tile * 8 + g)] =
        __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
  if (tile != e.gate_up.tiles - 1) return;
  // Columns that only pad down's last block.
#pragma unroll 1
  for (int row = 0; row < item.count(); ++row) {
#pragma unroll 1
    for (int column = e.down.columns + lane; column < stride; column += 32) {
      launch.inner[plan.slots[item.begin() + row] * stride + inner_place(column)] = 0;
    }
  }
}

/// The sum of a tile's segments that its warps handed over, [segment][lane].
__device__ __forceinline__ void add_handed(const PackedPart& part, const float4* handed, CarriedSegmentSum<4>& total) {
  float4 sums[kSegmentsMax];
#pragma unroll
  for (int segment = 0; segment < kSegmentsMax; ++segment) sums[segment] = handed[segment * 32];
#pragma unroll
  for (int segment = 0; segment < kSegmentsMax; ++segment) {
    if (segment >= part.segments) break;
    float sum[4] = {sums[segment].x, sums[segment].y, sums[segment].z, sums[segment].w};
    total.add(segment, part.segment_tree != 0, sum);
  }
}

/// Gate and up of the shared expert: its tiles are dealt out in equal runs, too, and a warp multiplies one segment of each.
/// The rings are free yet; a segment's blocks come in batches of one ring.
template <typename F, int stages>
class SharedGateUp {
 public:
  __device__ SharedGateUp(const WindowExperts& e, const WindowLaunch& launch, std::uint32_t ring)
      : e_(e), launch_(launch), run_(launch.shared_items, e.gate_up.tiles), ring_(ring) {
    const int segment = threadIdx.x >> 5;
    first_block_ = segment * e.gate_up.segment_blocks;
    end_block_ = segment < kSharedWarps ? min(first_block_ + e.gate_up.segment_blocks, e.gate_up.k_blocks) : first_block_;
  }
  /// Before the launch waits: the first batch.
  __device__ __forceinline__ void ask_first() const {
    if (!run_.empty()) ask(run_.begin % run_.tiles_per_item, first_block_);
  }
  __device__ __forceinline__ void run(const WindowPlan& plan, const ItemRows& rows, std::uint8_t* partials) const {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (warp >= kSharedWarps || run_.empty()) return;
    rows.wait_all();
    float4* const handed = reinterpret_cast<float4*>(partials) + lane;
#pragma unroll 1
    for (int index = run_.begin; index < run_.end; ++index) {
      const int tile = index % run_.tiles_per_item, turn = index - run_.begin;
      const WindowItem item = plan.items[index / run_.tiles_per_item];
      const std::uint32_t lane_row = rows.lane_row(item);
      float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
      for (int batch = first_block_; batch < end_block_; batch += stages) {
        if (turn > 0 || batch > first_block_) ask(tile, batch);
        wait_copies<0>();
        __syncwarp();
#pragma unroll 1
        for (int block = batch; block < min(batch + stages, end_block_); ++block) {
          const HeldBlock<F> held = read_block<F>(ring_ + (block - batch) * launch_.block_bytes, e_.gate_up);
          multiply_block<F>(sum, held, lane_row + block * 2048);
        }
        __syncwarp();
      }
      float4* const place = handed + (turn & 1) * kSegmentsMax * 32;
      place[warp * 32] = make_float4(sum[0], sum[1], sum[2], sum[3]);
      named_sync(1, kSharedWarps * 32);
      if (turn % kSharedWarps != warp) continue;
      CarriedSegmentSum<4> total;
      add_handed(e_.gate_up, place, total);
      float result[4];
      total.finish(e_.gate_up.segments, e_.gate_up.segment_tree != 0, result);
      write_inner(e_, launch_, plan, item, tile, result);
    }
  }

 private:
  /// Up to a ring's worth of the warp's blocks of a tile, from `first` on.
  __device__ __forceinline__ void ask(int tile, int first) const {
    const PackedPart& part = e_.gate_up;
    const std::uint64_t policy = policy_read_once();
    const std::uint8_t* block = e_.shared_gate_up + static_cast<std::int64_t>(tile * part.k_blocks + first) * part.block_bytes;
    const int count = min(stages, end_block_ - first);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      copy_block<F>(ring_ + i * launch_.block_bytes, block + i * part.block_bytes, part.block_bytes, policy);
    }
    commit_copies();
  }

  const WindowExperts& e_;
  const WindowLaunch& launch_;
  TileRun run_;
  std::uint32_t ring_;
  int first_block_, end_block_;
};

template <typename F, int stages>
__device__ __forceinline__ void run_gate_up(const WindowExperts& e, const WindowLaunch& launch, const WindowPlan& plan,
                                            const TileRun& run, ItemRows& rows, std::uint8_t* partials,
                                            BlockRing<F, stages>& ring) {
  const PackedPart& part = e.gate_up;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int sharing = 1 << launch.sharing_shift, place = warp & (sharing - 1), slot = warp >> launch.sharing_shift;
  const int tile_slots = kWindowWarps >> launch.sharing_shift;
  const int first_segment = place * part.segments >> launch.sharing_shift;
  const int end_segment = (place + 1) * part.segments >> launch.sharing_shift;
  float4* const handed = reinterpret_cast<float4*>(partials) + lane;
  int turns = 0;  // tiles that this slot has done
  const int first_item = run.first_item();
#pragma unroll 1
  for (int item = first_item; item < run.end_item(); ++item) {
    const WindowItem facts = plan.items[launch.shared_items + item];
    std::uint32_t lane_row;
    if (launch.routes) {
      lane_row = rows.lane_row(facts);
    } else {
      __syncthreads();  // the buffer that is asked for now has been read
      if (item + 1 < run.end_item()) rows.ask(item + 1, item + 1 - first_item);
      lane_row = rows.wait(item - first_item);
    }
#pragma unroll 1
    for (int tile = run.first_tile(item) + slot; tile < run.end_tile(item); tile += tile_slots, ++turns) {
      const int handed_at = ((slot * 2 + (turns & 1)) * kSegmentsMax) * 32;
#pragma unroll 1
      for (int segment = first_segment; segment < end_segment; ++segment) {
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        const int first = segment * part.segment_blocks, end = min(first + part.segment_blocks, part.k_blocks);
#pragma unroll 1
        for (int block = first; block < end; ++block) {
          multiply_block<F>(sum, ring.take(part), lane_row + block * 2048);
        }
        handed[handed_at + segment * 32] = make_float4(sum[0], sum[1], sum[2], sum[3]);
      }
      named_sync(1 + slot, sharing * 32);
      if ((turns & (sharing - 1)) != place) continue;
      CarriedSegmentSum<4> total;
      add_handed(part, handed + handed_at, total);
      float result[4];
      total.finish(part.segments, part.segment_tree != 0, result);
      write_inner(e, launch, plan, facts, tile, result);
    }
  }
}

// --- barrier ----------------------------------------------------------------------------------------------------------

/// Until every CTA has arrived; what they wrote before is visible then.
__device__ __forceinline__ void grid_barrier(std::uint32_t* counters) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(counters, 1u);
    while (load_acquire(counters) < gridDim.x) {
    }
  }
  __syncthreads();
}

/// Some time after the barrier: the counters are zero again when every CTA was here.
__device__ __forceinline__ void leave_grid_barrier(std::uint32_t* counters) {
  if (threadIdx.x != 0 || atomicAdd(counters + 1, 1u) != gridDim.x - 1) return;
  counters[0] = 0;
  counters[1] = 0;
}

// --- down, combine ----------------------------------------------------------------------------------------------------

/// One lane's fragments of a block of `inner`: words 2·j and 2·j + 1 belong to step j.
struct InnerBlock {
  uint4 words[4];
  __device__ __forceinline__ void load(const std::uint16_t* lane_columns) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = load_16_written(lane_columns + 8 * i);
  }
};

template <typename F>
__device__ __forceinline__ void multiply_block(float (&sum)[4], const HeldBlock<F>& block, const InnerBlock& inner) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t a[4];
    fragment<F, 0>(block.codes[half], block.scales[half], a);
    mma(sum, a, inner.words[2 * half].x, inner.words[2 * half].y);
    fragment<F, 1>(block.codes[half], block.scales[half], a);
    mma(sum, a, inner.words[2 * half].z, inner.words[2 * half].w);
    fragment<F, 2>(block.codes[half], block.scales[half], a);
    mma(sum, a, inner.words[2 * half + 1].x, inner.words[2 * half + 1].y);
    fragment<F, 3>(block.codes[half], block.scales[half], a);
    mma(sum, a, inner.words[2 * half + 1].z, inner.words[2 * half + 1].w);
  }
}

/// A warp's place in down: unit `unit` (an item's group of segments) and the fragments of its next block.
class DownUnits {
 public:
  __device__ DownUnits(const WindowExperts& e, const WindowLaunch& launch, const WindowPlan& plan)
      : e_(e), launch_(launch), plan_(plan),
        unit_blocks_(launch.unit_segments * e.down.segment_blocks) {}
  __device__ __forceinline__ int units_per_item() const { return 1 << launch_.units_shift; }
  __device__ __forceinline__ int count() const { return plan_.item_count << launch_.units_shift; }
  __device__ __forceinline__ int item(int unit) const { return unit >> launch_.units_shift; }
  /// Which of its item's units it is.
  __device__ __forceinline__ int part(int unit) const { return unit & (units_per_item() - 1); }
  __device__ __forceinline__ int first_block(int unit) const { return part(unit) * unit_blocks_; }
  /// This lane's columns of the unit's first block, of its row of the item (of the item's first where it has none).
  __device__ __forceinline__ const std::uint16_t* columns(int unit) const {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const WindowItem facts = plan_.items[item(unit)];
    const int slot = plan_.slots[facts.begin() + (g < facts.count() ? g : 0)];
    return launch_.inner + static_cast<std::int64_t>(slot) * (e_.down.k_blocks * kBlockColumns) +
           first_block(unit) * kBlockColumns + 32 * t;
  }

 private:
  const WindowExperts& e_;
  const WindowLaunch& launch_;
  const WindowPlan& plan_;
  int unit_blocks_;
};

/// results[(part of the item · slots + slot)][16 columns] of output tile `tile`.
template <typename F, int stages>
__device__ __forceinline__ void run_down_tile(const WindowExperts& e, const WindowLaunch& launch, const WindowPlan& plan,
                                              const DownUnits& units, float* results, BlockRing<F, stages>& ring) {
  const PackedPart& part = e.down;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int slots = e.routing.rows * launch.slots_per_row;
  if (warp >= units.count()) return;
  InnerBlock ahead;
  ahead.load(units.columns(warp));
#pragma unroll 1
  for (int unit = warp; unit < units.count(); unit += kWindowWarps) {
    const int first_block = units.first_block(unit);
    const int blocks = min(launch.unit_segments * part.segment_blocks, part.k_blocks - first_block);
    const std::uint16_t* columns = units.columns(unit);
    CarriedSegmentSum<4> total;
    int segment = 0, left = part.segment_blocks;  // of this unit; blocks of the segment
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      const InnerBlock inner = ahead;
      if (block + 1 < blocks) {
        ahead.load(columns + (block + 1) * kBlockColumns);
      } else if (unit + kWindowWarps < units.count()) {
        ahead.load(units.columns(unit + kWindowWarps));
      }
      multiply_block<F>(sum, ring.take(part), inner);
      if (--left > 0 && block + 1 < blocks) continue;
      total.add(segment++, part.segment_tree != 0, sum);
      left = part.segment_blocks;
#pragma unroll
      for (float& value : sum) value = 0.0f;
    }
    float result[4];
    total.finish(segment, part.segment_tree != 0, result);
    const WindowItem item = plan.items[units.item(unit)];
    float* place = results + units.part(unit) * slots * kTileRows + g;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 2 * t + i;
      if (row >= item.count()) continue;
      float* slot_place = place + plan.slots[item.begin() + row] * kTileRows;
      slot_place[0] = result[i];
      slot_place[8] = result[2 + i];
    }
  }
}

/// What the combination adds to, of one row and column.
struct CombineInputs {
  float residual, shared_output, shared_gate;  // the latter two only where there is a shared expert
  __device__ __forceinline__ void load(const CombineTarget& target, bool runs_shared, int row, int column) {
    const std::int64_t at = static_cast<std::int64_t>(row) * target.hidden + column;
    residual = target.residual[at];
    if (target.shared_output != nullptr) shared_output = target.shared_output[at];
    if (target.shared_output != nullptr || runs_shared) shared_gate = target.shared_gate[row * target.shared_gate_stride];
  }
  /// The same, into shared memory, some time before: only the thread that asks ever writes this place of the residual.
  __device__ static void ask(const CombineTarget& target, bool runs_shared, int row, int column, std::uint32_t place) {
    const std::int64_t at = static_cast<std::int64_t>(row) * target.hidden + column;
    copy_small<4>(place, target.residual + at);
    if (target.shared_output != nullptr) copy_small<4>(place + 4, target.shared_output + at);
    if (target.shared_output != nullptr || runs_shared) {
      copy_small<4>(place + 8, target.shared_gate + row * target.shared_gate_stride);
    }
  }
};

/// A slot's output: the sum over its units, which are subtrees of the tree over segments. Ends in the first one's place.
__device__ __forceinline__ float slot_output(int units, int slots, int slot, int column,
                                             const float* results) {
  const float* place = results + slot * kTileRows + column;
  float parts[kSegmentsMax];
#pragma unroll
  for (int unit = 0; unit < kSegmentsMax; ++unit) parts[unit] = unit < units ? place[unit * slots * kTileRows] : 0.0f;
  CarriedSegmentSum<1> sum;
#pragma unroll
  for (int unit = 0; unit < kSegmentsMax; ++unit) {
    if (unit >= units) break;
    float part[1] = {parts[unit]};
    sum.add(unit, true, part);
  }
  float total[1];
  sum.finish(units, true, total);
  return total[0];
}

__device__ __forceinline__ void combine_tile(const WindowExperts& e, const WindowLaunch& launch, const WindowPlan& plan,
                                             const DownUnits& units, int rows, int tile, float* results,
                                             const CombineInputs* early) {
  const int top_k = e.routing.top_k;
  if (units.units_per_item() > 1) {
    const int slots = e.routing.rows * launch.slots_per_row;
#pragma unroll 1
    for (int at = threadIdx.x; at < rows * launch.slots_per_row * kTileRows; at += kWindowThreads) {
      results[at] = slot_output(units.units_per_item(), slots, at / kTileRows, at % kTileRows, results);
    }
    __syncthreads();
  }
  const bool runs_shared = launch.shared_items > 0;
#pragma unroll 1
  for (int at = threadIdx.x; at < rows * kTileRows; at += kWindowThreads) {
    const int row = at / kTileRows, column = tile * kTileRows + at % kTileRows;
    if (column >= e.target.hidden) continue;
    CombineInputs inputs;
    if (tile == static_cast<int>(blockIdx.x) && at == static_cast<int>(threadIdx.x)) {
      inputs = early[at];
    } else {
      inputs.load(e.target, runs_shared, row, column);
    }
    const float* outputs = results + row * launch.slots_per_row * kTileRows + at % kTileRows;
    float value = NAN;
    if (plan.chosen[row * top_k] != kUnrouted) {
      value = inputs.residual;
#pragma unroll 4
      for (int choice = 0; choice < top_k; ++choice) {
        value = __fmaf_rn(plan.weights[row * top_k + choice], outputs[choice * kTileRows], value);
      }
      if (runs_shared || e.target.shared_output != nullptr) {
        value = __fmaf_rn(sigmoid(inputs.shared_gate), runs_shared ? outputs[top_k * kTileRows] : inputs.shared_output, value);
      }
    }
    e.target.residual[static_cast<std::int64_t>(row) * e.target.hidden + column] = value;
  }
}

// --- the kernel -------------------------------------------------------------------------------------------------------

template <typename F, int stages>
__global__ void __launch_bounds__(kWindowThreads, 1)
    window_experts(const __grid_constant__ WindowExperts e, const __grid_constant__ WindowLaunch launch) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  const int tid = threadIdx.x, warp = tid >> 5;
  const std::uint32_t shared_base = shared_address(shared);
  const std::uint32_t barriers = shared_base + launch.barriers;
  const std::uint32_t ring_base = shared_base + launch.ring + warp * stages * launch.block_bytes;
  std::uint8_t* const partials = shared + launch.partials;
  auto* const masks = reinterpret_cast<std::uint32_t*>(shared + launch.masks);
  WindowPlan plan;
  plan.items = reinterpret_cast<WindowItem*>(shared + launch.items);
  plan.slots = reinterpret_cast<std::uint16_t*>(shared + launch.slots);
  const SharedGateUp<F, stages> shared_gate_up(e, launch, ring_base);
  if (launch.gate_up) shared_gate_up.ask_first();
  if (tid == 0) {
    barrier_init(barriers, kWindowThreads);
    barrier_init(barriers + 8, kWindowThreads);
  }
  if (launch.routes) begin_plan(e.routing, launch, masks, plan);
  allow_next();
  const int live = live_rows(e.routing.pass, e.routing.rows);  // a pass's arrays are there already
  __syncthreads();
  wait_for_previous();

  ItemRows rows(e, launch, plan, shared_base, barriers);
  if (launch.routes) {
    plan.chosen = reinterpret_cast<std::int32_t*>(shared + launch.chosen);
    plan.weights = reinterpret_cast<float*>(shared + launch.weights);
    if (launch.gate_up) rows.ask_all();
    route_rows(e.routing, reinterpret_cast<RouteCandidate*>(shared + launch.candidates), plan);
    if (launch.gate_up) shared_gate_up.run(plan, rows, partials);
    __syncthreads();
    finish_plan(e.routing, launch, e.plan, live, masks, masks + kWindowExpertsRoutedMax, plan);
  } else {
    plan.chosen = e.plan.chosen;
    plan.weights = e.plan.weights;
    read_plan(e.plan, plan);
  }

  const TileRun run(plan.item_count - launch.shared_items, e.gate_up.tiles);
  const BlockCursor cursor(e, launch, plan.items, plan.item_count, run, warp);
  BlockRing<F, stages> ring(ring_base, launch.block_bytes, cursor);
  if (!launch.routes && launch.gate_up && !run.empty()) rows.ask(run.first_item(), 0);
  // What the first tile's combination reads comes with the ring's first blocks.
  const int early_column = blockIdx.x * kTileRows + tid % kTileRows;
  if (launch.down && tid < e.routing.rows * kTileRows && early_column < e.target.hidden) {
    CombineInputs::ask(e.target, launch.shared_items > 0, tid / kTileRows, early_column,
                       shared_base + launch.early + tid * static_cast<int>(sizeof(CombineInputs)));
  }
  ring.fill();

  if (launch.gate_up && launch.routes) rows.wait_all();  // also where nothing reads them: results will lie there
  if (launch.gate_up && !run.empty()) run_gate_up<F, stages>(e, launch, plan, run, rows, partials, ring);
  if (launch.gate_up && launch.down) grid_barrier(launch.counters);
  if (launch.down) {
    const DownUnits units(e, launch, plan);
    auto* results = reinterpret_cast<float*>(shared);
#pragma unroll 1
    for (int tile = blockIdx.x; tile < e.down.tiles; tile += gridDim.x) {
      run_down_tile<F, stages>(e, launch, plan, units, results, ring);
      wait_copies<stages - 1>();
      __syncthreads();
      combine_tile(e, launch, plan, units, live, tile, results, reinterpret_cast<const CombineInputs*>(shared + launch.early));
      __syncthreads();
    }
  }
  wait_copies<0>();
  if (launch.gate_up && launch.down) leave_grid_barrier(launch.counters);
}

}  // namespace tensorfold::ops::cuda::experts
