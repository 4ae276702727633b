// Linear layers on 1 to 16 rows, on Hopper GPUs: as fast as weights come from memory. The bits are those of every other
// kernel; here is how the work lies.
//
//   cluster   of 1, 2 or 4 CTAs owns a range of tiles (16 output rows). Each CTA holds x of its share of the K-segments in
//             shared memory.
//   warp      is (slot, segment): the slot's tiles, that segment of K. It works on up to `tiles_at_once` tiles side by side,
//             so that fragments of x are read once for all of them and their accumulators hide each other's latency.
//   weights   come through a ring of the warp's own, block after block, by cp.async: whoever reads a word is in the warp that
//             copied it, so no barrier of the CTA is in the way. The ring is filled before wait_for_previous().
//   sums      of a tile's segments go to the CTA that owns the slot (st.async, counted at its barrier), whose warps add them in
//             the layer's order and store. Meanwhile all warps are at the next tiles.
//
// A barrier pair a slot and hand-over buffer: `full` (in the owner) completes when all segments' bytes are there; `empty` (in
// every CTA) when the owner's warps have read the buffer. Nobody arrives at an `empty` that isn't waited for, because the CTA
// may have gone; the owner waits for every `full`, so nothing is sent to a CTA that has gone.
#pragma once

#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear/decode_instructions.cuh"
#include "ops/cuda/linear/dequantise.cuh"
#include "ops/cuda/linear/mma.cuh"

namespace tensorfold::ops::cuda {

struct DecodeArguments {
  PackedPart part;
  const __nv_bfloat16* x;
  IdsRef row_index;
  std::int32_t runs_aligned;  // eight columns of x can be copied at once
  LinearOutput out;
  std::int32_t cluster;
  std::int32_t slots;
  std::int32_t slot_warps;    // segments of a CTA
  std::int32_t stages;
  std::int32_t buffers;
  // Offsets in shared memory; x lies at 0.
  std::uint32_t sums_at, rings_at, barriers_at;
};

constexpr int kPieceBytes = 512;  // one tile, one segment, eight tokens: 16 bytes a lane

/// Warps of a CTA that registers suffice for.
template <typename F, int token_tiles>
constexpr int decode_warps_max = F::kSmallScales && token_tiles == 2 ? 16 : 12;

#if defined(__CUDACC__)

namespace decode {

/// The warp's ring: blocks of its segment, tile group after tile group.
template <typename F, int tiles_at_once>
class WeightRing {
 public:
  static constexpr int kWholeRounds = F::kBits / 2;  // 512 bytes of codes each
  static constexpr int kTailRounds = F::kBits == 16 ? 0 : F::kArithmetic == WeightArithmetic::kFloat && F::kScaleSets == 2 ? 2 : 1;

  __device__ __forceinline__ WeightRing(const DecodeArguments& a, std::uint32_t ring, int first_tile, int tiles, int first_block,
                                        int blocks, int lane)
      : block_bytes_(a.part.block_bytes),
        stage_bytes_(tiles_at_once * a.part.block_bytes),
        first_(ring),
        end_(ring + a.stages * stage_bytes_),
        stage_(ring),
        tail_chunks_(block_bytes_ / 16 - 32 * kWholeRounds),
        tile_bytes_(a.part.k_blocks * block_bytes_),
        tiles_left_(tiles),
        blocks_(blocks),
        block_(0),
        lane_(lane),
        policy_(policy_read_once()) {
    next_ = a.part.blocks + static_cast<std::int64_t>(first_tile) * tile_bytes_ +
            static_cast<std::int64_t>(first_block) * block_bytes_ + lane * 16;
    for (int i = 0; i < a.stages; ++i) start_copy(ring + i * stage_bytes_);
  }

  /// The stage to read, once its copies are waited for and the warp is in step.
  __device__ __forceinline__ SharedBlock block(int tile) const { return {stage_ + tile * block_bytes_}; }

  /// When every lane has read the stage: fills it anew and goes on to the next.
  __device__ __forceinline__ void refill() {
    start_copy(stage_);
    stage_ += stage_bytes_;
    if (stage_ == end_) stage_ = first_;
  }

 private:
  __device__ __forceinline__ void start_copy(std::uint32_t stage) {
    if (blocks_ > 0) {
#pragma unroll
      for (int tile = 0; tile < tiles_at_once; ++tile) {
        if (tile < tiles_left_) copy_block(stage + tile * block_bytes_ + lane_ * 16, next_ + static_cast<std::int64_t>(tile) * tile_bytes_);
      }
      next_ += block_bytes_;
      if (++block_ == blocks_) {
        block_ = 0;
        tiles_left_ -= tiles_at_once;
        next_ += static_cast<std::int64_t>(tiles_at_once) * tile_bytes_ - static_cast<std::int64_t>(blocks_) * block_bytes_;
      }
    }
    commit_copies();
  }
  __device__ __forceinline__ void copy_block(std::uint32_t to, const std::uint8_t* from) {
#pragma unroll
    for (int round = 0; round < kWholeRounds; ++round) copy_weights_16(to + 512 * round, from + 512 * round, policy_);
#pragma unroll
    for (int round = kWholeRounds; round < kWholeRounds + kTailRounds; ++round) {
      if (lane_ + 32 * (round - kWholeRounds) < tail_chunks_) copy_weights_16(to + 512 * round, from + 512 * round, policy_);
    }
  }

  int block_bytes_, stage_bytes_;
  std::uint32_t first_, end_, stage_;
  int tail_chunks_, tile_bytes_, tiles_left_, blocks_, block_, lane_;
  std::uint64_t policy_;
  const std::uint8_t* next_;
};

/// Where x lies in shared memory: [64 columns][row][128 bytes], 16-byte chunk c of row m at c ^ (m & 7).
struct InputTile {
  std::uint32_t address;
  std::int32_t rows;
  std::int32_t first_column, columns;  // of K, that this CTA holds; columns is a multiple of 128
};

__device__ __forceinline__ void stage_input(const DecodeArguments& a, const InputTile& tile) {
  const int chunks = tile.columns / 8;
  for (int m = 0; m < tile.rows; ++m) {
    const std::int64_t row = a.row_index.header != nullptr ? pass_ids(a.row_index)[m] : m;
    const __nv_bfloat16* from = a.x + row * a.part.columns;
    for (int chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) {
      const std::uint32_t to = tile.address + ((chunk >> 3) * tile.rows + m) * 128 + (((chunk & 7) ^ (m & 7)) << 4);
      const int column = tile.first_column + 8 * chunk;
      if (a.runs_aligned) {
        copy_16(to, column < a.part.columns ? from + column : from, column < a.part.columns ? 16 : 0);
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
      store_shared(to, make_uint4(words[0], words[1], words[2], words[3]));
    }
  }
}

/// Codes and scales of one block, both halves: everything that is read before the stage is refilled.
template <typename F>
struct BlockWeights {
  HalfCodes<F> codes[2];
  HalfScales<F> scales[2];
  __device__ __forceinline__ void load(SharedBlock block, const PackedPart& part, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      codes[half] = load_codes<F>(block, half, lane);
      scales[half] = load_scales<F>(block, part, half, lane);
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
  int lane, rank, slot, index;    // index: of the segment within the CTA
  int first_tile, tiles;          // the slot's
  int first_block, blocks;        // the segment's; none: the warp only adds
  bool owner;                     // this CTA adds the slot's sums
  std::uint32_t full, empty;      // barriers, one after the other a buffer
  std::uint32_t sums;             // the slot's hand-over buffers in the owner
};

/// The slot's hand-over buffers: [buffer][tile][segment][eight tokens][lane].
template <int token_tiles, int tiles_at_once>
constexpr int sums_bytes = tiles_at_once * kSegmentsMax * token_tiles * kPieceBytes;

template <int token_tiles, int tiles_at_once>
__device__ __forceinline__ WarpPlace find_place(const DecodeArguments& a, std::uint32_t shared) {
  WarpPlace place;
  const int warp = threadIdx.x / 32;
  place.lane = threadIdx.x % 32;
  place.rank = a.cluster > 1 ? static_cast<int>(cluster_rank()) : 0;
  place.slot = warp / a.slot_warps;
  place.index = warp - place.slot * a.slot_warps;
  const unsigned clusters = gridDim.x / a.cluster, cluster = blockIdx.x / a.cluster;
  const unsigned tiles = a.part.tiles;
  const unsigned begin = cluster * tiles / clusters, count = (cluster + 1) * tiles / clusters - begin;
  const unsigned first = count * place.slot / a.slots;
  place.first_tile = static_cast<int>(begin + first);
  place.tiles = static_cast<int>(count * (place.slot + 1) / a.slots - first);
  const int segment = place.rank * a.slot_warps + place.index;
  place.first_block = segment * a.part.segment_blocks;
  place.blocks = max(0, min(a.part.segment_blocks, a.part.k_blocks - place.first_block));
  place.owner = place.slot % a.cluster == place.rank;
  const int owned_slot = place.slot / a.cluster, owned_slots = (a.slots + a.cluster - 1) / a.cluster;
  const std::uint32_t barriers = shared + a.barriers_at;
  place.full = barriers + 8 * owned_slot * a.buffers;
  place.empty = barriers + 8 * (owned_slots + place.slot) * a.buffers;
  place.sums = shared + a.sums_at + owned_slot * a.buffers * sums_bytes<token_tiles, tiles_at_once>;
  return place;
}

__device__ __forceinline__ void init_barriers(const DecodeArguments& a, std::uint32_t shared) {
  const int full = (a.slots + a.cluster - 1) / a.cluster * a.buffers, empty = a.slots * a.buffers;
  const std::uint32_t barriers = shared + a.barriers_at;
  for (int i = 0; i < full; ++i) barrier_init(barriers + 8 * i, 1);
  for (int i = full; i < full + empty; ++i) barrier_init(barriers + 8 * i, a.slot_warps);
  fence_barrier_init();
}

/// The owner's part in hand-over `turn`: adds the segments of `tiles` tiles and stores.
template <int token_tiles, int tiles_at_once>
__device__ __forceinline__ void add_segments(const DecodeArguments& a, const WarpPlace& place, int turn, int turns) {
  if (!place.owner) return;
  const int buffer = turn & (a.buffers - 1), phase = turn >> (a.buffers - 1) & 1;
  const int first_tile = place.first_tile + turn * tiles_at_once;
  const int tiles = min(tiles_at_once, place.first_tile + place.tiles - first_tile);
  const std::uint32_t sums = place.sums + buffer * sums_bytes<token_tiles, tiles_at_once> + place.lane * 16;
  barrier_wait(place.full + 8 * buffer, phase);
#pragma unroll 1
  for (int piece = place.index; piece < tiles * token_tiles; piece += a.slot_warps) {
    const int tile = piece / token_tiles, i = piece % token_tiles;
    const std::uint32_t from = sums + (tile * kSegmentsMax * token_tiles + i) * kPieceBytes;
    SegmentSum<4> sum;
#pragma unroll
    for (int segment = 0; segment < kSegmentsMax; ++segment) {
      if (segment >= a.part.segments) break;
      float values[4];
      load_shared(from + segment * token_tiles * kPieceBytes, values);
      sum.add(values, segment, a.part.segment_tree != 0);
    }
    float total[4];
    sum.finish(a.part.segments, a.part.segment_tree != 0, total);
    store_tile(a.out, a.part, first_tile + tile, 8 * i, place.lane, total);
  }
  if (turn + a.buffers >= turns) return;
  __syncwarp();
  if (place.lane < a.cluster) barrier_arrive_remote(cluster_address(place.empty + 8 * buffer, place.lane));
}

/// The warp's segment of `tiles` tiles.
template <typename F, int tiles, int token_tiles, int tiles_at_once>
__device__ __forceinline__ void multiply_segment(const DecodeArguments& a, const WarpPlace& place,
                                                 WeightRing<F, tiles_at_once>& ring,
                                                 const std::uint32_t (&input_start)[token_tiles],
                                                 const std::uint32_t (&input_flip)[token_tiles], int input_step,
                                                 float (&all_sums)[tiles_at_once][token_tiles][4]) {
  float sums[tiles][token_tiles][4] = {};
  std::uint32_t input[token_tiles];
#pragma unroll
  for (int i = 0; i < token_tiles; ++i) input[i] = input_start[i];
#pragma unroll 1
  for (int block = 0; block < place.blocks; ++block) {
    wait_copies(a.stages - 1);
    __syncwarp();
    BlockWeights<F> weights[tiles];
#pragma unroll
    for (int tile = 0; tile < tiles; ++tile) weights[tile].load(ring.block(tile), a.part, place.lane);
    __syncwarp();
    ring.refill();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      multiply_steps<F, 0>(weights, half, input, sums);
      std::uint32_t second[token_tiles];
#pragma unroll
      for (int i = 0; i < token_tiles; ++i) second[i] = input[i] + input_flip[i];
      multiply_steps<F, 2>(weights, half, second, sums);
#pragma unroll
      for (int i = 0; i < token_tiles; ++i) input[i] += input_step;
    }
  }
#pragma unroll
  for (int tile = 0; tile < tiles; ++tile) {
#pragma unroll
    for (int i = 0; i < token_tiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) all_sums[tile][i][j] = sums[tile][i][j];
    }
  }
}

template <typename F, int token_tiles, int tiles_at_once>
__device__ __forceinline__ void decode_layer(const DecodeArguments& a) {
  extern __shared__ __align__(1024) std::uint8_t shared_memory[];
  const std::uint32_t shared = shared_address(shared_memory);
  const WarpPlace place = find_place<token_tiles, tiles_at_once>(a, shared);
  if (threadIdx.x == 0) init_barriers(a, shared);
  if (a.cluster > 1) {
    __syncwarp();
    cluster_arrive();
  }
  const int ring_bytes = a.stages * tiles_at_once * a.part.block_bytes;
  WeightRing<F, tiles_at_once> ring(a, shared + a.rings_at + threadIdx.x / 32 * ring_bytes, place.first_tile, place.tiles,
                                    place.first_block, place.blocks, place.lane);
  allow_next();
  wait_for_previous();

  InputTile tile;
  tile.address = shared;
  tile.rows = a.out.rows;
  tile.first_column = place.rank * a.slot_warps * a.part.segment_blocks * kBlockColumns;
  tile.columns = min(a.slot_warps * a.part.segment_blocks * kBlockColumns, a.part.k_blocks * kBlockColumns - tile.first_column);
  stage_input(a, tile);
  commit_copies();
  wait_copies<0>();
  __syncthreads();
  if (a.cluster > 1) cluster_wait();

  // The lane's rows of x for ldmatrix: matrices are (k 0..7, k 8..15) of two steps; tokens beyond the call read row 0.
  const int input_step = tile.rows * 128;
  std::uint32_t input_start[token_tiles], input_flip[token_tiles];
#pragma unroll
  for (int i = 0; i < token_tiles; ++i) {
    const int token = 8 * i + place.lane % 8;
    const int row = token < tile.rows ? token : 0;
    const std::uint32_t offset = row * 128 + ((place.lane / 8 ^ row % 8) << 4);
    input_start[i] = shared + place.index * a.part.segment_blocks * 2 * input_step + offset;
    input_flip[i] = (offset ^ 64) - offset;  // to the other two steps of 64 columns
  }

  const std::uint32_t owner = place.slot % a.cluster;
  const int segment = place.rank * a.slot_warps + place.index;
  const std::uint32_t send_to =
      cluster_address(place.sums + segment * token_tiles * kPieceBytes + place.lane * 16, owner);
  const std::uint32_t send_barrier = cluster_address(place.full, owner);
  const int turns = (place.tiles + tiles_at_once - 1) / tiles_at_once;
#pragma unroll 1
  for (int turn = 0; turn < turns; ++turn) {
    const int tiles = min(tiles_at_once, place.tiles - turn * tiles_at_once);
    float sums[tiles_at_once][token_tiles][4];
    if (tiles == tiles_at_once) {
      multiply_segment<F, tiles_at_once>(a, place, ring, input_start, input_flip, input_step, sums);
    } else if (tiles_at_once == 3 && tiles == 2) {
      multiply_segment<F, tiles_at_once == 3 ? 2 : 1>(a, place, ring, input_start, input_flip, input_step, sums);
    } else {
      multiply_segment<F, 1>(a, place, ring, input_start, input_flip, input_step, sums);
    }
    if (turn > 0) add_segments<token_tiles, tiles_at_once>(a, place, turn - 1, turns);
    if (place.blocks == 0) continue;
    const int buffer = turn & (a.buffers - 1);
    if (turn >= a.buffers) barrier_wait(place.empty + 8 * buffer, ((turn >> (a.buffers - 1)) - 1) & 1);
    if (place.owner && place.index == 0 && place.lane == 0) {
      barrier_expect(place.full + 8 * buffer, tiles * token_tiles * a.part.segments * kPieceBytes);
    }
#pragma unroll
    for (int t = 0; t < tiles_at_once; ++t) {
      if (t >= tiles) break;
#pragma unroll
      for (int i = 0; i < token_tiles; ++i) {
        send_16(send_to + buffer * sums_bytes<token_tiles, tiles_at_once> + (t * kSegmentsMax * token_tiles + i) * kPieceBytes,
                send_barrier + 8 * buffer, sums[t][i]);
      }
    }
  }
  if (turns > 0) add_segments<token_tiles, tiles_at_once>(a, place, turns - 1, turns);
}

#endif

}  // namespace decode

template <typename F, int token_tiles, int tiles_at_once>
__global__ void __launch_bounds__(32 * decode_warps_max<F, token_tiles>, 1)
    decode_linear_kernel(const __grid_constant__ DecodeArguments a) {
#if __CUDA_ARCH__ >= 900
  decode::decode_layer<F, token_tiles, tiles_at_once>(a);
#endif
}

#endif  // __CUDACC__

}  // namespace tensorfold::ops::cuda
