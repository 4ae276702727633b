// The Hopper instructions that the wide and prompt kernels are made of: shared-memory barriers, tensor copies, wgmma with its
// A operand in registers. Inline PTX stands here and nowhere else in those kernels; shapes and addresses are theirs.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace tensorfold::ops::cuda::hopper {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// --- barriers in shared memory ----------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
/// Makes barriers that were just initialised known to the copy engine.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
}
/// One arrival, and `bytes` more that copies must bring.
__device__ __forceinline__ void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, std::uint32_t phase) {
  asm volatile(
      "{\n .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      " @done bra over;\n bra again;\n over: }" ::"r"(barrier),
      "r"(phase)
      : "memory");
}
/// An arrival at the barrier that CTA `rank` of the cluster has at this address. Relaxed: for those who only read.
__device__ __forceinline__ void barrier_arrive_at(std::uint32_t barrier, int rank) {
  asm volatile(
      "{\n .reg .b32 remote;\n mapa.shared::cluster.u32 remote, %0, %1;\n"
      " mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
/// All threads of the cluster that have not ended.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\n barrier.cluster.wait.acquire;" ::: "memory");
}
/// All 128 threads of one warpgroup; `name` is 1 to 15.
__device__ __forceinline__ void warpgroup_sync(int name) {
  asm volatile("bar.sync %0, 128;" ::"r"(name) : "memory");
}

// --- copies -----------------------------------------------------------------------------------------------------------

__device__ __forceinline__ std::uint64_t policy_read_once() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ std::uint64_t policy_read_again() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
__device__ __forceinline__ void copy_box_2d(std::uint32_t destination, const CUtensorMap* map, int x0, int x1,
                                            std::uint32_t barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(x0), "r"(x1), "l"(policy)
      : "memory");
}
/// To the same place in every CTA of the mask, whose barriers at the same place learn of it.
__device__ __forceinline__ void copy_box_2d_to_all(std::uint32_t destination, const CUtensorMap* map, int x0, int x1,
                                                   std::uint32_t barrier, std::uint16_t mask, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
      " [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(x0), "r"(x1), "h"(mask), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void copy_box_4d(std::uint32_t destination, const CUtensorMap* map, int x0, int x1, int x2,
                                            int x3, std::uint32_t barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "l"(policy)
      : "memory");
}

// --- registers --------------------------------------------------------------------------------------------------------

template <int count>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

// --- wgmma ------------------------------------------------------------------------------------------------------------

/// Before a wgmma that reads registers which other instructions wrote.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Until at most `pending` committed groups run.
template <int pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
/// Accumulators are read below this line and not above (the compiler doesn't know that wgmma_wait() fills them), and
/// fragments are complete here (it may not define them after wgmma_fence()).
template <int count>
__device__ __forceinline__ void hold(float (&values)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
template <int count>
__device__ __forceinline__ void hold(std::uint32_t (&values)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+r"(values[i])::"memory");
}

/// What a B tile [tokens][64 k] of bf16 in the 128-byte swizzle is known by; `address` is 1,024-byte aligned, or the start of
/// a k16 step (32 bytes) within the first such row.
__device__ __forceinline__ std::uint64_t tile_descriptor(std::uint32_t address) {
  std::uint64_t descriptor;  // address, rows of a core matrix group 1,024 bytes apart, 128-byte swizzle; all in units of 16
  asm("mov.b64 %0, {%1, %2};" : "=l"(descriptor) : "r"((address >> 4) | 0x10000u), "r"(0x40000040u));
  return descriptor;
}
/// The same `bytes` further on.
__device__ __forceinline__ std::uint64_t advance(std::uint64_t descriptor, int bytes) {
  return descriptor + (bytes >> 4);
}

#define TF_D8(i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define TF_D16(i) TF_D8(i), TF_D8(i + 8)
#define TF_D32(i) TF_D16(i), TF_D16(i + 16)
#define TF_WGMMA(tokens, names, a0, a1, a2, a3, b, add, ...)                                                        \
  asm volatile("{\n .reg .pred add;\n setp.ne.b32 add, %" #add ", 0;\n"                                             \
               " wgmma.mma_async.sync.aligned.m64n" #tokens "k16.f32.bf16.bf16 {" names "}, {%" #a0 ", %" #a1       \
               ", %" #a2 ", %" #a3 "}, %" #b ", add, 1, 1, 0;\n}"                                                   \
               : __VA_ARGS__                                                                                        \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile), "r"(static_cast<int>(accumulate)))
#define TF_N0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define TF_N1 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define TF_N2 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define TF_N3 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define TF_N4 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define TF_N5 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"

/// D[64 weight rows][tokens] (+)= A · B over one k16 step. d[4·n + i]: rows g (i < 2) and g + 8 of the warp's 16, tokens
/// 8·n + 2·t + (i & 1), with lane = 4·g + t; `a` is the lane's fragment as of mma.m16n8k16.
__device__ __forceinline__ void wgmma(float (&d)[16], const std::uint32_t (&a)[4], std::uint64_t tile, bool accumulate) {
  TF_WGMMA(32, TF_N0, 16, 17, 18, 19, 20, 21, TF_D16(0));
}
__device__ __forceinline__ void wgmma(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t tile, bool accumulate) {
  TF_WGMMA(64, TF_N0 "," TF_N1, 32, 33, 34, 35, 36, 37, TF_D32(0));
}
__device__ __forceinline__ void wgmma(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t tile, bool accumulate) {
  TF_WGMMA(128, TF_N0 "," TF_N1 "," TF_N2 "," TF_N3, 64, 65, 66, 67, 68, 69, TF_D32(0), TF_D32(32));
}
__device__ __forceinline__ void wgmma(float (&d)[96], const std::uint32_t (&a)[4], std::uint64_t tile, bool accumulate) {
  TF_WGMMA(192, TF_N0 "," TF_N1 "," TF_N2 "," TF_N3 "," TF_N4 "," TF_N5, 96, 97, 98, 99, 100, 101, TF_D32(0), TF_D32(32),
           TF_D32(64));
}

#undef TF_D8
#undef TF_D16
#undef TF_D32
#undef TF_WGMMA
#undef TF_N0
#undef TF_N1
#undef TF_N2
#undef TF_N3
#undef TF_N4
#undef TF_N5

}  // namespace tensorfold::ops::cuda::hopper
