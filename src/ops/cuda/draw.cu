// The keyed draw on the GPU (ops/sampler.h defines it; ops/draw.h says what is asked). Two launches: every row's vocabulary is
// cut into chunks whose best candidates are found in shared memory; then one block a row merges them and draws. Doubles are
// computed by the same functions as on the host, one candidate a thread, and added in the host's order, so that the
// token is the host sampler's. Rules that need more than this are refused by can_draw().
#include <cstdint>
#include <limits>

#include "base/assert.h"
#include "ops/cuda/cuda_operations.h"
#include "ops/cuda/instructions.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/sampler.h"

namespace tensorfold::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChunkMin = 2048;    // ids a block looks at
constexpr int kChunksMax = 64;     // of a row
constexpr int kTopMax = 64;        // largest top_k that is drawn here
constexpr float kNever = -std::numeric_limits<float>::infinity();

enum class DrawKind : int { kNone, kGreedy, kTop, kKeyed };

/// A candidate as chunks hand it over; `score` is the keyed draw's.
struct ChunkBest {
  double score;
  float logit;
  std::int32_t token;  // -1: none
};

/// Where the two launches meet, in scratch memory: of row r and chunk c.
struct DrawScratch {
  std::int32_t* not_finite;         // [rows, chunks]
  ChunkBest* best;                  // [rows, chunks]: greedy and keyed
  sampling::Candidate* candidates;  // [rows, chunks, kTopMax]
  std::int32_t* counts;             // [rows, chunks]: of candidates
};

struct DrawKernelParams {
  const float* logits;
  IdsRef draws;
  DrawScratch scratch;
  std::int32_t* tokens;
  std::int32_t vocabulary, chunk, chunks;
};

__host__ __device__ inline DrawKind kind_of(const SamplingRule& rule) {
  if (!(rule.temperature > 0.0)) return DrawKind::kGreedy;
  if (rule.top_k > 0) return rule.top_k <= kTopMax ? DrawKind::kTop : DrawKind::kNone;
  return (rule.top_p > 0.0 && rule.top_p < 1.0) || rule.min_p > 0.0 ? DrawKind::kNone : DrawKind::kKeyed;
}

__device__ const RowDraw& row_draw(const DrawKernelParams& params, int row) {
  return reinterpret_cast<const RowDraw*>(pass_ids(params.draws))[row];
}

/// Whether a beats b in a keyed or greedy draw: score, then the order of candidates.
__device__ __forceinline__ bool beats(const ChunkBest& a, const ChunkBest& b) {
  if (a.token < 0 || b.token < 0) return a.token >= 0;
  if (a.score != b.score) return a.score > b.score;
  return sampling::comes_before({a.logit, a.token}, {b.logit, b.token});
}

__device__ ChunkBest block_best(ChunkBest mine, ChunkBest* shared) {
#pragma unroll 1
  for (int offset = 16; offset > 0; offset /= 2) {
    ChunkBest other;
    other.score = __shfl_xor_sync(~0u, mine.score, offset);
    other.logit = __shfl_xor_sync(~0u, mine.logit, offset);
    other.token = __shfl_xor_sync(~0u, mine.token, offset);
    if (beats(other, mine)) mine = other;
  }
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) shared[warp] = mine;
  __syncthreads();
  mine = shared[0];
#pragma unroll 1
  for (int w = 1; w < kThreads / 32; ++w) {
    if (beats(shared[w], mine)) mine = shared[w];
  }
  __syncthreads();
  return mine;
}

struct SelectShared {
  std::uint32_t histogram[256];
  std::uint32_t prefix, rank, above, ties[kThreads];
};

/// The `k` first of `count` logits in shared memory, by (logit descending, place ascending), in no order; logits of -inf are
/// left out. `emit(slot, place)` is called once for each, with slots 0 .. result - 1. Radix select on the sort key.
template <typename Emit>
__device__ int select_first(const float* logits, int count, int k, SelectShared& shared, Emit emit) {
  // Threads own consecutive places, so that ties are taken in ascending place.
  const int each = (count + kThreads - 1) / kThreads;
  const int begin = min(static_cast<int>(threadIdx.x) * each, count), end = min(begin + each, count);
  int finite = 0;
  for (int i = begin; i < end; ++i) finite += logits[i] != kNever;
  if (threadIdx.x == 0) shared.above = 0;
  __syncthreads();
  atomicAdd(&shared.above, static_cast<std::uint32_t>(finite));
  __syncthreads();
  const int kept = min(k, static_cast<int>(shared.above));
  if (threadIdx.x == 0) {
    shared.prefix = 0;
    shared.rank = static_cast<std::uint32_t>(kept);
  }
  __syncthreads();
  if (kept == 0) return 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    shared.histogram[threadIdx.x] = 0;
    __syncthreads();
    const std::uint32_t mask = shift == 24 ? 0u : ~0u << (shift + 8), prefix = shared.prefix;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      const std::uint32_t key = sampling::sort_key(logits[i]);
      if (logits[i] != kNever && (key & mask) == prefix) atomicAdd(&shared.histogram[key >> shift & 255], 1u);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      std::uint32_t rank = shared.rank;
      int digit = 255;
      while (shared.histogram[digit] < rank) rank -= shared.histogram[digit--];
      shared.rank = rank;  // among the keys with this prefix, counted from the greatest
      shared.prefix = prefix | static_cast<std::uint32_t>(digit) << shift;
    }
    __syncthreads();
  }
  const std::uint32_t threshold = shared.prefix, tie_count = shared.rank;
  std::uint32_t ties = 0;
  for (int i = begin; i < end; ++i) ties += logits[i] != kNever && sampling::sort_key(logits[i]) == threshold;
  shared.ties[threadIdx.x] = ties;
  if (threadIdx.x == 0) shared.above = 0;
  __syncthreads();
  std::uint32_t before = 0;
  for (int t = 0; t < static_cast<int>(threadIdx.x); ++t) before += shared.ties[t];
  const auto above_count = static_cast<std::uint32_t>(kept) - tie_count;
  for (int i = begin; i < end; ++i) {
    if (logits[i] == kNever) continue;
    const std::uint32_t key = sampling::sort_key(logits[i]);
    if (key > threshold) emit(static_cast<int>(atomicAdd(&shared.above, 1u)), i);
    if (key == threshold && before++ < tie_count) emit(static_cast<int>(above_count + before - 1), i);
  }
  __syncthreads();
  return kept;
}

__global__ void __launch_bounds__(kThreads) draw_chunks(const DrawKernelParams params) {
  extern __shared__ float values[];
  __shared__ ChunkBest warp_best[kThreads / 32];
  __shared__ SelectShared select;
  allow_next();
  const int row = blockIdx.y, chunk = blockIdx.x;
  const RowDraw draw = row_draw(params, row);  // a pass's arrays are there already
  const DrawKind kind = draw.wanted != 0 ? kind_of(draw.rule) : DrawKind::kNone;
  wait_for_previous();
  if (kind == DrawKind::kNone) return;
  const int first = chunk * params.chunk, count = min(params.chunk, params.vocabulary - first);
  const float* logits = params.logits + static_cast<std::int64_t>(row) * params.vocabulary + first;
  const int at = row * params.chunks + chunk;

  ChunkBest best = {0.0, kNever, -1};
  bool not_finite = false;
  const double temperature = sampling::effective_temperature(draw.rule.temperature);
  const std::uint64_t key =
      sampling::row_key(sampling::request_key(draw.rule.seed), static_cast<std::uint64_t>(draw.position));
  const auto take = [&](int i, float logit) {
    not_finite |= !(logit < __int_as_float(0x7f800000));  // NaN, +inf
    if (kind != DrawKind::kTop && logit != kNever) {
      ChunkBest mine = {0.0, logit, first + i};
      mine.score = kind == DrawKind::kGreedy
                       ? static_cast<double>(logit)
                       : sampling::scaled(logit, temperature) + sampling::gumbel(sampling::noise_bits(key, mine.token));
      if (beats(mine, best)) best = mine;
    }
  };
  constexpr int kBatch = 8;  // loads that are on their way together
  for (int begin = static_cast<int>(threadIdx.x); begin < count; begin += kBatch * kThreads) {
    float batch[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = begin + j * kThreads;
      batch[j] = i < count ? logits[i] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = begin + j * kThreads;
      if (i < count) values[i] = batch[j];
    }
  }
  // By way of shared memory, each thread its own, so that the code for one logit stands here once: it is long, and a thread
  // runs it a few times only.
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) take(i, values[i]);
  not_finite = __syncthreads_or(not_finite);
  if (threadIdx.x == 0) params.scratch.not_finite[at] = not_finite;
  if (not_finite) return;
  if (kind == DrawKind::kTop) {
    sampling::Candidate* out = params.scratch.candidates + static_cast<std::int64_t>(at) * kTopMax;
    const int kept = select_first(values, count, draw.rule.top_k, select,
                                  [&](int slot, int place) { out[slot] = {values[place], first + place}; });
    if (threadIdx.x == 0) params.scratch.counts[at] = kept;
    return;
  }
  best = block_best(best, warp_best);
  if (threadIdx.x == 0) params.scratch.best[at] = best;
}

/// draw_from_top() of sampler.h by kTopMax threads: each computes its candidate's doubles, one adds them in order.
/// `candidates` [count] in order, in shared memory. Returns the winner's index to every thread.
__device__ int draw_from_top_parallel(const sampling::Candidate* candidates, int count, const RowDraw& draw) {
  __shared__ double terms[kTopMax];
  __shared__ double total;
  __shared__ int kept, winner;
  const SamplingRule& rule = draw.rule;
  const int i = static_cast<int>(threadIdx.x);
  const double temperature = sampling::effective_temperature(rule.temperature);
  const double first = sampling::scaled(candidates[0].logit, temperature);
  const double s = i < count ? sampling::scaled(candidates[i].logit, temperature) : 0.0;
  if (i == 0) kept = count;
  if (sampling::top_p_is_on(rule)) {
    const double mass = i < count ? exp_exact(s - first) : 0.0;
    if (i < count) terms[i] = mass;
    __syncthreads();
    if (i == 0) {
      double sum = 0.0;
      for (int j = 0; j < count; ++j) sum += terms[j];
      total = sum;
    }
    __syncthreads();
    if (i < count) terms[i] = mass / total;
    __syncthreads();
    if (i == 0) {
      double cumulative = 0.0;
      int n = 0;
      while (n < count) {
        cumulative += terms[n++];
        if (!(cumulative < rule.top_p)) break;
      }
      kept = n;
    }
  }
  __syncthreads();
  const std::uint64_t key = sampling::row_key(sampling::request_key(rule.seed), static_cast<std::uint64_t>(draw.position));
  if (i < count) terms[i] = s + sampling::gumbel(sampling::noise_bits(key, candidates[i].token));
  __syncthreads();
  if (i == 0) {
    const double bound = sampling::min_p_bound(first, rule.min_p);
    int best = 0;
    for (int j = 1; j < kept; ++j) {
      if (!(sampling::scaled(candidates[j].logit, temperature) >= bound)) break;
      if (terms[j] > terms[best]) best = j;
    }
    winner = best;
  }
  __syncthreads();
  return winner;
}

__device__ std::int32_t draw_top(const DrawKernelParams& params, int row, const RowDraw& draw, float* values) {
  __shared__ SelectShared select;
  __shared__ sampling::Candidate found[kTopMax], ordered[kTopMax];
  __shared__ int starts[kChunksMax + 1];
  auto* tokens = reinterpret_cast<std::int32_t*>(values + kChunksMax * kTopMax);
  if (threadIdx.x == 0) {
    starts[0] = 0;
    for (int c = 0; c < params.chunks; ++c) {
      starts[c + 1] = starts[c] + params.scratch.counts[row * params.chunks + c];
    }
  }
  __syncthreads();
  const int count = starts[params.chunks];
  for (int i = static_cast<int>(threadIdx.x); i < params.chunks * kTopMax; i += kThreads) {
    const int c = i / kTopMax, j = i % kTopMax;
    if (j >= starts[c + 1] - starts[c]) continue;
    const sampling::Candidate each = params.scratch.candidates[(static_cast<std::int64_t>(row) * params.chunks + c) * kTopMax + j];
    values[starts[c] + j] = each.logit;
    tokens[starts[c] + j] = each.token;
  }
  __syncthreads();
  // Equal logits of one chunk stand in no order here, so select_first can't break ties by id: take all that could tie, and
  // sort. A chunk's own cut took the lowest ids, and at most kTopMax come from each.
  const int k = draw.rule.top_k;
  const int kept = select_first(values, count, k, select, [&](int slot, int place) {
    found[slot] = {values[place], tokens[place]};
  });
  if (kept == 0) return kDrawNoneAllowed;
  // The lowest logit that was kept may be shared by candidates that weren't: replace those that were by the lowest ids.
  const std::uint32_t threshold = select.prefix;
  const int above = kept - static_cast<int>(select.rank);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    if (sampling::sort_key(values[i]) != threshold) continue;
    int rank = 0;
    for (int j = 0; j < count; ++j) rank += sampling::sort_key(values[j]) == threshold && tokens[j] < tokens[i];
    if (above + rank < kept) found[above + rank] = {values[i], tokens[i]};
  }
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x);
  if (i < kept) {
    int rank = 0;
    for (int j = 0; j < kept; ++j) rank += sampling::comes_before(found[j], found[i]);
    ordered[rank] = found[i];
  }
  __syncthreads();
  return ordered[draw_from_top_parallel(ordered, kept, draw)].token;
}

__global__ void __launch_bounds__(kThreads) draw_rows(const DrawKernelParams params) {
  __shared__ float values[2 * kChunksMax * kTopMax];  // logits, then tokens
  __shared__ ChunkBest warp_best[kThreads / 32];
  allow_next();
  const int row = blockIdx.x;
  const RowDraw draw = row_draw(params, row);
  const DrawKind kind = draw.wanted != 0 ? kind_of(draw.rule) : DrawKind::kNone;
  wait_for_previous();
  std::int32_t token = kDrawOnHost;
  if (kind != DrawKind::kNone) {
    bool not_finite = false;
    ChunkBest best = {0.0, kNever, -1};
    for (int c = static_cast<int>(threadIdx.x); c < params.chunks; c += kThreads) {
      not_finite |= params.scratch.not_finite[row * params.chunks + c] != 0;
      if (kind != DrawKind::kTop && !not_finite) best = params.scratch.best[row * params.chunks + c];
    }
    if (__syncthreads_or(not_finite)) {
      token = kDrawNotFinite;
    } else if (kind == DrawKind::kTop) {
      token = draw_top(params, row, draw, values);
    } else {
      best = block_best(best, warp_best);
      token = best.token < 0 ? kDrawNoneAllowed : best.token;
    }
  }
  if (threadIdx.x == 0) store_for_host(params.tokens + row, token);
}

}  // namespace

bool can_draw(const SamplingRule& rule) {
  return kind_of(rule) != DrawKind::kNone;
}

void draw(CudaContext& context, const DrawParams& params) {
  if (params.rows == 0) return;
  TF_ASSERT(params.vocabulary > 0 && params.vocabulary <= limits::kVocabularySizeMax);
  DrawKernelParams kernel = {};
  kernel.logits = params.logits;
  kernel.draws = context.ids(reinterpret_cast<const std::int32_t*>(params.draws), params.rows * kRowDrawWords);
  kernel.tokens = params.tokens;
  kernel.vocabulary = static_cast<std::int32_t>(params.vocabulary);
  const std::int64_t wanted = (params.vocabulary + kChunksMax - 1) / kChunksMax;
  kernel.chunk = static_cast<std::int32_t>(wanted <= kChunkMin ? kChunkMin : (wanted + 255) / 256 * 256);
  kernel.chunks = static_cast<std::int32_t>((params.vocabulary + kernel.chunk - 1) / kernel.chunk);
  const std::size_t cells = static_cast<std::size_t>(params.rows) * static_cast<std::size_t>(kernel.chunks);
  auto* scratch = static_cast<std::uint8_t*>(context.scratch(
      Scratch::kPartials, cells * (sizeof(ChunkBest) + kTopMax * sizeof(sampling::Candidate) + 2 * sizeof(std::int32_t))));
  kernel.scratch.best = reinterpret_cast<ChunkBest*>(scratch);
  kernel.scratch.candidates = reinterpret_cast<sampling::Candidate*>(kernel.scratch.best + cells);
  kernel.scratch.not_finite = reinterpret_cast<std::int32_t*>(kernel.scratch.candidates + cells * kTopMax);
  kernel.scratch.counts = kernel.scratch.not_finite + cells;

  LaunchShape chunks;
  chunks.grid = dim3(static_cast<unsigned>(kernel.chunks), static_cast<unsigned>(params.rows));
  chunks.block = kThreads;
  chunks.shared_bytes = static_cast<std::size_t>(kernel.chunk) * sizeof(float);
  launch(context, "drawing from chunks", draw_chunks, chunks, kernel);
  LaunchShape rows;
  rows.grid = static_cast<unsigned>(params.rows);
  rows.block = kThreads;
  launch(context, "drawing tokens", draw_rows, rows, kernel);
}

}  // namespace tensorfold::ops::cuda
