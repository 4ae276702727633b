// Instructions that C++ has no words for, as functions: copies into shared memory, barriers, clusters, matrix products. The
// kernels of the CUDA backend share them, so that an instruction, and what must be known about it, is written once; shapes,
// addresses and phases are the kernels'.
//
// Shared memory is known by 32-bit addresses. Where an instruction exists in several memory orders, a function's name says
// which it is. What Hopper alone has stands below a line of its own: only code for sm_90 calls it (for sm_90a: registers, wgmma).
//
// Forms that look interchangeable aren't always: a reference instead of a pointer, or a descriptor that the compiler sees
// through, makes other machine code around it. Where kernels were measured with different ones, both are here.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace tensorfold::ops::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// `value`, but to the compiler a number of the thread's own: from "register plus uniform register" as the shared address of a
/// copy ptxas 13.0 makes a form of LDGSTS that sm_90 refuses as an illegal instruction (tools/check_sass.py looks for it).
template <typename T>
__device__ __forceinline__ T own_value(T value) {
  return value + static_cast<T>(threadIdx.x >> 10);  // + 0
}

// --- copies to shared memory that a thread doesn't wait for -----------------------------------------------------------

/// For what is read once: it leaves the L2 cache first.
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
__device__ __forceinline__ void copy_16(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_16(std::uint32_t to, const void* from, std::uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy) : "memory");
}
/// 16 bytes, or none: then what lies there stays.
__device__ __forceinline__ void copy_16_if(bool wanted, std::uint32_t to, const void* from, std::uint64_t policy) {
  asm volatile(
      "{\n .reg .pred wanted;\n setp.ne.b32 wanted, %3, 0;\n"
      " @wanted cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;\n}" ::"r"(to),
      "l"(from), "l"(policy), "r"(static_cast<int>(wanted))
      : "memory");
}
/// The first `bytes` of the 16 are copied, the rest is zero.
__device__ __forceinline__ void copy_16_padded(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
/// 4 or 8 bytes, by way of the first-level cache: the other one takes none so small.
template <int bytes>
__device__ __forceinline__ void copy_small(std::uint32_t to, const void* from) {
  static_assert(bytes == 4 || bytes == 8);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(bytes) : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Until at most `pending` of this thread's groups are under way.
template <int pending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// --- shared memory and matrices in it ---------------------------------------------------------------------------------

__device__ __forceinline__ void store_shared_16(std::uint32_t to, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ uint4 load_shared_16(std::uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ void load_shared_16(std::uint32_t from, float (&v)[4]) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void store_shared_16(std::uint32_t to, const float (&v)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
}
__device__ __forceinline__ void store_shared_8(std::uint32_t to, uint2 v) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void store_shared_4(std::uint32_t to, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
}
__device__ __forceinline__ float load_shared_4(std::uint32_t from) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory");
  return v;
}
/// Four 8x8 matrices of bf16; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_matrices(std::uint32_t address, std::uint32_t (&b)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t address, std::uint32_t (&b)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(address)
               : "memory");
}
/// d += a · b over one k16 step. Lane 4·g + t holds rows g (d[0], d[1]) and g + 8 (d[2], d[3]) of a and columns 2·t
/// (d[0], d[2]) and 2·t + 1 of b: output rows and tokens of a linear layer.
__device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// The same with four of more numbers and registers.
__device__ __forceinline__ void mma_at(float* d, const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1) {
  mma(reinterpret_cast<float(&)[4]>(*d), reinterpret_cast<const std::uint32_t(&)[4]>(*a), b0, b1);
}

// --- barriers in shared memory ----------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// This thread arrives when all copies that it has asked for have landed.
__device__ __forceinline__ void barrier_arrive_after_copies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
/// Returns when the phase of the given parity has ended. The loop is out of the compiler's sight.
__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, std::uint32_t phase) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      " @done bra over;\n bra again;\n over: }" ::"r"(barrier),
      "r"(phase)
      : "memory");
#else
  asm volatile(
      "{\n .reg .pred done;\n"
      "again: mbarrier.test_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      " @done bra over;\n bra again;\n over: }" ::"r"(barrier),
      "r"(phase)
      : "memory");
#endif
}
/// `threads` threads, whole warps, that share the hardware barrier `name` (1 to 15).
__device__ __forceinline__ void named_sync(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// --- across the grid --------------------------------------------------------------------------------------------------

/// A word of global memory; what was written before the release that it saw is visible afterwards.
template <typename Word>
__device__ __forceinline__ Word load_acquire(const Word* address) {
  static_assert(sizeof(Word) == 4);
  Word value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
/// For memory of the host's that it looks at while the launch runs.
__device__ __forceinline__ void store_for_host(std::int32_t* address, std::int32_t value) {
  asm volatile("st.relaxed.sys.global.s32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
/// Memory that another CTA of this launch wrote.
__device__ __forceinline__ uint4 load_16_written(const void* address) {
  uint4 value;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address)
               : "memory");
  return value;
}

// ======================================================================================================================
// Hopper
// ======================================================================================================================

// --- barriers in shared memory, more of them --------------------------------------------------------------------------

/// Makes barriers that were just initialised known to the cluster.
__device__ __forceinline__ void publish_barriers_to_cluster() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/// Makes this thread's writes to shared memory visible to wgmma and the copy engine.
__device__ __forceinline__ void publish_shared_writes() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// Makes barriers that were just initialised known to the cluster and the copy engine.
__device__ __forceinline__ void publish_barriers() {
  publish_barriers_to_cluster();
  publish_shared_writes();
}
__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// One arrival, and `bytes` more that copies, or the cluster's CTAs, must bring.
__device__ __forceinline__ void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// Whether the phase of the given parity has ended; waits for it, but not for ever.
__device__ __forceinline__ bool barrier_try_wait(std::uint32_t barrier, std::uint32_t phase) {
  std::uint32_t done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done)
               : "r"(barrier), "r"(phase)
               : "memory");
  return done != 0;
}
constexpr int kWarpgroupThreads = 128;

/// All threads of one warpgroup; `name` is 1 to 15.
__device__ __forceinline__ void warpgroup_sync(int name) {
  named_sync(name, kWarpgroupThreads);
}

// --- clusters ---------------------------------------------------------------------------------------------------------

__device__ __forceinline__ std::uint32_t rank_in_cluster() {
  std::uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// The address, among the cluster's, that `address` has in CTA `rank`.
__device__ __forceinline__ std::uint32_t cluster_address(std::uint32_t address, std::uint32_t rank) {
  std::uint32_t result;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(rank));
  return result;
}
/// An arrival at a barrier of any CTA of the cluster. For those who only read: it needs no writes to be seen, and a release
/// here would drain the warp's own prefetch.
__device__ __forceinline__ void barrier_arrive_relaxed(std::uint32_t cluster_barrier) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(cluster_barrier) : "memory");
}
__device__ __forceinline__ void store_in_cluster(std::uint32_t cluster_to, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(cluster_to), "f"(value) : "memory");
}
/// Writes 16 bytes to a CTA of the cluster and counts them at its barrier.
__device__ __forceinline__ void send_16(std::uint32_t cluster_to, std::uint32_t cluster_barrier, const float (&v)[4]) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                   cluster_to),
               "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(cluster_barrier)
               : "memory");
}
/// Arrival and wait of all threads of the cluster; a warp's come together. Relaxed: says that they run, not what they wrote.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_arrive_release() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait_acquire() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/// All threads of the cluster that have not ended, each on its own way.
__device__ __forceinline__ void cluster_sync_unaligned() {
  asm volatile("barrier.cluster.arrive.release;\n barrier.cluster.wait.acquire;" ::: "memory");
}

// --- the copy engine --------------------------------------------------------------------------------------------------

/// A contiguous copy from global memory; the barrier counts its bytes.
__device__ __forceinline__ void copy_bulk(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t barrier,
                                          std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
/// The same with the cache's usual policy.
__device__ __forceinline__ void copy_bulk(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
               "r"(bytes), "r"(barrier)
               : "memory");
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

/// What a tile [tokens][64 k] of bf16 in the 128-byte swizzle is known by: address, distance of groups of eight rows (1,024
/// bytes), swizzle, in units of 16 bytes. `address` is 1,024-byte aligned, or the start of a k16 step (32 bytes) within the
/// first such row. Unmasked: for addresses of the CTA's own, which fit.
__device__ __forceinline__ std::uint64_t tile_descriptor_unmasked(std::uint32_t address) {
  std::uint64_t descriptor;
  asm("mov.b64 %0, {%1, %2};" : "=l"(descriptor) : "r"((address >> 4) | 0x10000u), "r"(0x40000040u));
  return descriptor;
}
__device__ __forceinline__ std::uint64_t tile_descriptor(std::uint32_t address) {
  return tile_descriptor_unmasked(address & 0x3ffff);
}
/// The same as a number that the compiler sees through and takes apart.
__device__ __forceinline__ std::uint64_t foldable_tile_descriptor(std::uint32_t address) {
  return static_cast<std::uint64_t>((address & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}
/// The same memory read along the rows; blocks of 64 k (of 64 rows) lie 8 KiB apart.
__device__ __forceinline__ std::uint64_t foldable_transposed_descriptor(std::uint32_t address) {
  return static_cast<std::uint64_t>((address & 0x3ffff) >> 4) | (512ull << 16) | (64ull << 32) | (1ull << 62);
}
/// The same `bytes` further on.
__device__ __forceinline__ std::uint64_t advance_descriptor(std::uint64_t descriptor, int bytes) {
  return descriptor + (bytes >> 4);
}

#define TF_D8(i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define TF_D16(i) TF_D8(i), TF_D8(i + 8)
#define TF_D32(i) TF_D16(i), TF_D16(i + 16)
#define TF_N8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define TF_N16 TF_N8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define TF_N24 TF_N16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define TF_N32 TF_N24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define TF_N40 TF_N32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define TF_N48 TF_N40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define TF_N56 TF_N48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define TF_N64 TF_N56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define TF_N80 TF_N64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define TF_N96 TF_N80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define TF_WGMMA(tokens, names, a0, a1, a2, a3, b, add, transposed, ...)                                              \
  asm volatile("{\n .reg .pred add;\n setp.ne.b32 add, %" #add ", 0;\n"                                               \
               " wgmma.mma_async.sync.aligned.m64n" #tokens "k16.f32.bf16.bf16 {" names "}, {%" #a0 ", %" #a1         \
               ", %" #a2 ", %" #a3 "}, %" #b ", add, 1, 1, %" #transposed ";\n}"                                      \
               : __VA_ARGS__                                                                                          \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile), "r"(static_cast<int>(accumulate)),            \
                 "n"(is_transposed ? 1 : 0))

/// D[64 rows][2 · count] (+)= A · B over one k16 step: the rows are 64 of the weights, or 64 queries, the columns tokens or
/// dimensions. d[4·n + i]: rows g (i < 2) and g + 8 of the warp's 16, columns 8·n + 2·t + (i & 1), with lane = 4·g + t; `a` is
/// the lane's fragment as of mma().
template <bool is_transposed = false, int count>
__device__ __forceinline__ void wgmma(float (&d)[count], const std::uint32_t (&a)[4], std::uint64_t tile, bool accumulate) {
  static_assert(count == 96 || (count % 8 == 0 && count <= 64));
  if constexpr (count == 8) {
    TF_WGMMA(16, TF_N8, 8, 9, 10, 11, 12, 13, 14, TF_D8(0));
  } else if constexpr (count == 16) {
    TF_WGMMA(32, TF_N16, 16, 17, 18, 19, 20, 21, 22, TF_D16(0));
  } else if constexpr (count == 24) {
    TF_WGMMA(48, TF_N24, 24, 25, 26, 27, 28, 29, 30, TF_D16(0), TF_D8(16));
  } else if constexpr (count == 32) {
    TF_WGMMA(64, TF_N32, 32, 33, 34, 35, 36, 37, 38, TF_D32(0));
  } else if constexpr (count == 40) {
    TF_WGMMA(80, TF_N40, 40, 41, 42, 43, 44, 45, 46, TF_D32(0), TF_D8(32));
  } else if constexpr (count == 48) {
    TF_WGMMA(96, TF_N48, 48, 49, 50, 51, 52, 53, 54, TF_D32(0), TF_D16(32));
  } else if constexpr (count == 56) {
    TF_WGMMA(112, TF_N56, 56, 57, 58, 59, 60, 61, 62, TF_D32(0), TF_D16(32), TF_D8(48));
  } else if constexpr (count == 64) {
    TF_WGMMA(128, TF_N64, 64, 65, 66, 67, 68, 69, 70, TF_D32(0), TF_D32(32));
  } else {
    TF_WGMMA(192, TF_N96, 96, 97, 98, 99, 100, 101, 102, TF_D32(0), TF_D32(32), TF_D32(64));
  }
}
/// The same with a tile that is read along its rows (foldable_transposed_descriptor()); `a` is four of more registers.
template <int count>
__device__ __forceinline__ void wgmma_transposed(float (&d)[count], const std::uint32_t* a, std::uint64_t tile,
                                                 bool accumulate) {
  wgmma<true>(d, reinterpret_cast<const std::uint32_t(&)[4]>(*a), tile, accumulate);
}
/// The same for 64 columns with A in shared memory, too.
__device__ __forceinline__ void wgmma_shared(float (&d)[32], std::uint64_t a, std::uint64_t tile, bool accumulate) {
  asm volatile("{\n .reg .pred add;\n setp.ne.b32 add, %34, 0;\n"
               " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TF_N32 "}, %32, %33, add, 1, 1, 0, 0;\n}"
               : TF_D32(0)
               : "l"(a), "l"(tile), "r"(static_cast<int>(accumulate)));
}

#undef TF_D8
#undef TF_D16
#undef TF_D32
#undef TF_N8
#undef TF_N16
#undef TF_N24
#undef TF_N32
#undef TF_N40
#undef TF_N48
#undef TF_N56
#undef TF_N64
#undef TF_N80
#undef TF_N96
#undef TF_WGMMA

}  // namespace tensorfold::ops::cuda
