// See routing.h. One launch routes every row (a warp a row) and makes the plan: the CTA that finishes last sorts the slots
// by expert. One CTA is enough for it, because a pass has at most a few thousand rows.
#include "ops/cuda/moe/routing.h"

#include "base/assert.h"
#include "base/limits.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/moe/routing.cuh"

namespace tensorfold::ops::cuda::experts {
namespace {

constexpr int kRouteThreads = 1024;
constexpr int kRouteRows = kRouteThreads / 32;
constexpr int kExpertsMax = static_cast<int>(limits::kExpertCountMax);

/// How many slots and items come before something, in one number: 21 bits each.
struct PackedCounts {
  static constexpr int kBits = 21;
  __device__ static std::uint64_t of(std::uint32_t slots, std::uint32_t first, std::uint32_t second) {
    return slots | static_cast<std::uint64_t>(first) << kBits | static_cast<std::uint64_t>(second) << (2 * kBits);
  }
  __device__ static std::int32_t part(std::uint64_t counts, int index) {
    return static_cast<std::int32_t>(counts >> (index * kBits) & ((1u << kBits) - 1));
  }
};

__device__ __forceinline__ std::int32_t item_count(std::int32_t slots, std::int32_t item_rows) {
  return item_rows == 0 ? 0 : (slots + item_rows - 1) / item_rows;
}

__device__ std::uint64_t inclusive_scan(std::uint64_t value, std::uint64_t* warp_totals) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::uint64_t other = __shfl_up_sync(kFullWarp, value, distance);
    if (lane >= distance) value += other;
  }
  if (lane == 31) warp_totals[warp] = value;
  __syncthreads();
  if (warp == 0) {
    std::uint64_t total = warp_totals[lane];
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const std::uint64_t other = __shfl_up_sync(kFullWarp, total, distance);
      if (lane >= distance) total += other;
    }
    warp_totals[lane] = total;
  }
  __syncthreads();
  return warp == 0 ? value : value + warp_totals[warp - 1];
}

/// An expert's slots, cut into items of nearly equal size: a multiple of 8 where there are several.
__device__ void write_items(ExpertItem* items, std::int32_t parts, std::int32_t expert, std::int32_t begin,
                            std::int32_t count) {
  if (parts == 0) return;
  const std::int32_t size = ((count + parts - 1) / parts + 7) / 8 * 8;
  for (std::int32_t i = 0; i < parts; ++i) items[i] = {expert, begin + i * size, min(size, count - i * size), 0};
}

__device__ void make_plan(const RoutingInputs& inputs, const ExpertPlan& plan) {
  __shared__ std::int32_t cursor[kExpertsMax];  // of an expert: its slots, then the next free place
  __shared__ std::uint64_t warp_totals[32];
  const int tid = threadIdx.x;
  const std::int32_t slots = live_rows(inputs.pass, inputs.rows) * inputs.top_k;
  for (int e = tid; e < inputs.experts; e += kRouteThreads) cursor[e] = 0;
  __syncthreads();
  for (std::int32_t slot = tid; slot < slots; slot += kRouteThreads) {
    const std::int32_t expert = __ldcg(plan.chosen + slot);
    if (expert != kUnrouted) atomicAdd(&cursor[expert], 1);
  }
  __syncthreads();
  const int per_thread = (inputs.experts + kRouteThreads - 1) / kRouteThreads;
  std::uint64_t own = 0;
  for (int i = 0; i < per_thread; ++i) {
    const int e = tid * per_thread + i;
    if (e >= inputs.experts) break;
    own += PackedCounts::of(cursor[e], item_count(cursor[e], inputs.item_rows[0]), item_count(cursor[e], inputs.item_rows[1]));
  }
  const std::uint64_t through = inclusive_scan(own, warp_totals);
  if (tid == kRouteThreads - 1) {
    plan.item_counts[0] = PackedCounts::part(through, 1);
    plan.item_counts[1] = PackedCounts::part(through, 2);
  }
  std::uint64_t before = through - own;
  for (int i = 0; i < per_thread; ++i) {
    const int e = tid * per_thread + i;
    if (e >= inputs.experts) break;
    const std::int32_t count = cursor[e], begin = PackedCounts::part(before, 0);
    const std::int32_t parts[2] = {item_count(count, inputs.item_rows[0]), item_count(count, inputs.item_rows[1])};
    for (int list = 0; list < 2; ++list) {
      write_items(plan.items[list] + PackedCounts::part(before, 1 + list), parts[list], e, begin, count);
    }
    before += PackedCounts::of(count, parts[0], parts[1]);
    cursor[e] = begin;
  }
  __syncthreads();
  for (std::int32_t slot = tid; slot < slots; slot += kRouteThreads) {
    const std::int32_t expert = __ldcg(plan.chosen + slot);
    if (expert != kUnrouted) plan.slots[atomicAdd(&cursor[expert], 1)] = slot;
  }
}

/// True in the CTA that arrives last; it sees what all others wrote. Leaves the counter at zero.
__device__ bool is_last_cta(std::uint32_t* counter) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(counter, 1u) == gridDim.x - 1;
    if (last) *counter = 0;
    __threadfence();
  }
  __syncthreads();
  return last;
}

template <int per_lane>
__global__ void __launch_bounds__(kRouteThreads) route_rows(const RoutingInputs inputs, const ExpertPlan plan,
                                                           std::uint32_t* counter) {
  __shared__ RouteCandidate candidates[kRouteRows][kRouteCandidates];
  allow_next();
  wait_for_previous();
  const std::int32_t row = blockIdx.x * kRouteRows + (threadIdx.x >> 5);
  if (row < inputs.rows) {
    std::int32_t* chosen = plan.chosen + row * inputs.top_k;
    if (row < live_rows(inputs.pass, inputs.rows)) {
      route_row<per_lane>(inputs, inputs.logits + row * inputs.logits_stride, candidates[threadIdx.x >> 5], chosen,
                          plan.weights + row * inputs.top_k);
    } else {
      for (int slot = threadIdx.x & 31; slot < inputs.top_k; slot += 32) chosen[slot] = kUnrouted;
    }
  }
  if (is_last_cta(counter)) make_plan(inputs, plan);
}

constexpr int kCombineThreads = 128;

template <int width>
struct Columns {
  float values[width];
};

template <int width>
__device__ __forceinline__ Columns<width> load_columns(const float* source) {
  Columns<width> columns;
  if constexpr (width == 4) {
    const float4 v = *reinterpret_cast<const float4*>(source);
    columns.values[0] = v.x, columns.values[1] = v.y, columns.values[2] = v.z, columns.values[3] = v.w;
  } else {
    columns.values[0] = *source;
  }
  return columns;
}

template <int width>
__device__ __forceinline__ void store_columns(float* target, const Columns<width>& columns) {
  if constexpr (width == 4) {
    *reinterpret_cast<float4*>(target) =
        make_float4(columns.values[0], columns.values[1], columns.values[2], columns.values[3]);
  } else {
    *target = columns.values[0];
  }
}

template <int width>
__device__ __forceinline__ void add_scaled(Columns<width>& sum, float weight, const Columns<width>& values) {
#pragma unroll
  for (int i = 0; i < width; ++i) sum.values[i] = __fmaf_rn(weight, values.values[i], sum.values[i]);
}

template <int width>
__global__ void __launch_bounds__(kCombineThreads) combine_rows(const RoutingInputs inputs, const ExpertPlan plan,
                                                               const CombineTarget target, const float* outputs) {
  allow_next();
  wait_for_previous();
  const std::int32_t row = blockIdx.y;
  const std::int32_t column = (blockIdx.x * kCombineThreads + threadIdx.x) * width;
  if (row >= live_rows(inputs.pass, inputs.rows) || column >= target.hidden) return;
  float* place = target.residual + static_cast<std::int64_t>(row) * target.hidden + column;
  const std::int32_t first_slot = row * inputs.top_k;
  Columns<width> sum;
  if (plan.chosen[first_slot] == kUnrouted) {
#pragma unroll
    for (int i = 0; i < width; ++i) sum.values[i] = NAN;
    store_columns(place, sum);
    return;
  }
  sum = load_columns<width>(place);
#pragma unroll 8
  for (int choice = 0; choice < inputs.top_k; ++choice) {
    const std::int64_t slot = first_slot + choice;
    add_scaled(sum, plan.weights[slot], load_columns<width>(outputs + slot * target.hidden + column));
  }
  if (target.shared_output != nullptr) {
    const float weight = sigmoid(target.shared_gate[row * target.shared_gate_stride]);
    add_scaled(sum, weight, load_columns<width>(target.shared_output + static_cast<std::int64_t>(row) * target.hidden + column));
  }
  store_columns(place, sum);
}

}  // namespace

ExpertPlan reserve_plan(CudaContext& context, const RoutingInputs& inputs) {
  const std::int64_t slots = static_cast<std::int64_t>(inputs.rows) * inputs.top_k;
  std::int64_t bytes = 0;
  const auto take = [&bytes](std::int64_t size) {
    const std::int64_t place = bytes;
    bytes += (size + 255) / 256 * 256;
    return place;
  };
  const std::int64_t chosen = take(slots * 4), weights = take(slots * 4), sorted = take(slots * 4), counts = take(8);
  std::int64_t items[2] = {};
  for (int list = 0; list < 2; ++list) {
    if (inputs.item_rows[list] == 0) continue;
    items[list] = take(item_capacity(slots, inputs.experts, inputs.item_rows[list]) * sizeof(ExpertItem));
  }
  auto* base = static_cast<std::byte*>(context.scratch(Scratch::kPlan, static_cast<std::size_t>(bytes)));
  ExpertPlan plan;
  plan.chosen = reinterpret_cast<std::int32_t*>(base + chosen);
  plan.weights = reinterpret_cast<float*>(base + weights);
  plan.slots = reinterpret_cast<std::int32_t*>(base + sorted);
  plan.item_counts = reinterpret_cast<std::int32_t*>(base + counts);
  for (int list = 0; list < 2; ++list) plan.items[list] = reinterpret_cast<ExpertItem*>(base + items[list]);
  return plan;
}

void route(CudaContext& context, const RoutingInputs& inputs, const ExpertPlan& plan) {
  TF_ASSERT(inputs.experts <= kExpertsMax && inputs.top_k <= kTopKMax);
  TF_ASSERT(static_cast<std::int64_t>(inputs.rows) * inputs.top_k < (1 << PackedCounts::kBits));
  auto* counter = static_cast<std::uint32_t*>(context.scratch(Scratch::kCounters, 256));
  LaunchShape shape;
  shape.grid = static_cast<unsigned>((inputs.rows + kRouteRows - 1) / kRouteRows);
  shape.block = kRouteThreads;
  const auto kernel = inputs.experts <= 256   ? route_rows<8>
                      : inputs.experts <= 512 ? route_rows<16>
                                              : route_rows<kExpertsMax / 32>;
  launch(context, "routing rows to experts", kernel, shape, inputs, plan, counter);
}

void combine(CudaContext& context, const RoutingInputs& inputs, const ExpertPlan& plan, const CombineTarget& target,
             const float* outputs) {
  const int width = target.hidden % 4 == 0 ? 4 : 1;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>((target.hidden / width + kCombineThreads - 1) / kCombineThreads),
                    static_cast<unsigned>(inputs.rows));
  shape.block = kCombineThreads;
  launch(context, "combining experts", width == 4 ? combine_rows<4> : combine_rows<1>, shape, inputs, plan, target, outputs);
}

}  // namespace tensorfold::ops::cuda::experts
