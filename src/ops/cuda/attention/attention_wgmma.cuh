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

/// The descriptor of what lies `bytes` further on: an addition within its lower half, where the address stands.
__device__ __forceinline__ std::uint64_t further(std::uint64_t descriptor, int bytes) {
  return (descriptor >> 32 << 32) | (static_cast<std::uint32_t>(descriptor) + static_cast<std::uint32_t>(bytes >> 4));
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

/// wgmma's kernels are given no trees.
template <bool kPrompt>
using WgmmaWalk = UnitWalk<kPrompt, false>;

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

  /// `unit` is the first one of `walk`, if there is one.
  __device__ __forceinline__ void run(WgmmaWalk<kPrompt>& walk, Unit& unit, bool found) {
#pragma unroll 1
    for (; found; found = walk.next(a_, unit)) load_unit(unit);
    if (!waited_) wait_for_previous();
  }

 private:
  __device__ __forceinline__ void load_unit(const Unit& unit) {
    const std::byte* head = a_.pages + unit.kv_head * page_head_bytes(kBlocks);
    const std::byte* before = nullptr;
    std::int32_t pages = 0;  // one a lane, of 32 tiles
#pragma unroll 1
    for (int tile = unit.tile; tile <= unit.tile_end; ++tile) {
      const std::byte* page = nullptr;
      if (tile < unit.tile_end) {
        const int ahead = (tile - unit.tile) & 31;
        if (ahead == 0) pages = unit.lane.pages[min(tile + lane_, unit.tile_end - 1)];
        if (!waited_ && (tile + 1) * kTileKeys > unit.lane.settled) {
          wait_for_previous();
          waited_ = true;
        }
        page = head + static_cast<std::size_t>(__shfl_sync(~0u, pages, ahead)) * a_.page_bytes;
      }
      load_parts(page, before);
      before = page;
    }
  }
  /// The keys of one page and the values of the one before, where there are such. A loop rather than four copies of its body:
  /// with few tiles a unit, most of the time would go to fetching them.
  __device__ __forceinline__ void load_parts(const std::byte* keys_page, const std::byte* values_page) {
#pragma unroll 1
    for (int part = 0; part < 2 * Shape::kParts; ++part) {  // of a page: its values follow its keys
      const std::byte* page = part < Shape::kParts ? keys_page : values_page;
      if (page == nullptr) continue;
      wait_for_phase(memory_.empty + 8 * at_.stage, at_.phase ^ 1);
      if (lane_ == 0) {
        const std::uint32_t full = memory_.full + 8 * at_.stage;
        barrier_expect(full, Shape::kStageBytes);
        copy_bulk(memory_.ring + at_.stage * Shape::kStageBytes, page + part * Shape::kStageBytes, Shape::kStageBytes, full, policy_);
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
    warpgroup_ = kWarpgroups == 1 ? 0 : thread / kWarpgroupThreads;
    thread_ = thread % kWarpgroupThreads;
    lane_ = thread % 32;
    queries_ = memory.queries + warpgroup_ * Shape::kQueryBytes;
    state_ = memory.state + thread * 16;
  }

  __device__ __forceinline__ void run(WgmmaWalk<kPrompt>& walk, const Unit& first, bool found) {
    unit_ = first;
#pragma unroll 1
    for (; found; found = walk.next(a_, unit_)) {
      wait_for_previous();  // not earlier: the lanes are there, and finding a unit takes several loads one after the other
      open_unit();
      if constexpr (kPrompt) {
        run_prompt_unit();
      } else {
        run_window_unit();
      }
    }
    wait_for_previous();
  }

 private:
  __device__ __forceinline__ void open_unit() {
    const int first = unit_.packed_begin + warpgroup_ * kWarpgroupRows;
    load_queries(first);
    rows_.load(a_, unit_, first + (thread_ / 32) * 16, lane_);
    segment_.open();
  }

  /// A window's unit has a few tiles only, so what is made of a tile's scores stands here once: most of the time would go to
  /// fetching code. (A wgmma under a condition that may differ between warps is one that ptxas serialises: those stand twice.)
  __device__ __forceinline__ void run_window_unit() {
    float s[32], alpha[2];
    std::uint32_t p[16];
    start_scores(s);
    wgmma_wait<0>();
    int tile = unit_.tile;
#pragma unroll 1
    while (true) {
      hold(s);
      release();
      to_probabilities(s, alpha, tile);
      const bool opened = tile > unit_.tile;  // values of the tile before are on their way, or there
      wgmma_wait<0>();
      if (opened) {
        take_outputs(p);
        rescale_outputs(alpha);
      }
      pack_probabilities(s, p);
      if (++tile == unit_.tile_end) break;
      start_scores(s);
      start_values(p, tile - 1, !opened);
      wgmma_wait<1>();
    }
    start_values(p, tile - 1, tile - 1 == unit_.tile);
    segment_.close();
    finish_values(p);
    store_partial();
  }

  __device__ __forceinline__ void run_prompt_unit() {
    folded_.open();
    empty_fold_ = true;
#pragma unroll
    for (int i = 0; i < Shape::kRegisterState; ++i) run_[i] = 0.0f;
    float s[32], alpha[2];
    std::uint32_t p[16];
    start_scores(s);
    wgmma_wait<0>();
    hold(s);
    release();
    to_probabilities(s, alpha, unit_.tile);
    pack_probabilities(s, p);
    bool opens = true;  // the values to come are a segment's first
#pragma unroll 1
    for (int tile = unit_.tile + 1; tile < unit_.tile_end; ++tile) {
      start_scores(s);
      start_values(p, tile - 1, opens);
      wgmma_wait<1>();
      hold(s);
      release();
      const bool ended = ends_segment(tile - 1);
      FoldFactors f[2];
      if (ended) {
        close_segment(f);
        segment_.open();
      }
      to_probabilities(s, alpha, tile);
      finish_values(p);
      opens = ended;
      if (ended) {
        fold_outputs(f);
      } else {
        rescale_outputs(alpha);
      }
      pack_probabilities(s, p);
    }
    start_values(p, unit_.tile_end - 1, opens);
    FoldFactors f[2];
    close_segment(f);
    finish_values(p);
    fold_outputs(f);
    store_rows();
  }

  // --- the ring

  __device__ __forceinline__ int acquire() {
    const int stage = at_.stage;
    wait_for_phase(memory_.full + 8 * stage, at_.phase);
    at_.advance(Shape::kStages);
    return stage;
  }
  /// The oldest acquired part: keys or values are released in the order in which they were acquired.
  __device__ __forceinline__ void release() {
#pragma unroll
    for (int part = 0; part < Shape::kParts; ++part) {
      if (lane_ == 0) barrier_arrive(memory_.empty + 8 * oldest_);
      if (++oldest_ == Shape::kStages) oldest_ = 0;
    }
  }
  __device__ __forceinline__ std::uint32_t stage_address(int stage) const { return memory_.ring + stage * Shape::kStageBytes; }

  // --- a tile

  __device__ __forceinline__ void start_scores(float (&s)[32]) {
    std::uint32_t queries[] = {queries_};
    hold(queries);  // or the descriptors of all steps would be kept in registers
    const std::uint64_t rows = foldable_tile_descriptor(queries[0]);
#pragma unroll
    for (int part = 0; part < Shape::kParts; ++part) {
      const std::uint64_t keys = foldable_tile_descriptor(stage_address(acquire()));
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4 * Shape::kStageBlocks; ++step) {
        const int offset = (step >> 2) * kBlockBytes + (step & 3) * 32;
        wgmma_shared(s, further(rows, part * Shape::kStageBytes + offset), further(keys, offset), part + step > 0);
      }
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void start_values(const std::uint32_t (&p)[16], int tile, bool opens) {
    if (unit_.needs_cleaning(tile)) clean(tile);
#pragma unroll
    for (int part = 0; part < Shape::kParts; ++part) {
      const std::uint64_t values = foldable_transposed_descriptor(stage_address(acquire()));
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        wgmma_transposed(o_[part], p + step * 4, further(values, step * 16 * kBlockRowBytes), step > 0 || !opens);
      }
    }
    wgmma_commit();
  }
  /// `p` is what start_values() was given: until here its registers belong to the wgmmas (tools/check_sass.py).
  __device__ __forceinline__ void finish_values(std::uint32_t (&p)[16]) {
    wgmma_wait<0>();
    take_outputs(p);
  }
  __device__ __forceinline__ void take_outputs(std::uint32_t (&p)[16]) {
    hold(p);
#pragma unroll
    for (int part = 0; part < Shape::kParts; ++part) hold(o_[part]);
    release();
  }
  __device__ __forceinline__ void to_probabilities(float (&s)[32], float (&alpha)[2], int tile) {
    alpha[0] = alpha[1] = 1.0f;
    if (kPrompt || rows_.halves == 2) {
      to_probabilities_of<2>(s, alpha, tile);
    } else if (rows_.halves == 1) {
      to_probabilities_of<1>(s, alpha, tile);
    }
  }
  /// In a pass of one row most warps hold no row and the others eight or fewer: half the instructions, or none.
  template <int kHalves>
  __device__ __forceinline__ void to_probabilities_of(float (&s)[32], float (&alpha)[2], int tile) {
    if (rows_.sees_part(tile)) {
      VisibleKeys visible;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        visible.first[r] = rows_.keys[r].first - tile * kTileKeys;
        visible.last[r] = rows_.keys[r].last - tile * kTileKeys;
      }
      mask_scores<kHalves>(s, visible, lane_ & 3);
    }
    softmax_tile<kHalves>(s, segment_, alpha, a_.scale_log2);
  }
  __device__ __forceinline__ void rescale_outputs(const float (&alpha)[2]) {
#pragma unroll
    for (int part = 0; part < Shape::kParts; ++part) {
      if (kPrompt || rows_.halves == 2) {
        rescale<2>(o_[part], alpha);
      } else {
        rescale<1>(o_[part], alpha);
      }
    }
  }

  /// The stages of the tile's values, which come next. Each warpgroup cleans all of them, so that none has to wait for another.
  __device__ __forceinline__ void clean(int tile) {
    RingPosition at = at_;
#pragma unroll 1
    for (int part = 0; part < Shape::kParts; ++part) {
      wait_for_phase(memory_.full + 8 * at.stage, at.phase);
      clean_values<Shape::kStageBlocks>(unit_, tile, stage_address(at.stage), thread_, kWarpgroupThreads);
      at.advance(Shape::kStages);
    }
    publish_shared_writes();
    warpgroup_sync(1 + warpgroup_);
  }

  /// By copies that are all on their way together, whatever the loop around them. Rows beyond the last one may hold anything:
  /// each row of a product depends on its own row of the queries alone, and theirs are never stored.
  __device__ __forceinline__ void load_queries(int first) {
    constexpr int kRowChunks = kBlocks * 8, kStep = kWarpgroupThreads / kRowChunks;  // rows that the threads load at a time
    const int rows = min(kWarpgroupRows, unit_.packed_count(a_) - first);
    const int chunk = static_cast<int>(static_cast<unsigned>(thread_) % kRowChunks);
    const int bytes = chunk * 8 < a_.head_dim ? 16 : 0;  // zeros beyond head_dim
    warpgroup_sync(1 + warpgroup_);  // nobody's wgmma reads the queries before any more
#pragma unroll 1
    for (int row = static_cast<int>(static_cast<unsigned>(thread_) / kRowChunks); row < rows; row += kStep) {
      const int lane_row = a_.by_group.quotient(first + row);
      const int head = unit_.kv_head * a_.group + a_.by_group.remainder(first + row, lane_row);
      const __nv_bfloat16* from = a_.q + head_offset(a_, unit_, lane_row, head) + (bytes > 0 ? chunk * 8 : 0);
      copy_16_padded(own_value(queries_ + page_chunk_offset(row, chunk)), from, bytes);
    }
    commit_copies();
    wait_copies<0>();
    publish_shared_writes();
    warpgroup_sync(1 + warpgroup_);
  }

  // --- windows

  __device__ __forceinline__ void store_partial() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // Not taken from rows_, so that it needn't stay in registers.
      const int packed = unit_.packed_begin + (thread_ & ~31) / 2 + warpgroup_ * kWarpgroupRows + (lane_ >> 2) + 8 * r;
      if (packed >= unit_.packed_count(a_)) continue;
      const int row = a_.by_group.quotient(packed), head = unit_.kv_head * a_.group + a_.by_group.remainder(packed, row);
      const std::int64_t at = (unit_.partial + row) * a_.heads + head;
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
  int oldest_ = 0;  // stage to be released next
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
  if (threadIdx.x < Shape::kStages) {
    barrier_init(memory.full + 8 * threadIdx.x, 1);
    barrier_init(memory.empty + 8 * threadIdx.x, kWarpgroups * 4);
    publish_barriers();
  }
  __syncthreads();
  allow_next();
  // The first unit, mostly the only one, is found here and not twice, once for each role.
  WgmmaWalk<kPrompt> walk(a);
  Unit unit;
  const bool found = walk.next(a, unit);
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroupThreads;
  if (warpgroup == kWarpgroups) {
    give_registers<Shape::kProducerRegisters>();
    if (static_cast<int>(threadIdx.x) % kWarpgroupThreads < 32) {
      WgmmaProducer<kBlocks, kWarpgroups, kPrompt>(a, memory).run(walk, unit, found);
    } else {
      wait_for_previous();
    }
  } else {
    take_registers<Shape::kConsumerRegisters>();
    WgmmaConsumer<kBlocks, kWarpgroups, kPrompt>(a, memory).run(walk, unit, found);
  }
#else
  (void)a;
#endif
}

}  // namespace tensorfold::ops::cuda
