// What a launch of the window kernel (window_experts.cuh) is to do: what the host decides, and the plan that every CTA makes
// for itself in shared memory, or reads where routing.cu made it. Apart from the phases that follow it, which know items and
// slots and not how rows came to them.
#pragma once

#include "ops/cuda/instructions.cuh"
#include "ops/cuda/moe/routing.cuh"
#include "ops/cuda/moe/window_experts.h"

namespace tensorfold::ops::cuda::experts {

constexpr int kWindowWarps = 16;
constexpr int kWindowThreads = kWindowWarps * 32;
constexpr int kWindowSlotsMax = 1024;
constexpr int kWindowExpertsRoutedMax = 512;
constexpr int kSharedWarps = kSegmentsMax;  // of a tile of the shared expert's gate and up: a segment each

/// What the host decides for a launch; none of it enters a bit.
struct WindowLaunch {
  bool gate_up = true, down = true;        // phases; layers of two formats take two launches
  bool routes = false;                     // the plan is this launch's own
  std::int32_t slots_per_row = 0;          // the row's choices, and the shared expert where it runs here
  std::int32_t shared_items = 0;           // items of the shared expert; shared_slots of the plan's places are theirs
  std::int32_t shared_slots = 0;
  std::int32_t sharing_shift = 2;          // warps that share a tile in gate, up, as a power of two: 4 or 8
  std::int32_t unit_segments = 8;          // segments of down that a warp adds: a power of two, so a subtree
  std::int32_t units_shift = 0;            // units of an item, as a power of two
  std::int32_t block_bytes = 0;            // of a ring's stage
  std::uint16_t* inner = nullptr;          // [slots][down.k_blocks · 128]
  std::uint32_t* counters = nullptr;       // [2], zero
  // Dynamic shared memory, offsets in bytes. At 0 lie the buffers of x, later down's results.
  std::int32_t ring = 0, partials = 0, items = 0, slots = 0, chosen = 0, weights = 0, masks = 0, candidates = 0, early = 0, barriers = 0;
};

/// An item in a word.
struct WindowItem {
  std::uint32_t word;
  __device__ static WindowItem of(int expert, int begin, int count) {
    return {static_cast<std::uint32_t>(count | begin << 4 | expert << 16)};
  }
  __device__ int count() const { return static_cast<int>(word & 15u); }
  __device__ int begin() const { return static_cast<int>(word >> 4 & 0xfffu); }
  __device__ int expert() const { return static_cast<int>(word >> 16); }
};

/// What every CTA knows after the plan, in shared memory.
struct WindowPlan {
  WindowItem* items;
  std::uint16_t* slots;
  std::int32_t* chosen;  // of rows that this launch routed
  float* weights;
  int item_count = 0;
};

/// What a launch that routes knows before any row: shared memory that needs no earlier launch. A barrier of the CTA follows.
/// `masks` [experts]: which rows chose an expert.
__device__ __forceinline__ void begin_plan(const RoutingInputs& inputs, const WindowLaunch& launch, std::uint32_t* masks,
                                           const WindowPlan& plan) {
  const int tid = threadIdx.x;
#pragma unroll 1
  for (int e = tid; e < inputs.experts; e += kWindowThreads) masks[e] = 0;
  if (tid < launch.shared_slots) {
    plan.slots[tid] = static_cast<std::uint16_t>(tid * launch.slots_per_row + inputs.top_k);
  }
  if (tid < launch.shared_items) {
    const int begin = tid * kWindowItemRows;
    plan.items[tid] = WindowItem::of(0, begin, min(kWindowItemRows, launch.shared_slots - begin));
  }
}

/// Routes the rows, a warp each; rows that are padding, too, since nothing of theirs enters the plan. The shared expert's
/// warps come last.
__device__ __forceinline__ void route_rows(const RoutingInputs& inputs, RouteCandidate* all_candidates, const WindowPlan& plan) {
  const int row = (threadIdx.x / 32 + kWindowWarps - kSharedWarps) % kWindowWarps;
  if (row >= inputs.rows) return;
  const float* logits = inputs.logits + row * inputs.logits_stride;
  std::int32_t* chosen = plan.chosen + row * inputs.top_k;
  float* weights = plan.weights + row * inputs.top_k;
  RouteCandidate* candidates = all_candidates + row * kRouteCandidates;
  if (inputs.experts <= 256) {
    route_row<8>(inputs, logits, candidates, chosen, weights);
  } else {
    route_row<kWindowExpertsRoutedMax / 32>(inputs, logits, candidates, chosen, weights);
  }
}
static_assert(kWindowRoutedRowsMax <= kWindowWarps);

/// Orders the slots of the `rows` routed rows by expert. A slot's rank among its expert's is the number of earlier rows, so every
/// CTA comes to the same order.
__device__ __forceinline__ void finish_plan(const RoutingInputs& inputs, const WindowLaunch& launch, const ExpertPlan& exported,
                                            int rows, std::uint32_t* masks, std::uint32_t* warp_totals, WindowPlan& plan) {
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  WindowItem* const items = plan.items + launch.shared_items;
  std::uint16_t* const places = plan.slots + launch.shared_slots;
  const int slots = rows * inputs.top_k;
  if (inputs.rows == 1) {  // a row's experts are all different
    const bool routed = rows == 1 && plan.chosen[0] != kUnrouted;
    plan.item_count = launch.shared_items + (routed ? inputs.top_k : 0);
    if (tid < inputs.top_k) {
      items[tid] = WindowItem::of(routed ? plan.chosen[tid] : 0, launch.shared_slots + tid, 1);
      places[tid] = static_cast<std::uint16_t>(tid);
      if (blockIdx.x == 0) exported.chosen[tid] = routed ? plan.chosen[tid] : kUnrouted;
    }
    __syncthreads();
    return;
  }
#pragma unroll 1
  for (int slot = tid; slot < slots; slot += kWindowThreads) {
    const int expert = plan.chosen[slot];
    if (expert != kUnrouted) atomicOr(&masks[expert], 1u << (slot / inputs.top_k));
    if (blockIdx.x == 0) exported.chosen[slot] = expert;
  }
  if (blockIdx.x == 0) {
#pragma unroll 1
    for (int slot = slots + tid; slot < inputs.rows * inputs.top_k; slot += kWindowThreads) exported.chosen[slot] = kUnrouted;
  }
  __syncthreads();
  // Slots (low half) and items (high half) of the experts before this thread's.
  std::uint32_t mask = 0, through = 0, own = 0;
  if (tid < inputs.experts) {
    mask = masks[tid];
    const std::uint32_t count = __popc(mask);
    own = count | ((count + kWindowItemRows - 1) / kWindowItemRows) << 16;
  }
  through = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::uint32_t other = __shfl_up_sync(kFullWarp, through, distance);
    if (lane >= distance) through += other;
  }
  if (lane == 31) warp_totals[warp] = through;
  __syncthreads();
  std::uint32_t all = 0, before = through - own;
#pragma unroll
  for (int w = 0; w < kWindowWarps; ++w) {
    if (w < warp) before += warp_totals[w];
    all += warp_totals[w];
  }
  plan.item_count = launch.shared_items + static_cast<int>(all >> 16);
  if (own != 0) {
    const int begin = static_cast<int>(before & 0xffffu), count = static_cast<int>(own & 0xffffu);
    WindowItem* item = items + (before >> 16);
    for (int at = 0; at < count; at += kWindowItemRows) {
      *item++ = WindowItem::of(tid, launch.shared_slots + begin + at, min(kWindowItemRows, count - at));
    }
    masks[tid] = mask | static_cast<std::uint32_t>(begin) << 16;
  }
  __syncthreads();
#pragma unroll 1
  for (int slot = tid; slot < slots; slot += kWindowThreads) {
    const int expert = plan.chosen[slot];
    if (expert == kUnrouted) continue;
    const int row = slot / inputs.top_k;
    const std::uint32_t entry = masks[expert];
    const std::uint32_t earlier = entry & ((1u << row) - 1u);
    const int place = static_cast<int>(entry >> 16) + __popc(earlier);
    places[place] = static_cast<std::uint16_t>(slot + row * (launch.slots_per_row - inputs.top_k));
  }
  __syncthreads();
}
static_assert(kWindowRoutedRowsMax <= 16, "a mask of rows and a place share a word");
static_assert(kWindowExpertsRoutedMax <= kWindowThreads);

/// The plan that routing.cu made, as shared memory wants it.
__device__ __forceinline__ void read_plan(const ExpertPlan& made, WindowPlan& plan) {
  plan.item_count = __ldcg(made.item_counts);
  int slots = 0;
#pragma unroll 1
  for (int i = threadIdx.x; i < plan.item_count; i += kWindowThreads) {
    const int4 item = __ldcg(reinterpret_cast<const int4*>(made.items[0] + i));
    plan.items[i] = WindowItem::of(item.x, item.y, item.z);
  }
  if (plan.item_count > 0) {
    const int4 last = __ldcg(reinterpret_cast<const int4*>(made.items[0] + plan.item_count - 1));
    slots = last.y + last.z;
  }
#pragma unroll 1
  for (int place = threadIdx.x; place < slots; place += kWindowThreads) {
    plan.slots[place] = static_cast<std::uint16_t>(__ldcg(made.slots + place));
  }
  __syncthreads();
}

}  // namespace tensorfold::ops::cuda::experts
