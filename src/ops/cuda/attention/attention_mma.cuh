// Attention by mma.sync, for every GPU from compute capability 8.0 on. A CTA is 1 to 8 warps; each warp owns 16 packed query
// rows of the CTA's unit and all of them read the same tiles from the ring. Three forms: windows (a unit is one segment, its
// result goes to the partials), windows among which are trees, and prompts (a unit walks all segments and folds them).
//
// Trees. A tile that holds window positions is computed for each row with the keys and values of its own path: ldmatrix takes
// a row address from every thread, so gathering costs addresses only. Scores of the wrong rows are thrown away by select;
// for values the probabilities of other rows are zeros, and adding zero products changes nothing.
#pragma once

#include "ops/cuda/attention/attention_math.cuh"
#include "ops/cuda/attention/attention_work.cuh"
#include "ops/cuda/attention/tile_ring.cuh"
#include "ops/cuda/instructions.cuh"

namespace tensorfold::ops::cuda {

enum class MmaMode { kWindow, kTree, kPrompt };
constexpr int kMmaWarpsMax = 8;
constexpr int kFragmentRows = 16;  // packed rows of a warp

template <int kBlocks, MmaMode kMode>
struct MmaShared {
  using Shape = TileShape<kBlocks>;
  static constexpr bool kStateInRegisters = kBlocks <= 2;
  static constexpr int kQueryBytes = kFragmentRows * Shape::kDims * 2;  // of a warp
  static constexpr int kStateBytes = kMode == MmaMode::kPrompt && !kStateInRegisters ? kFragmentRows * Shape::kDims * 4 : 0;
  static constexpr int kTreeRowsMax = limits::kTreeRowsMax;
  static constexpr int kTreeBlockBytes = kTreeRowsMax * kBlockRowBytes;
  static constexpr int kTreePartBytes = kBlocks * kTreeBlockBytes;
  // keys, values, ancestor[row][depth], depth[row]
  static constexpr int kTreeBytes =
      kMode == MmaMode::kTree ? 2 * kTreePartBytes + kTreeRowsMax * kTreeRowsMax + kTreeRowsMax : 0;
  static constexpr int bytes(int warps) { return Shape::kRingBytes + warps * (kQueryBytes + kStateBytes) + kTreeBytes; }
};

/// A fragment of 16 x 16 numbers as ldmatrix leaves it.
struct Fragment {
  std::uint32_t r[4];
};
__device__ __forceinline__ Fragment load_fragment(std::uint32_t address) {
  Fragment fragment;
  load_matrices(address, fragment.r);
  return fragment;
}
__device__ __forceinline__ Fragment load_fragment_transposed(std::uint32_t address) {
  Fragment fragment;
  load_matrices_transposed(address, fragment.r);
  return fragment;
}

/// Row addresses for ldmatrix in a stage as it came from the page.
struct PlainRows {
  std::uint32_t base;  // of the thread's row of the first fragment
  __device__ __forceinline__ std::uint32_t at(int fragment, int block) const {
    return base + fragment * (16 * kBlockRowBytes) + block * kBlockBytes;
  }
};
/// The same for a tree row's path: each row from the stage or from the tree's area.
struct PathRows {
  std::uint32_t row[4], block_stride[4];
  __device__ __forceinline__ std::uint32_t at(int fragment, int block) const {
    return row[fragment] + block * block_stride[fragment];
  }
};

template <int kBlocks, MmaMode kMode>
class MmaWarp {
 public:
  using Shape = TileShape<kBlocks>;
  using Shared = MmaShared<kBlocks, kMode>;
  static constexpr bool kPrompt = kMode == MmaMode::kPrompt;
  static constexpr bool kQueryInRegisters = kBlocks <= 2;
  static constexpr int kOutputs = kBlocks * 32;  // fp32 of a thread: 2 rows

  __device__ __forceinline__ MmaWarp(const AttentionArguments& a, std::byte* shared)
      : a_(a), ring_(a, shared_address(shared)) {
    const int warps = static_cast<int>(blockDim.x) / 32;
    warp_ = static_cast<int>(threadIdx.x) / 32;
    lane_ = static_cast<int>(threadIdx.x) % 32;
    queries_ = shared_address(shared) + Shape::kRingBytes + warp_ * Shared::kQueryBytes;
    state_ = shared_address(shared) + Shape::kRingBytes + warps * Shared::kQueryBytes + warp_ * Shared::kStateBytes + lane_ * 16;
    tree_ = shared + Shape::kRingBytes + warps * (Shared::kQueryBytes + Shared::kStateBytes);
    key_row_ = (lane_ & 7) + ((lane_ >> 4) << 3);
    key_chunk_ = (lane_ >> 3) & 1;
    row_ = (lane_ & 7) + ((lane_ >> 3) & 1) * 8;
    chunk_ = lane_ >> 4;
  }

  __device__ __forceinline__ void run() {
    ring_.start(a_);
    UnitWalk<kPrompt> walk(a_);
#pragma unroll 1
    while (walk.next(a_, unit_)) run_unit();
    wait_copies<0>();
  }

 private:
  __device__ __forceinline__ void run_unit() {
    load_queries();
    if constexpr (kMode == MmaMode::kTree) load_tree();
    rows_.load(a_, unit_, unit_.packed_begin + warp_ * kFragmentRows, lane_);
    if constexpr (kPrompt) open_fold();
    open_segment();
#pragma unroll 1
    for (int tile = unit_.tile; tile < unit_.tile_end; ++tile) {
      run_tile(tile);
      const bool last = tile + 1 == unit_.tile_end;
      if (!last && !(kPrompt && ends_segment(tile))) continue;
      segment_.close();
      if constexpr (kPrompt) {
        fold_segment();
        if (!last) open_segment();
      } else {
        store_partial();
      }
    }
    if constexpr (kPrompt) store_rows();
  }

  __device__ __forceinline__ void run_tile(int tile) {
    float s[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] = 0.0f;
    const bool on_path = kMode == MmaMode::kTree && unit_.lane.parents != nullptr &&
                         (tile + 1) * kTileKeys > unit_.lane.position;
#pragma unroll
    for (int part = 0; part < Shape::kParts; ++part) {
      const std::uint32_t stage = ring_.acquire(a_);
      if (on_path) {
        if constexpr (kMode == MmaMode::kTree) score_paths(s, stage, part, tile);
      } else {
        score(s, PlainRows{stage + key_row_ * kBlockRowBytes}, part);
      }
    }
    if (rows_.sees_part(tile)) {
      VisibleKeys visible;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        visible.first[r] = rows_.keys[r].first - tile * kTileKeys;
        visible.last[r] = rows_.keys[r].last - tile * kTileKeys;
      }
      mask_scores(s, visible, lane_ & 3);
    }
    float alpha[2];
    softmax_tile(s, segment_, alpha, a_.scale_log2);
    rescale(o_, alpha);
    std::uint32_t p[16];
    pack_probabilities(s, p);
#pragma unroll
    for (int part = 0; part < Shape::kParts; ++part) {
      const std::uint32_t stage = ring_.acquire(a_);
      if (on_path) {
        if constexpr (kMode == MmaMode::kTree) add_path_values(p, stage, part, tile);
      } else {
        if (unit_.needs_cleaning(tile)) clean(stage, tile);
        add_values(p, PlainRows{stage + row_ * kBlockRowBytes}, part);
      }
    }
  }

  /// Scores += q . k over one part of the dimensions.
  template <typename Rows>
  __device__ __forceinline__ void score(float (&s)[32], const Rows& rows, int part) {
#pragma unroll
    for (int step = 0; step < 4 * Shape::kStageBlocks; ++step) {
      const int dims_step = part * 4 * Shape::kStageBlocks + step;
      std::uint32_t q[4];
      if constexpr (kQueryInRegisters) {
#pragma unroll
        for (int i = 0; i < 4; ++i) q[i] = q_[dims_step * 4 + i];
      } else {
        const Fragment f = load_fragment(queries_ + row_ * (Shape::kDims * 2) + (((dims_step * 2 + chunk_) ^ (lane_ & 7)) << 4));
#pragma unroll
        for (int i = 0; i < 4; ++i) q[i] = f.r[i];
      }
      const std::uint32_t chunk = (((step & 3) * 2 + key_chunk_) ^ (lane_ & 7)) << 4;
#pragma unroll
      for (int keys = 0; keys < 4; ++keys) {
        const Fragment k = load_fragment(rows.at(keys, step >> 2) + chunk);
        mma_at(s + keys * 8, q, k.r[0], k.r[1]);
        mma_at(s + keys * 8 + 4, q, k.r[2], k.r[3]);
      }
    }
  }

  /// O += P . V for one part of the dimensions.
  template <typename Rows>
  __device__ __forceinline__ void add_values(const std::uint32_t (&p)[16], const Rows& rows, int part) {
#pragma unroll
    for (int keys = 0; keys < 4; ++keys) {
#pragma unroll
      for (int dims = 0; dims < 4 * Shape::kStageBlocks; ++dims) {
        const std::uint32_t chunk = (((dims & 3) * 2 + chunk_) ^ (lane_ & 7)) << 4;
        const Fragment v = load_fragment_transposed(rows.at(keys, dims >> 2) + chunk);
        float* o = o_ + (part * 4 * Shape::kStageBlocks + dims) * 8;
        mma_at(o, p + keys * 4, v.r[0], v.r[1]);
        mma_at(o + 4, p + keys * 4, v.r[2], v.r[3]);
      }
    }
  }

  __device__ __forceinline__ void clean(std::uint32_t stage, int tile) {
    clean_values<Shape::kStageBlocks>(unit_, tile, stage, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
    __syncthreads();
  }

  __device__ __forceinline__ void load_queries() {
    const int packed = unit_.packed_count(a_), first = unit_.packed_begin + warp_ * kFragmentRows;
    __syncwarp();
    for (int i = lane_; i < kFragmentRows * kBlocks * 8; i += 32) {
      const int row = i / (kBlocks * 8), chunk = i % (kBlocks * 8);
      uint4 value = make_uint4(0, 0, 0, 0);
      if (first + row < packed && chunk * 8 < a_.head_dim) {
        const int head = unit_.kv_head * a_.group + (first + row) % a_.group;
        value = __ldcg(reinterpret_cast<const uint4*>(a_.q + head_offset(a_, unit_, (first + row) / a_.group, head) + chunk * 8));
      }
      store_shared_16(queries_ + row * (Shape::kDims * 2) + ((chunk ^ (row & 7)) << 4), value);
    }
    __syncwarp();
    if constexpr (kQueryInRegisters) {
#pragma unroll
      for (int step = 0; step < kBlocks * 4; ++step) {
        const Fragment f = load_fragment(queries_ + row_ * (Shape::kDims * 2) + (((step * 2 + chunk_) ^ (lane_ & 7)) << 4));
#pragma unroll
        for (int i = 0; i < 4; ++i) q_[step * 4 + i] = f.r[i];
      }
    }
  }

  __device__ __forceinline__ void open_segment() {
    segment_.open();
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o_[i] = 0.0f;
  }

  // --- windows

  __device__ __forceinline__ void store_partial() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!rows_.valid[r]) continue;
      const std::int64_t at = (unit_.partial + rows_.row[r]) * a_.heads + rows_.head[r];
      float* out = a_.partial_outputs + at * Shape::kDims + 2 * (lane_ & 3);
#pragma unroll
      for (int n = 0; n < kBlocks * 8; ++n) {
        *reinterpret_cast<float2*>(out + n * 8) = make_float2(o_[n * 4 + r * 2], o_[n * 4 + r * 2 + 1]);
      }
      if ((lane_ & 3) == 0) a_.partial_states[at] = make_float2(segment_.maximum[r], segment_.sum[r]);
    }
  }

  // --- prompts

  __device__ __forceinline__ void open_fold() {
    folded_.open();
    if constexpr (Shared::kStateInRegisters) {
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) run_[i] = 0.0f;
    } else {
#pragma unroll
      for (int i = 0; i < kOutputs / 4; ++i) store_shared_16(state_ + i * 512, make_uint4(0, 0, 0, 0));
    }
  }
  __device__ __forceinline__ void fold_segment() {
    FoldFactors f[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      f[r] = fold_factors(folded_.maximum[r], segment_.maximum[r], a_.scale_log2);
      folded_.sum[r] = fold(folded_.sum[r], segment_.sum[r], f[r]);
    }
    if constexpr (Shared::kStateInRegisters) {
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) run_[i] = fold(run_[i], o_[i], f[(i >> 1) & 1]);
    } else {
#pragma unroll
      for (int i = 0; i < kOutputs / 4; ++i) {
        uint4 v = load_shared_16(state_ + i * 512);
        v.x = __float_as_uint(fold(__uint_as_float(v.x), o_[i * 4], f[0]));
        v.y = __float_as_uint(fold(__uint_as_float(v.y), o_[i * 4 + 1], f[0]));
        v.z = __float_as_uint(fold(__uint_as_float(v.z), o_[i * 4 + 2], f[1]));
        v.w = __float_as_uint(fold(__uint_as_float(v.w), o_[i * 4 + 3], f[1]));
        store_shared_16(state_ + i * 512, v);
      }
    }
  }
  __device__ __forceinline__ void store_rows() {
#pragma unroll
    for (int n = 0; n < kBlocks * 8; ++n) {
      float v[4];
      if constexpr (Shared::kStateInRegisters) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = run_[n * 4 + i];
      } else {
        const uint4 u = load_shared_16(state_ + n * 512);
        v[0] = __uint_as_float(u.x), v[1] = __uint_as_float(u.y), v[2] = __uint_as_float(u.z), v[3] = __uint_as_float(u.w);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (!rows_.valid[r]) continue;
        store_output(a_, unit_, rows_.row[r], rows_.head[r], n * 8 + 2 * (lane_ & 3), v[r * 2], v[r * 2 + 1], folded_.sum[r]);
      }
    }
  }

  // --- trees

  __device__ __forceinline__ std::uint8_t* ancestors() const {
    return reinterpret_cast<std::uint8_t*>(tree_ + 2 * Shared::kTreePartBytes);
  }
  __device__ __forceinline__ int tree_depth(int row) const {
    return ancestors()[Shared::kTreeRowsMax * Shared::kTreeRowsMax + row];
  }

  /// The tree's keys and values, and for every row the row at each depth of its path.
  __device__ __forceinline__ void load_tree() {
    const LaneView& lane = unit_.lane;
    if (lane.parents == nullptr || unit_.tile_end * kTileKeys <= lane.position) return;
    __syncthreads();  // nobody reads the tree before any more
    const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
    std::uint8_t* ancestor = ancestors();
    for (int row = thread; row < lane.row_count; row += threads) {
      ancestor[Shared::kTreeRowsMax * Shared::kTreeRowsMax + row] = static_cast<std::uint8_t>(lane.depths[row]);
      for (int at = row; at >= 0; at = lane.parents[at]) {
        ancestor[row * Shared::kTreeRowsMax + lane.depths[at]] = static_cast<std::uint8_t>(at);
      }
    }
    const std::byte* from = a_.trees + static_cast<std::size_t>(lane.slot) * a_.tree_bytes +
                            static_cast<std::size_t>(unit_.kv_head) * tree_head_bytes(kBlocks);
    const std::uint32_t to = shared_address(tree_);
    const int chunks = lane.row_count * kBlocks * 8;
    for (int i = thread; i < 2 * chunks; i += threads) {
      const int part = i / chunks, row = i % chunks / (kBlocks * 8), chunk = i % (kBlocks * 8);
      const uint4 value = __ldcg(reinterpret_cast<const uint4*>(from + part * tree_part_bytes(kBlocks) + row * tree_row_bytes(kBlocks)) + chunk);
      const int swizzle = (lane.position + lane.depths[row]) & 7;  // as at the row's place in a page
      store_shared_16(to + part * Shared::kTreePartBytes + (chunk >> 3) * Shared::kTreeBlockBytes + row * kBlockRowBytes +
                          (((chunk & 7) ^ swizzle) << 4),
                      value);
    }
    __syncthreads();
  }

  /// Addresses of keys first, first + 16, ... of the tile on the path of `row`, of keys (0) or values (1). A key beyond the
  /// row's own stands for the row itself: it is masked, and finite.
  __device__ __forceinline__ PathRows path_rows(std::uint32_t stage, int first, int tile, int row, int kind, int part) const {
    PathRows rows;
    const std::uint32_t tree = shared_address(tree_) + kind * Shared::kTreePartBytes + part * Shape::kStageBlocks * Shared::kTreeBlockBytes;
    const int depth_max = tree_depth(row);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first + 16 * i, depth = tile * kTileKeys + key - unit_.lane.position;
      if (depth < 0) {
        rows.row[i] = stage + key * kBlockRowBytes;
        rows.block_stride[i] = kBlockBytes;
      } else {
        const int at = depth <= depth_max ? ancestors()[row * Shared::kTreeRowsMax + depth] : row;
        rows.row[i] = tree + at * kBlockRowBytes;
        rows.block_stride[i] = Shared::kTreeBlockBytes;
      }
    }
    return rows;
  }
  /// Rows of the tree that this warp's packed rows belong to and that reach the tile.
  template <typename Body>
  __device__ __forceinline__ void for_tree_rows(int tile, Body body) const {
    const int first = unit_.packed_begin + warp_ * kFragmentRows, packed = unit_.packed_count(a_);
    if (first >= packed) return;
    const int end = (min(first + kFragmentRows, packed) - 1) / a_.group;
#pragma unroll 1
    for (int row = first / a_.group; row <= end; ++row) {
      if (unit_.lane.position + tree_depth(row) >= tile * kTileKeys) body(row);
    }
  }
  __device__ __forceinline__ void score_paths(float (&s)[32], std::uint32_t stage, int part, int tile) {
    for_tree_rows(tile, [&](int row) {
      float own[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) own[i] = s[i];
      score(own, path_rows(stage, key_row_, tile, row, 0, part), part);
#pragma unroll
      for (int i = 0; i < 32; ++i) s[i] = rows_.row[(i >> 1) & 1] == row ? own[i] : s[i];
    });
  }
  __device__ __forceinline__ void add_path_values(const std::uint32_t (&p)[16], std::uint32_t stage, int part, int tile) {
    for_tree_rows(tile, [&](int row) {
      std::uint32_t own[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) own[i] = rows_.row[i & 1] == row ? p[i] : 0u;
      add_values(own, path_rows(stage, row_, tile, row, 1, part), part);
    });
  }

  const AttentionArguments& a_;
  TileRing<kBlocks, kPrompt> ring_;
  std::byte* tree_;
  std::uint32_t queries_, state_;
  int warp_, lane_;
  int key_row_, key_chunk_;  // the thread's row and chunk when it loads keys,
  int row_, chunk_;          // and when it loads queries and values
  Unit unit_;
  RowPair rows_;
  SegmentState segment_, folded_;
  std::uint32_t q_[kQueryInRegisters ? kBlocks * 16 : 1];
  float o_[kOutputs];
  float run_[kPrompt && Shared::kStateInRegisters ? kOutputs : 1];
};

template <int kBlocks, MmaMode kMode>
__global__ void __launch_bounds__(kMmaWarpsMax * 32, 1) attention_mma_kernel(const __grid_constant__ AttentionArguments a) {
  extern __shared__ __align__(1024) std::byte shared[];
  allow_next();
  MmaWarp<kBlocks, kMode> warp(a, shared);
  warp.run();
}

}  // namespace tensorfold::ops::cuda
