// Linear layers on 1 to 16 rows, on Hopper GPUs: as fast as weights come from memory. The bits are those of every other
// kernel; here is how the work lies.
//
//   cluster   of 1, 2 or 4 CTAs owns a range of tiles (16 output rows). Each CTA holds x of its share of the K-segments in
//             shared memory.
//   warp      is (slot, segment): the slot's tiles, that segment of K. It works on up to `tiles_at_once` tiles side by side,
//             so that fragments of x are read once for all of them and their accumulators hide each other's latency.
//   weights   come through a ring of the warp's own, block after block, by cp.async: whoever reads a word is in the warp that
//             copied it, so no barrier of the CTA is in the way. The ring is filled before wait_for_previous().
//   sums      of a tile's segments go to the CTA that owns the slot (st.async, counted at its barrier; a CTA alone stores them
//             and its warps arrive), whose warps add them in the layer's order and store. Meanwhile all warps are at the next
//             tiles.
//
// A barrier pair a slot and hand-over buffer: `full` (in the owner) completes when all segments' bytes are there; `empty` (in
// every CTA) when the owner's warps have read the buffer. Nobody arrives at an `empty` that isn't waited for, because the CTA
// may have gone; the owner waits for every `full`, so nothing is sent to a CTA that has gone.
//
// x may be a norm that the CTA runs itself (normed_input.cuh).
//
// What precedes the first product is latency that every layer of a chain pays: places are computed without a division, copies
// of weights are the first thing to start.
#pragma once

#include "ops/cuda/instructions.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear/dequantise.cuh"
#include "ops/cuda/linear/mma.cuh"
#include "ops/cuda/linear/normed_input.cuh"

namespace tensorfold::ops::cuda {

/// A range cut into pieces that differ by one at most: the first `extra` have `each` + 1.
struct EvenCut {
  std::int32_t each, extra;
#if defined(__CUDACC__)
  __host__ __device__
#endif
  std::int32_t begin(std::int32_t piece) const { return piece * each + (piece < extra ? piece : extra); }
};

/// Block: (32 lanes, segments of a CTA, slots).
struct DecodeArguments {
  PackedPart part;
  const __nv_bfloat16* x;
  IdsRef row_index;
  NormedInput norm;            // instead of x and row_index, where it has rows
  std::int32_t runs_aligned;   // eight columns of x can be copied at once
  LinearOutput out;
  std::int32_t cluster_shift;  // CTAs of a cluster, as a power of two
  std::int32_t buffers;        // of a slot, 1 or 2
  EvenCut clusters;            // tiles
  EvenCut slots[2];            // tiles of a cluster that has clusters.each, and of one that has one more
  // Offsets in shared memory; x lies at 0.
  std::uint32_t sums_at, rings_at, barriers_at;
};

constexpr int kPieceBytes = 512;  // one tile, one segment, eight tokens: 16 bytes a lane

/// How a kernel is built; `warps` and `ctas` (on a multiprocessor) bound its registers.
template <int tokens, int tiles, int ring_stages, int warps, int ctas>
struct DecodeBuild {
  static constexpr int kTokenTiles = tokens;
  static constexpr int kTilesAtOnce = tiles;
  static constexpr int kStages = ring_stages;
  static constexpr int kWarpsMax = warps;
  static constexpr int kCtas = ctas;
  /// A slot's hand-over buffer: [tile][segment][eight tokens][lane].
  static constexpr int kSumsBytes = tiles * kSegmentsMax * tokens * kPieceBytes;
};

#if defined(__CUDACC__)

namespace decode {

/// A constant where the format has but one size, so that addresses are, too. A run-time size is part of the addresses of copies, hence own_value().
template <typename F>
__device__ __forceinline__ int block_bytes(const PackedPart& part) {
  return fixed_block_bytes<F>() != 0 ? fixed_block_bytes<F>() : own_value(part.block_bytes);
}

/// The warp's ring: blocks of its segment, tile group after tile group.
template <typename F, typename Build>
class WeightRing {
 public:
  static constexpr int kTiles = Build::kTilesAtOnce;
  static constexpr int kWholeRounds = F::kBits / 2;  // 512 bytes of codes each
  static constexpr int kTailRounds = F::kBits == 16 ? 0 : F::kArithmetic == WeightArithmetic::kFloat && F::kScaleSets == 2 ? 2 : 1;

  __device__ __forceinline__ WeightRing(const PackedPart& part, std::uint32_t ring, int first_tile, int tiles, int first_block,
                                        int blocks)
      : block_bytes_(block_bytes<F>(part)),
        first_(ring),
        stage_(ring),
        tile_bytes_(part.k_blocks * block_bytes_),
        tiles_left_(blocks > 0 ? tiles : 0),
        blocks_(blocks),
        blocks_left_(blocks),
        jump_(static_cast<std::uint32_t>(kTiles * tile_bytes_ - blocks * block_bytes_)),
        policy_(policy_read_once()) {
    const int lane = threadIdx.x;
    const int tail = block_bytes_ / 16 - 32 * kWholeRounds;
#pragma unroll
    for (int i = 0; i < kTailRounds; ++i) in_tail_[i] = lane + 32 * i < tail;
    next_ = part.blocks + static_cast<std::int64_t>(first_tile) * tile_bytes_ + first_block * block_bytes_ + lane * 16;
#pragma unroll 1
    for (int i = 0; i < Build::kStages; ++i) start_copy(ring + i * kTiles * block_bytes_);
  }

  __device__ __forceinline__ SharedBlock block(int tile) const { return {stage_ + tile * block_bytes_}; }

  /// When every lane has read the stage: fills it anew and goes on to the next.
  __device__ __forceinline__ void refill() {
    start_copy(stage_);
    stage_ += kTiles * block_bytes_;
    if (stage_ == first_ + Build::kStages * kTiles * block_bytes_) stage_ = first_;
  }

 private:
  __device__ __forceinline__ void start_copy(std::uint32_t stage) {
    const std::uint8_t* from = next_;
    std::uint32_t to = stage + threadIdx.x * 16;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const bool wanted = tile < tiles_left_;
#pragma unroll
      for (int round = 0; round < kWholeRounds; ++round) copy_16_if(wanted, to + 512 * round, from + 512 * round, policy_);
#pragma unroll
      for (int i = 0; i < kTailRounds; ++i) {
        const int at = 512 * (kWholeRounds + i);
        copy_16_if(wanted && in_tail_[i], to + at, from + at, policy_);
      }
      from += tile_bytes_;
      to += block_bytes_;
    }
    commit_copies();
    next_ += block_bytes_;
    if (--blocks_left_ == 0) {
      blocks_left_ = blocks_;
      tiles_left_ -= kTiles;
      next_ += jump_;
    }
  }

  int block_bytes_;
  std::uint32_t first_, stage_;
  int tile_bytes_, tiles_left_, blocks_, blocks_left_;
  std::uint32_t jump_;  // to the same segment of the next tiles
  bool in_tail_[kTailRounds > 0 ? kTailRounds : 1];
  std::uint64_t policy_;
  const std::uint8_t* next_;
};

/// x of the CTA's columns, zero beyond K. A barrier of the CTA follows.
__device__ __forceinline__ void stage_input(const DecodeArguments& a, const InputTile& tile) {
  const int chunks = tile.columns / 8;
  const int thread = threadIdx.x + 32 * (threadIdx.y + blockDim.y * threadIdx.z), threads = 32 * blockDim.y * blockDim.z;
  const bool listed = a.row_index.header != nullptr;
  for (int m = 0; m < tile.rows; ++m) {
    const std::int64_t row = listed ? pass_ids(a.row_index)[m] : m;
    const __nv_bfloat16* from = a.x + row * a.part.columns;
    for (int chunk = thread; chunk < chunks; chunk += threads) {
      const std::uint32_t to = tile.chunk_address(chunk, m);
      const int column = tile.first_column + 8 * chunk;
      if (a.runs_aligned) {
        copy_16_padded(to, column < a.part.columns ? from + column : from, column < a.part.columns ? 16 : 0);
        continue;
      }
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int k = column + 2 * i;
        const std::uint32_t low = k < a.part.columns ? __bfloat16_as_ushort(from[k]) : 0;
        const std::uint32_t high = k + 1 < a.part.columns ? __bfloat16_as_ushort(from[k + 1]) : 0;
        words[i] = low | high << 16;
      }
      store_shared_16(to, make_uint4(words[0], words[1], words[2], words[3]));
    }
  }
  commit_copies();
  wait_copies<0>();
}

/// Codes and scales of one block, both halves: everything that is read before the stage is refilled.
template <typename F>
struct BlockWeights {
  HalfCodes<F> codes[2];
  HalfScales<F> scales[2];
  __device__ __forceinline__ void load(SharedBlock block, const PackedPart& part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      codes[half] = load_codes<F>(block, half, threadIdx.x);
      scales[half] = load_scales<F>(block, part, half, threadIdx.x);
    }
  }
};

/// Two k16 steps of a half on `tiles` tiles. `input`: the lane's address of x for these steps, per eight tokens.
template <typename F, int first_step, int tiles, int token_tiles>
__device__ __forceinline__ void multiply_steps(const BlockWeights<F> (&weights)[tiles], int half,
                                               const std::uint32_t (&input)[token_tiles],
                                               float (&sums)[tiles][token_tiles][4]) {
  std::uint32_t a[tiles][2][4];
#pragma unroll
  for (int tile = 0; tile < tiles; ++tile) {
    fragment<F, first_step>(weights[tile].codes[half], weights[tile].scales[half], a[tile][0]);
    fragment<F, first_step + 1>(weights[tile].codes[half], weights[tile].scales[half], a[tile][1]);
  }
#pragma unroll
  for (int i = 0; i < token_tiles; ++i) {
    std::uint32_t b[4];
    load_matrices(input[i], b);
#pragma unroll
    for (int tile = 0; tile < tiles; ++tile) mma(sums[tile][i], a[tile][0], b[0], b[1]);
#pragma unroll
    for (int tile = 0; tile < tiles; ++tile) mma(sums[tile][i], a[tile][1], b[2], b[3]);
  }
}

#if __CUDA_ARCH__ >= 900

/// What one warp is and where its buffers lie.
struct WarpPlace {
  int rank;                       // of the CTA in the cluster
  int first_tile, tiles;          // the slot's
  int segment, first_block, blocks;  // no blocks: the warp only adds
  bool owner;                     // this CTA adds the slot's sums
  std::uint32_t full, empty;      // barriers, one after the other a buffer
  std::uint32_t sums;             // the slot's hand-over buffers in the owner
};

template <typename Build>
__device__ __forceinline__ WarpPlace find_place(const DecodeArguments& a, std::uint32_t shared) {
  WarpPlace place;
  const int index = threadIdx.y, slot = threadIdx.z, shift = a.cluster_shift;
  place.rank = static_cast<int>(rank_in_cluster());
  const int cluster = blockIdx.x >> shift;
  const EvenCut& slots = a.slots[cluster < a.clusters.extra ? 1 : 0];
  place.first_tile = a.clusters.begin(cluster) + slots.begin(slot);
  place.tiles = slots.begin(slot + 1) - slots.begin(slot);
  place.segment = place.rank * blockDim.y + index;
  place.first_block = place.segment * a.part.segment_blocks;
  place.blocks = max(0, min(a.part.segment_blocks, a.part.k_blocks - place.first_block));
  const int owned_slot = slot >> shift, owned_slots = (blockDim.z + (1 << shift) - 1) >> shift;
  place.owner = (slot & ((1 << shift) - 1)) == place.rank;
  const std::uint32_t barriers = shared + a.barriers_at;
  place.full = barriers + 8 * owned_slot * a.buffers;
  place.empty = barriers + 8 * (owned_slots + slot) * a.buffers;
  place.sums = shared + a.sums_at + owned_slot * a.buffers * Build::kSumsBytes;
  return place;
}

/// By the CTA's first warp. A cluster's sums are counted in bytes, which the owner expects; a CTA alone has its warps arrive.
__device__ __forceinline__ void init_barriers(const DecodeArguments& a, std::uint32_t shared) {
  const int full_arrivals = a.cluster_shift > 0 ? 1 : a.part.segments;
  const int full = ((blockDim.z + (1 << a.cluster_shift) - 1) >> a.cluster_shift) * a.buffers;
  const int all = full + blockDim.z * a.buffers;
#pragma unroll 1
  for (int i = threadIdx.x; i < all; i += 32) barrier_init(shared + a.barriers_at + 8 * i, i < full ? full_arrivals : blockDim.y);
  if (a.norm.x != nullptr && threadIdx.x == 0) barrier_init(shared + a.norm.arrived_at, 1);
  publish_barriers();
}

/// The sum of all segments of one piece, which lie `stride` bytes apart. Most layers have all eight: no questions asked then.
__device__ __forceinline__ void add_pieces(const PackedPart& part, std::uint32_t from, int stride, float (&total)[4]) {
  float values[kSegmentsMax][4];
  if (part.segments == kSegmentsMax) {
#pragma unroll
    for (int segment = 0; segment < kSegmentsMax; ++segment) load_shared_16(from + segment * stride, values[segment]);
    sum_segments(values, kSegmentsMax, part.segment_tree != 0);
  } else {
#pragma unroll
    for (int segment = 0; segment < kSegmentsMax; ++segment) {
      if (segment < part.segments) load_shared_16(from + segment * stride, values[segment]);
    }
    sum_segments(values, part.segments, part.segment_tree != 0);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) total[i] = values[0][i];
}

/// threadIdx.x, but to the compiler another number each time: what follows from it isn't computed before a loop and kept over it,
/// where registers are short.
__device__ __forceinline__ int lane_anew() {
  int lane;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(lane));
  return lane;
}

/// The owner's part in hand-over `turn`: adds the segments of `tiles` tiles and stores.
template <typename Build>
__device__ __forceinline__ void add_segments(const DecodeArguments& a, const WarpPlace& place, int turn, int turns) {
  if (!place.owner) return;
  constexpr int kTokenTiles = Build::kTokenTiles;
  const int lane = lane_anew();
  const int buffer = turn & (a.buffers - 1), phase = turn >> (a.buffers - 1) & 1;
  const int first = turn * Build::kTilesAtOnce;
  const int pieces = min(Build::kTilesAtOnce, place.tiles - first) * kTokenTiles;
  const std::uint32_t sums = place.sums + buffer * Build::kSumsBytes + lane * 16;
  // The residual, where the layer adds to it, is asked for before the sums are waited for. Warps without a piece wait for them, too.
  int piece = threadIdx.y;
#pragma unroll 1
  do {
    const int tile = piece / kTokenTiles, i = piece % kTokenTiles;
    const TileOutput output(a.out, a.part, place.first_tile + first + tile, 8 * i, lane, piece < pieces);
    barrier_wait(place.full + 8 * buffer, phase);
    if (piece >= pieces) break;
    float total[4];
    add_pieces(a.part, sums + (tile * kSegmentsMax * kTokenTiles + i) * kPieceBytes, kTokenTiles * kPieceBytes, total);
    output.store(total);
    piece += blockDim.y;
  } while (piece < pieces);
  if (turn + a.buffers >= turns) return;
  __syncwarp();
  if (a.cluster_shift == 0) {
    if (lane == 0) barrier_arrive(place.empty + 8 * buffer);
  } else if (lane < 1 << a.cluster_shift) {
    barrier_arrive_relaxed(cluster_address(place.empty + 8 * buffer, lane));
  }
}

/// Where the warp's sums go in the slot's owner: the lane's 16 bytes in the first buffer, and its barrier. Addresses of the
/// cluster's, where there is one.
struct HandOver {
  std::uint32_t sums, full;
  __device__ __forceinline__ HandOver(const DecodeArguments& a, const WarpPlace& place, int segment_bytes)
      : sums(place.sums + place.segment * segment_bytes + threadIdx.x * 16), full(place.full) {
    if (a.cluster_shift == 0) return;
    const std::uint32_t owner = threadIdx.z & ((1 << a.cluster_shift) - 1);
    sums = cluster_address(sums, owner);
    full = cluster_address(full, owner);
  }
};

/// Hands a turn's sums over to the slot's owner.
template <typename Build>
__device__ __forceinline__ void hand_over(const DecodeArguments& a, const WarpPlace& place, const HandOver& there, int turn, int tiles,
                                          const float (&sums)[Build::kTilesAtOnce][Build::kTokenTiles][4]) {
  constexpr int kTokenTiles = Build::kTokenTiles, kTiles = Build::kTilesAtOnce;
  const int lane = threadIdx.x, buffer = turn & (a.buffers - 1);
  if (turn >= a.buffers) barrier_wait(place.empty + 8 * buffer, ((turn >> (a.buffers - 1)) - 1) & 1);
  const std::uint32_t to = there.sums + buffer * Build::kSumsBytes, full = there.full + 8 * buffer;
  if (a.cluster_shift == 0) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (t >= tiles) break;
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i) store_shared_16(to + (t * kSegmentsMax * kTokenTiles + i) * kPieceBytes, sums[t][i]);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(full);
    return;
  }
  if (place.owner && threadIdx.y == 0 && lane == 0) {
    barrier_expect(place.full + 8 * buffer, tiles * kTokenTiles * a.part.segments * kPieceBytes);
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if (t >= tiles) break;
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i) {
      send_16(to + (t * kSegmentsMax * kTokenTiles + i) * kPieceBytes, full, sums[t][i]);
    }
  }
}

/// The lane's addresses in x for ldmatrix, whose matrices are (k 0..7, k 8..15) of two steps; tokens beyond the call read row
/// 0. `flip`: to the other two steps of 64 columns; `step`: to the next 64.
template <int token_tiles>
struct InputAddresses {
  std::uint32_t start[token_tiles], flip[token_tiles], step;
  __device__ __forceinline__ InputAddresses(std::uint32_t segment_start, int rows) : step(rows * 128) {
#pragma unroll
    for (int i = 0; i < token_tiles; ++i) {
      const int token = 8 * i + threadIdx.x % 8;
      const int row = token < rows ? token : 0;
      const std::uint32_t offset = row * 128 + ((threadIdx.x / 8 ^ row % 8) << 4);
      start[i] = segment_start + offset;
      flip[i] = (offset ^ 64) - offset;
    }
  }
};

/// The warp's segment of `tiles` tiles.
template <typename F, int tiles, typename Build>
__device__ __forceinline__ void multiply_segment(const PackedPart& part, int blocks, WeightRing<F, Build>& ring,
                                                 const InputAddresses<Build::kTokenTiles>& x,
                                                 float (&all_sums)[Build::kTilesAtOnce][Build::kTokenTiles][4]) {
  constexpr int kTokenTiles = Build::kTokenTiles;
  float sums[tiles][kTokenTiles][4] = {};
  std::uint32_t input[kTokenTiles];
#pragma unroll
  for (int i = 0; i < kTokenTiles; ++i) input[i] = x.start[i];
#pragma unroll 1
  for (int block = 0; block < blocks; ++block) {
    wait_copies<Build::kStages - 1>();
    __syncwarp();
    BlockWeights<F> weights[tiles];
#pragma unroll
    for (int tile = 0; tile < tiles; ++tile) weights[tile].load(ring.block(tile), part);
    __syncwarp();
    ring.refill();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      multiply_steps<F, 0>(weights, half, input, sums);
      std::uint32_t second[kTokenTiles];
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i) second[i] = input[i] + x.flip[i];
      multiply_steps<F, 2>(weights, half, second, sums);
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i) input[i] += x.step;
    }
  }
#pragma unroll
  for (int tile = 0; tile < tiles; ++tile) {
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) all_sums[tile][i][j] = sums[tile][i][j];
    }
  }
}

template <typename F, typename Build>
__device__ __forceinline__ void decode_layer(const DecodeArguments& a) {
  extern __shared__ __align__(1024) std::uint8_t shared_memory[];
  constexpr int kTokenTiles = Build::kTokenTiles, kTiles = Build::kTilesAtOnce;
  const int warp = threadIdx.y + blockDim.y * threadIdx.z;
  const std::uint32_t shared = shared_address(shared_memory);
  const WarpPlace place = find_place<Build>(a, shared);
  const int ring_bytes = Build::kStages * kTiles * block_bytes<F>(a.part);
  WeightRing<F, Build> ring(a.part, shared + a.rings_at + warp * ring_bytes, place.first_tile, place.tiles, place.first_block,
                            place.blocks);
  if (warp == 0) init_barriers(a, shared);
  if (a.cluster_shift > 0) {
    __syncwarp();
    cluster_arrive_relaxed();
  }
  allow_next();
  const int cta_columns = blockDim.y * a.part.segment_blocks * kBlockColumns;
  InputTile tile;
  tile.address = shared;
  tile.rows = a.out.rows;
  tile.first_column = place.rank * cta_columns;
  tile.columns = min(cta_columns, a.part.k_blocks * kBlockColumns - tile.first_column);
  if (a.norm.x != nullptr) {
    copy_norm_weights(a.norm, shared, a.part.columns, tile.first_column, tile.first_column + tile.columns);
    __syncthreads();  // the rows' barrier is there
    wait_for_previous();
    if (warp == 0 && threadIdx.x == 0) ask_rows(a.norm, shared, a.part.columns, tile.rows);
    const bool keeps = a.norm.kept != nullptr && blockIdx.x >> a.cluster_shift == 0;
    stage_normed(a.norm, shared, tile, a.part.columns, keeps);
  } else {
    wait_for_previous();
    stage_input(a, tile);
  }
  __syncthreads();
  if (a.cluster_shift > 0) cluster_wait_acquire();

  const InputAddresses<kTokenTiles> x(shared + threadIdx.y * a.part.segment_blocks * 256 * tile.rows, tile.rows);
  const HandOver there(a, place, kTokenTiles * kPieceBytes);
  const int turns = (place.tiles + kTiles - 1) / kTiles;
  // One turn more than there are: the code that adds is there once, so that a cold kernel runs fewer instructions.
#pragma unroll 1
  for (int turn = 0; turn <= turns; ++turn) {
    const int tiles = min(kTiles, place.tiles - turn * kTiles);
    float sums[kTiles][kTokenTiles][4];
    if (turn < turns) {
      if (tiles == kTiles) {
        multiply_segment<F, kTiles>(a.part, place.blocks, ring, x, sums);
      } else if (kTiles == 3 && tiles == 2) {
        multiply_segment<F, kTiles == 3 ? 2 : 1>(a.part, place.blocks, ring, x, sums);
      } else {
        multiply_segment<F, 1>(a.part, place.blocks, ring, x, sums);
      }
    }
    if (turn > 0) add_segments<Build>(a, place, turn - 1, turns);
    if (turn < turns && place.blocks > 0) hand_over<Build>(a, place, there, turn, tiles, sums);
  }
}

#endif

}  // namespace decode

template <typename F, typename Build>
__global__ void __launch_bounds__(32 * Build::kWarpsMax, Build::kCtas)
    decode_linear_kernel(const __grid_constant__ DecodeArguments a) {
#if __CUDA_ARCH__ >= 900
  decode::decode_layer<F, Build>(a);
#endif
}

#endif  // __CUDACC__

}  // namespace tensorfold::ops::cuda
