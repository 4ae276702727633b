// The recurrence of lanes with many rows: prompts, and windows that copy text. The state's columns are spread over all SMs,
// 16 of a head to a CTA of four warps; rows are brought into shared memory 32 at a time, one tile ahead. What a row costs are
// instructions and the width of shared memory, so q and k stay bf16 there, and the outputs of eight rows are added up in
// one butterfly, in which thread r ends with row r: the additions are those of eight separate ones.
//
// Outputs replace the values that they came from in the working rows; gated_delta_finish.cu goes on.
#include <algorithm>

#include "ops/cuda/gated_delta.cuh"

namespace tensorfold::ops::cuda::delta {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kColumns = kWarps * kColumnsPerWarp;
constexpr int kTileRows = 32;

template <int kElements>
struct Tile {
  static constexpr int kPadded = kLanesPerColumn * kElements;
  std::uint16_t keys[kTileRows][2][kPadded];
  float values[kTileRows][kColumns];
  float2 gates[kTileRows];
};

/// Rows [first, first + count) of the lane's sequence: all replayed or all of this pass.
struct TileRows {
  int first, count;
};

template <int kElements>
class PromptRun {
 public:
  __device__ PromptRun(const Params& p, Tile<kElements>* tiles) : p_(p), tiles_(tiles) {
    const int parts = (p.column_groups + kWarps - 1) / kWarps;
    const int block = static_cast<int>(blockIdx.x);
    head_ = block / parts % p.geometry.v_heads;
    lane_index_ = block / parts / p.geometry.v_heads;
    lane_ = pass_lanes(p.lanes)[lane_index_];
    warp_ = static_cast<int>(threadIdx.x) / 32;
    thread_ = static_cast<int>(threadIdx.x) % 32;
    first_group_ = block % parts * kWarps;
    is_active_ = first_group_ + warp_ < p.column_groups;
  }

  __device__ void run() {
    if (lane_.row_count <= kWindowRows) return wait_for_previous();
    float* stored = state_of(p_, slot_of(p_, lane_), head_, first_group_ + warp_);
    float state[kElements] = {};
    if (is_active_) load_state(stored, thread_, state);
    wait_for_previous();
    TileRows rows = {0, 0};
    if (!next(rows)) return;
    stage(rows, 0);
    for (int turn = 0; rows.count > 0; turn ^= 1) {
      TileRows following = rows;
      const bool goes_on = next(following);
      if (goes_on) stage(following, turn ^ 1);
      commit_copies();
      wait_copies<1>();
      __syncthreads();
      if (is_active_) {
        if (rows.first < lane_.replay_count) {
          for (int row = 0; row < rows.count; ++row) advance_by(tiles_[turn], row, state);
          if (!lane_.commits && rows.first + rows.count == lane_.replay_count) store_state(stored, thread_, state);
        } else {
          run_rows(tiles_[turn], rows, state);
        }
      }
      __syncthreads();
      rows = goes_on ? following : TileRows{0, 0};
    }
    if (is_active_ && lane_.commits) store_state(stored, thread_, state);
  }

 private:
  /// The tile after `rows`; false: there is none.
  __device__ bool next(TileRows& rows) const {
    const int first = rows.first + rows.count, end = lane_.replay_count + lane_.row_count;
    rows.first = first;
    rows.count = min(kTileRows, (first < lane_.replay_count ? lane_.replay_count : end) - first);
    return rows.count > 0;
  }

  __device__ void stage(const TileRows& rows, int turn) {
    constexpr int kPieces = 2 * kElements;  // of 16 bytes: q and k
    Tile<kElements>& tile = tiles_[turn];
    const std::int64_t base = working_row(p_, lane_, lane_index_, rows.first);
    const int key_head = head_ / (p_.geometry.v_heads / p_.geometry.k_heads);
    const std::uint16_t* keys = p_.keys + (base * p_.geometry.k_heads + key_head) * kPieces * 8;
    for (int i = static_cast<int>(threadIdx.x); i < rows.count * kPieces; i += kThreads) {
      const int row = i / kPieces, piece = i % kPieces;
      copy_async<16>(&tile.keys[0][0][0] + i * 8,
                     keys + static_cast<std::int64_t>(row) * p_.geometry.k_heads * kPieces * 8 + piece * 8);
    }
    const float* values = value_row(base);
    const int row = static_cast<int>(threadIdx.x) / kWarps, group = static_cast<int>(threadIdx.x) % kWarps;
    if (row < rows.count && first_group_ + group < p_.column_groups) {
      copy_async<16>(&tile.values[row][group * kColumnsPerWarp], values + row * value_stride() + group * kColumnsPerWarp);
    }
    if (static_cast<int>(threadIdx.x) < rows.count) {
      copy_async<8>(&tile.gates[threadIdx.x], p_.gates + (base + threadIdx.x) * p_.geometry.v_heads + head_);
    }
    commit_copies();
  }
  static_assert(kThreads == kTileRows * kWarps);

  __device__ float* value_row(std::int64_t working) const {
    return p_.values + (working * p_.geometry.v_heads + head_) * p_.v_padded() + first_group_ * kColumnsPerWarp;
  }
  __device__ std::int64_t value_stride() const { return static_cast<std::int64_t>(p_.geometry.v_heads) * p_.v_padded(); }

  __device__ __forceinline__ void advance_by(const Tile<kElements>& tile, int row, float (&state)[kElements]) {
    float k[kElements];
    load_keys(tile.keys[row][1], thread_ % 8, k);
    advance(state, k, tile.gates[row], tile.values[row][warp_ * kColumnsPerWarp + thread_ / 8]);
  }
  __device__ __forceinline__ float step(const Tile<kElements>& tile, int row, float (&state)[kElements]) {
    advance_by(tile, row, state);
    float q[kElements];
    load_keys(tile.keys[row][0], thread_ % 8, q);
    return output_share(state, q);
  }

  __device__ __forceinline__ void run_rows(const Tile<kElements>& tile, const TileRows& rows, float (&state)[kElements]) {
    const int r = thread_ % 8;
    float* out = value_row(working_row(p_, lane_, lane_index_, rows.first)) + warp_ * kColumnsPerWarp + thread_ / 8;
    int row = 0;
#pragma unroll 1
    for (; row + 8 <= rows.count; row += 8) {
      float shares[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) shares[i] = step(tile, row + i, state);
      out[(row + r) * value_stride()] = add_eight_rows(shares, r);
    }
#pragma unroll 1
    for (; row < rows.count; ++row) {
      const float sum = add_lanes(step(tile, row, state));
      if (r == 0) out[row * value_stride()] = sum;
    }
  }

  /// Lane r's sum of row r. At every step a lane keeps the rows whose number has its bit, and gives the others away.
  __device__ __forceinline__ static float add_eight_rows(float (&shares)[8], int r) {
#pragma unroll
    for (int offset = 1; offset < 8; offset *= 2) {
      const bool is_upper = (r & offset) != 0;
#pragma unroll
      for (int i = 0; i < 4 / offset; ++i) {
        const float keep = is_upper ? shares[2 * i + 1] : shares[2 * i];
        const float give = is_upper ? shares[2 * i] : shares[2 * i + 1];
        shares[i] = __fadd_rn(keep, __shfl_xor_sync(~0u, give, offset));
      }
    }
    return shares[0];
  }

  const Params& p_;
  Tile<kElements>* tiles_;
  DeviceLane lane_;
  int head_, lane_index_, warp_, thread_, first_group_;
  bool is_active_;
};

template <int kElements>
__global__ void __launch_bounds__(kThreads, kElements > 16 ? 2 : 4) run_prompt_rows(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) char shared[];
  allow_next();
  PromptRun<kElements>(p, reinterpret_cast<Tile<kElements>*>(shared)).run();
}

}  // namespace

void run_prompts(CudaContext& context, const Params& p) {
  LaunchShape shape;
  shape.grid = static_cast<unsigned>(p.lane_count * p.geometry.v_heads * ((p.column_groups + kWarps - 1) / kWarps));
  shape.block = kThreads;
  // When all CTAs run at once, an SM must not get one more than its share: the launch would last as long as that SM.
  const std::size_t ctas = shape.grid.x, sms = static_cast<std::size_t>(context.facts().sm_count);
  const std::size_t share = (ctas + sms - 1) / sms;
  const auto shared_bytes_max = static_cast<std::size_t>(context.facts().shared_bytes_max);
  const auto run = [&](auto kernel, std::size_t tile_bytes) {
    shape.shared_bytes = 2 * tile_bytes;
    if (share <= 3) shape.shared_bytes = std::max(shape.shared_bytes, shared_bytes_max / (share + 1) / 1024 * 1024 + 1024);
    launch(context, "the recurrence of a Gated DeltaNet layer", kernel, shape, p);
  };
  if (p.lane_elements == 8) return run(run_prompt_rows<8>, sizeof(Tile<8>));
  if (p.lane_elements == 16) return run(run_prompt_rows<16>, sizeof(Tile<16>));
  run(run_prompt_rows<32>, sizeof(Tile<32>));
}

}  // namespace tensorfold::ops::cuda::delta
