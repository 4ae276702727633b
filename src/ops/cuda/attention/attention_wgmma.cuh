// Attention by wgmma, for Hopper: the arithmetic of attention_mma.cuh with 64 packed rows a warpgroup. One producer warp
// walks the CTA's units ahead of everyone and fills a ring by bulk copies (a page part is contiguous); one to three consumer
// warpgroups share what it brings. Windows leave partials, prompts fold their segments on the way.
//
// A tile's scores are asked for before the values of the tile before are added, so that the tensor cores have work while
// probabilities are formed. In a prompt the folded output of a row lies beside the open segment's: in registers, or, for
// heads of 256 dimensions, three quarters of it in shared memory.
#pragma once

#include "ops/cuda/attention/attention_math.cuh"
#include "ops/cuda/attention/attention_work.cuh"
#include "ops/cuda/instructions.cuh"
#include "ops/cuda/ring_position.cuh"

namespace tensorfold::ops::cuda {

constexpr int kWarpgroupRows = 64;

template <int kBlocks, int kWarpgroups, bool kPrompt>
struct WgmmaShape {
  static_assert(kBlocks == 1 || kBlocks == 2 || kBlocks == 4);
  static constexpr int kDims = kBlocks * kBlockDims;
  static constexpr int kStageBlocks = kBlocks == 1 ? 1 : 2;
  static constexpr int kParts = kBlocks / kStageBlocks;
  static constexpr int kStageBytes = kStageBlocks * kBlockBytes;
  static constexpr int kThreads = (kWarpgroups + 1) * kWarpgroupThreads;
  static constexpr int kUnitRows = kWarpgroups * kWarpgroupRows;
  static constexpr int kQueryBytes = kBlocks * kBlockBytes;  // of a warpgroup
  /// Folded outputs of a thread that lie in shared memory, four at a time; the others are in registers.
  static constexpr int kSharedStateQuads = kPrompt && kBlocks == 4 ? 24 : 0;
  static constexpr int kStateBytes = kSharedStateQuads * 16 * kWarpgroups * kWarpgroupThreads;
  static constexpr int kRegisterState = kPrompt ? kBlocks * 32 - kSharedStateQuads * 4 : 1;
  static constexpr int kPerSm = kWarpgroups == 1 && kBlocks <= 2 ? 2 : 1;  // CTAs
  static constexpr int kBudget = kPerSm == 2 ? 112 * 1024 : 226 * 1024;
  static constexpr int kStages = (kBudget - kWarpgroups * kQueryBytes - kStateBytes) / kStageBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + kWarpgroups * kQueryBytes + kStateBytes + kStages * 16;
  static_assert(kStages >= 2 * kParts);  // a tile's scores wait for its keys while the values before are still needed
  // The registers that the launch brings, and their shares.
  static constexpr int kConsumerRegisters = kWarpgroups == 1 ? 216 : kWarpgroups == 3 ? 152 : kPrompt && kBlocks == 4 ? 240 : 232;
  static constexpr int kLaunchRegisters = kWarpgroups == 2 ? 168 : 128;
  static constexpr int kProducerRegisters = (kWarpgroups + 1) * kLaunchRegisters - kWarpgroups * kConsumerRegisters;
  static_assert(kProducerRegisters >= 24 && kProducerRegisters % 8 == 0);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ void wait_for_phase(std::uint32_t barrier, std::uint32_t phase) {
  while (!barrier_try_wait(barrier, phase)) {
  }
}

/// Places in shared memory.
template <typename Shape>
struct WgmmaMemory {
  std::uint32_t ring, queries, state, full, empty;
  __device__ __forceinline__ explicit WgmmaMemory(std::uint32_t base)
      : ring(base),
        queries(ring + Shape::kStages * Shape::kStageBytes),
        state(queries + (Shape::kUnitRows / kWarpgroupRows) * Shape::kQueryBytes),
        full(state + Shape::kStateBytes),
        empty(full + Shape::kStages * 8) {}
};

/// The producer warp.
template <int kBlocks, int kWarpgroups, bool kPrompt>
class WgmmaProducer {
 public:
  using Shape = WgmmaShape<kBlocks, kWarpgroups, kPrompt>;
  __device__ __forceinline__ WgmmaProducer(const AttentionArguments& a, const WgmmaMemory<Shape>& memory)
      : a_(a),
        memory_(memory),
        lane_(static_cast<int>(threadIdx.x) % 32),
        policy_(kPrompt ? policy_read_again() : policy_read_once()) {}

  __device__ __forceinline__ void run() {
    UnitWalk<kPrompt> walk(a_);
    Unit unit;
#pragma unroll 1
    while (walk.next(a_, unit)) load_unit(unit);
    if (!waited_) wait_for_previous();
  }

 private:
  __device__ __forceinline__ void load_unit(const Unit& unit) {
    const std::byte* head = a_.pages + unit.kv_head * page_head_bytes(kBlocks);
    const std::byte* before = nullptr;
    std::int32_t pages = 0;  // one a lane, of 32 tiles
#pragma unroll 1
    for (int tile = unit.tile; tile < unit.tile_end; ++tile) {
      const int ahead = (tile - unit.tile) & 31;
      if (ahead == 0) pages = unit.lane.pages[min(tile + lane_, unit.tile_end - 1)];
      if (!waited_ && (tile + 1) * kTileKeys > unit.lane.settled) {
        wait_for_previous();
        waited_ = true;
      }
      const std::byte* page = head + static_cast<std::size_t>(__shfl_sync(~0u, pages, ahead)) * a_.page_bytes;
      load_parts(page);
      if (before != nullptr) load_parts(before + page_part_bytes(kBlocks));
      before = page;
    }
    load_parts(before + page_part_bytes(kBlocks));
  }
  __device__ __forceinline__ void load_parts(const std::byte* from) {
#pragma unroll
    for (int part = 0; part < Shape::kParts; ++part) {
      wait_for_phase(memory_.empty + 8 * at_.stage, at_.phase ^ 1);
      if (lane_ == 0) {
        const std::uint32_t full = memory_.full + 8 * at_.stage;
        barrier_expect(full, Shape::kStageBytes);
        copy_bulk(memory_.ring + at_.stage * Shape::kStageBytes, from + part * Shape::kStageBytes, Shape::kStageBytes, full, policy_);
      }
      __syncwarp();
      at_.advance(Shape::kStages);
    }
  }

  const AttentionArguments& a_;
  const WgmmaMemory<Shape> memory_;
  const int lane_;
  const std::uint64_t policy_;  // windows read keys and values once a pass, prompts once for every block of rows
  bool waited_ = false;
  RingPosition at_;
};

/// A consumer warpgroup.
template <int kBlocks, int kWarpgroups, bool kPrompt>
class WgmmaConsumer {
 public:
  using Shape = WgmmaShape<kBlocks, kWarpgroups, kPrompt>;
  static constexpr int kPartOutputs = Shape::kStageBlocks * 32;

  __device__ __forceinline__ WgmmaConsumer(const AttentionArguments& a, const WgmmaMemory<Shape>& memory)
      : a_(a), memory_(memory) {
    const int thread = static_cast<int>(threadIdx.x);
    warpgroup_ = thread / kWarpgroupThreads;
    thread_ = thread % kWarpgroupThreads;
    lane_ = thread % 32;
    queries_ = memory.queries + warpgroup_ * Shape::kQueryBytes;
    state_ = memory.state + thread * 16;
  }

  __device__ __forceinline__ void run() {
    UnitWalk<kPrompt> walk(a_);
#pragma unroll 1
    while (walk.next(a_, unit_)) run_unit();
    wait_for_previous();
  }

 private:
  __device__ __forceinline__ void run_unit() {
    wait_for_previous();  // not earlier: the lanes are there, and finding a unit takes several loads one after the other
    const int first = unit_.packed_begin + warpgroup_ * kWarpgroupRows;
    load_queries(first);
    rows_.load(a_, unit_, first + (thread_ / 32) * 16, lane_);
    segment_.open();
    if constexpr (kPrompt) {
      folded_.open();
      empty_fold_ = true;
#pragma unroll
      for (int i = 0; i < Shape::kRegisterState; ++i) run_[i] = 0.0f;
    }
    float s[32], alpha[2];
    std::uint32_t p[16];
    int keys_at[Shape::kParts], values_at[Shape::kParts];
    start_scores(s, keys_at);
    wgmma_wait<0>();
    hold(s);
    release(keys_at);
    to_probabilities(s, alpha, unit_.tile);
    pack_probabilities(s, p);
    bool opens = true;  // the values to come are a segment's first
#pragma unroll 1
    for (int tile = unit_.tile + 1; tile < unit_.tile_end; ++tile) {
      start_scores(s, keys_at);
      start_values(p, values_at, tile - 1, opens);
      wgmma_wait<1>();
      hold(s);
      release(keys_at);
      const bool ended = kPrompt && ends_segment(tile - 1);
      FoldFactors f[2];
      if constexpr (kPrompt) {
        if (ended) {
          close_segment(f);
          segment_.open();
        }
      }
      to_probabilities(s, alpha, tile);
      finish_values(values_at);
      opens = ended;
      if (ended) {
        if constexpr (kPrompt) fold_outputs(f);
      } else {
#pragma unroll
        for (int part = 0; part < Shape::kParts; ++part) rescale(o_[part], alpha);
      }
      pack_probabilities(s, p);
    }
    start_values(p, values_at, unit_.tile_end - 1, opens);
    if constexpr (kPrompt) {
      FoldFactors f[2];
      close_segment(f);
      finish_values(values_at);
      fold_outputs(f);
      store_rows();
    } else {
      segment_.close();
      finish_values(values_at);
      store_partial();
    }
  }

  // --- the ring

  __device__ __forceinline__ int acquire() {
    const int stage = at_.stage;
    wait_for_phase(memory_.full + 8 * stage, at_.phase);
    at_.advance(Shape::kStages);
    return stage;
  }
  __device__ __forceinline__ void release(const int (&stages)[Shape::kParts]) {
    if (lane_ != 0) return;
#pragma unroll
    for (int part = 0; part < Shape::kParts; ++part) barrier_arrive(memory_.empty + 8 * stages[part]);
  }
  __device__ __forceinline__ std::uint32_t stage_address(int stage) const { return memory_.ring + stage * Shape::kStageBytes; }

  // --- a tile

  __device__ __forceinline__ void start_scores(float (&s)[32], int (&stages)[Shape::kParts]) {
#pragma unroll
    for (int part = 0; part < Shape::kParts; ++part) {
      stages[part] = acquire();
      wgmma_fence();
      const std::uint32_t keys = stage_address(stages[part]), queries = queries_ + part * Shape::kStageBytes;
#pragma unroll
      for (int step = 0; step < 4 * Shape::kStageBlocks; ++step) {
        const std::uint32_t offset = (step >> 2) * kBlockBytes + (step & 3) * 32;
        wgmma_shared(s, foldable_tile_descriptor(queries + offset), foldable_tile_descriptor(keys + offset), part + step > 0);
      }
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void start_values(const std::uint32_t (&p)[16], int (&stages)[Shape::kParts], int tile, bool opens) {
    const bool dirty = unit_.needs_cleaning(tile);
#pragma unroll
    for (int part = 0; part < Shape::kParts; ++part) {
      stages[part] = acquire();
      const std::uint32_t values = stage_address(stages[part]);
      if (dirty) clean(values, tile);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const std::uint64_t rows = foldable_transposed_descriptor(values + step * 16 * kBlockRowBytes);
        wgmma_transposed(o_[part], p + step * 4, rows, step > 0 || !opens);
      }
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void finish_values(const int (&stages)[Shape::kParts]) {
    wgmma_wait<0>();
#pragma unroll
    for (int part = 0; part < Shape::kParts; ++part) hold(o_[part]);
    release(stages);
  }
  __device__ __forceinline__ void to_probabilities(float (&s)[32], float (&alpha)[2], int tile) {
    if (rows_.sees_part(tile)) {
      VisibleKeys visible;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        visible.first[r] = rows_.keys[r].first - tile * kTileKeys;
        visible.last[r] = rows_.keys[r].last - tile * kTileKeys;
      }
      mask_scores(s, visible, lane_ & 3);
    }
    softmax_tile(s, segment_, alpha, a_.scale_log2);
  }

  /// Each warpgroup cleans all of the stage, so that none has to wait for another.
  __device__ __forceinline__ void clean(std::uint32_t stage, int tile) {
    clean_values<Shape::kStageBlocks>(unit_, tile, stage, thread_, kWarpgroupThreads);
    publish_shared_writes();
    warpgroup_sync(1 + warpgroup_);
  }

  __device__ __forceinline__ void load_queries(int first) {
    const int packed = unit_.packed_count(a_);
    warpgroup_sync(1 + warpgroup_);  // nobody's wgmma reads the queries before any more
#pragma unroll 4
    for (int i = thread_; i < kWarpgroupRows * kBlocks * 8; i += kWarpgroupThreads) {
      const int row = i / (kBlocks * 8), chunk = i % (kBlocks * 8), at = first + row;
      uint4 value = make_uint4(0, 0, 0, 0);
      if (at < packed && chunk * 8 < a_.head_dim) {
        const int head = unit_.kv_head * a_.group + at % a_.group;
        value = __ldcg(reinterpret_cast<const uint4*>(a_.q + head_offset(a_, unit_, at / a_.group, head) + chunk * 8));
      }
      store_shared_16(queries_ + page_chunk_offset(row, chunk), value);
    }
    publish_shared_writes();
    warpgroup_sync(1 + warpgroup_);
  }

  // --- windows

  __device__ __forceinline__ void store_partial() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!rows_.valid[r]) continue;
      const std::int64_t at = (unit_.partial + rows_.row[r]) * a_.heads + rows_.head[r];
      float* out = a_.partial_outputs + at * Shape::kDims + 2 * (lane_ & 3);
#pragma unroll
      for (int part = 0; part < Shape::kParts; ++part) {
#pragma unroll
        for (int n = 0; n < Shape::kStageBlocks * 8; ++n) {
          *reinterpret_cast<float2*>(out + part * 128 + n * 8) = make_float2(o_[part][n * 4 + r * 2], o_[part][n * 4 + r * 2 + 1]);
        }
      }
      if ((lane_ & 3) == 0) a_.partial_states[at] = make_float2(segment_.maximum[r], segment_.sum[r]);
    }
  }

  // --- prompts

  __device__ __forceinline__ void close_segment(FoldFactors (&f)[2]) {
    segment_.close();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      f[r] = fold_factors(folded_.maximum[r], segment_.maximum[r], a_.scale_log2);
      folded_.sum[r] = fold(folded_.sum[r], segment_.sum[r], f[r]);
    }
  }
  /// Element `i` (0 .. kBlocks * 32) of the thread's open outputs.
  __device__ __forceinline__ float output(int i) const { return o_[i / kPartOutputs][i % kPartOutputs]; }
  __device__ __forceinline__ void fold_outputs(const FoldFactors (&f)[2]) {
#pragma unroll
    for (int i = 0; i < Shape::kRegisterState; ++i) run_[i] = fold(run_[i], output(i), f[(i >> 1) & 1]);
#pragma unroll
    for (int quad = 0; quad < Shape::kSharedStateQuads; ++quad) {
      const std::uint32_t at = state_ + quad * (16 * kWarpgroups * kWarpgroupThreads);
      uint4 v = make_uint4(0, 0, 0, 0);
      if (!empty_fold_) v = load_shared_16(at);
      const int i = Shape::kRegisterState + quad * 4;
      v.x = __float_as_uint(fold(__uint_as_float(v.x), output(i), f[0]));
      v.y = __float_as_uint(fold(__uint_as_float(v.y), output(i + 1), f[0]));
      v.z = __float_as_uint(fold(__uint_as_float(v.z), output(i + 2), f[1]));
      v.w = __float_as_uint(fold(__uint_as_float(v.w), output(i + 3), f[1]));
      store_shared_16(at, v);
    }
    empty_fold_ = false;
  }
  __device__ __forceinline__ void store_rows() {
#pragma unroll
    for (int n = 0; n < kBlocks * 8; ++n) {
      float v[4];
      if (n * 4 < Shape::kRegisterState) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = run_[(n * 4 + i) % Shape::kRegisterState];
      } else {
        const uint4 u = load_shared_16(state_ + (n - Shape::kRegisterState / 4) * (16 * kWarpgroups * kWarpgroupThreads));
        v[0] = __uint_as_float(u.x), v[1] = __uint_as_float(u.y), v[2] = __uint_as_float(u.z), v[3] = __uint_as_float(u.w);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (!rows_.valid[r]) continue;
        store_output(a_, unit_, rows_.row[r], rows_.head[r], n * 8 + 2 * (lane_ & 3), v[r * 2], v[r * 2 + 1], folded_.sum[r]);
      }
    }
  }

  const AttentionArguments& a_;
  const WgmmaMemory<Shape> memory_;
  int warpgroup_, thread_, lane_;
  std::uint32_t queries_, state_;
  RingPosition at_;
  Unit unit_;
  RowPair rows_;
  SegmentState segment_, folded_;
  bool empty_fold_ = true;
  float o_[Shape::kParts][kPartOutputs];
  float run_[Shape::kRegisterState];
};

#endif  // sm_90a

template <int kBlocks, int kWarpgroups, bool kPrompt>
__global__ void __launch_bounds__((WgmmaShape<kBlocks, kWarpgroups, kPrompt>::kThreads), kWarpgroups == 1 ? 2 : 1)
    attention_wgmma_kernel(const __grid_constant__ AttentionArguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = WgmmaShape<kBlocks, kWarpgroups, kPrompt>;
  extern __shared__ __align__(1024) std::byte shared[];
  const WgmmaMemory<Shape> memory(shared_address(shared));
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      barrier_init(memory.full + 8 * stage, 1);
      barrier_init(memory.empty + 8 * stage, kWarpgroups * 4);
    }
    publish_barriers();
  }
  __syncthreads();
  allow_next();
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroupThreads;
  if (warpgroup == kWarpgroups) {
    give_registers<Shape::kProducerRegisters>();
    if (static_cast<int>(threadIdx.x) % kWarpgroupThreads < 32) {
      WgmmaProducer<kBlocks, kWarpgroups, kPrompt>(a, memory).run();
    } else {
      wait_for_previous();
    }
  } else {
    take_registers<Shape::kConsumerRegisters>();
    WgmmaConsumer<kBlocks, kWarpgroups, kPrompt>(a, memory).run();
  }
#else
  (void)a;
#endif
}

}  // namespace tensorfold::ops::cuda
