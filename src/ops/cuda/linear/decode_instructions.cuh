// The instructions that the decode kernel is made of: asynchronous copies into a warp's ring, hand-over of sums between the
// CTAs of a cluster. Inline PTX stands here; addresses, phases and orders are the kernel's. Shared memory is addressed by
// 32-bit addresses throughout.
#pragma once

#include <cstdint>

namespace tensorfold::ops::cuda::decode {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// --- copies to shared memory ------------------------------------------------------------------------------------------

__device__ __forceinline__ std::uint64_t policy_read_once() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
/// 16 bytes, or none.
__device__ __forceinline__ void copy_weights_16(std::uint32_t to, const std::uint8_t* from, std::uint64_t policy, bool wanted) {
  asm volatile(
      "{\n .reg .pred wanted;\n setp.ne.b32 wanted, %3, 0;\n"
      " @wanted cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;\n}" ::"r"(to),
      "l"(from), "l"(policy), "r"(static_cast<int>(wanted))
      : "memory");
}
/// The first `bytes` (0 or 16) are copied, the rest is zero.
__device__ __forceinline__ void copy_16(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int pending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t to, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ void load_shared(std::uint32_t from, float (&v)[4]) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void load_matrices(std::uint32_t address, std::uint32_t (&b)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(address)
               : "memory");
}

#if __CUDA_ARCH__ >= 900

// --- barriers ---------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
/// Makes barriers that were just initialised known to the cluster.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/// One arrival, and `bytes` more that the cluster's CTAs must bring.
__device__ __forceinline__ void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, std::uint32_t phase) {
  asm volatile(
      "{\n .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      " @done bra over;\n bra again;\n over: }" ::"r"(barrier),
      "r"(phase)
      : "memory");
}
/// An arrival at a barrier of any CTA of the cluster. Relaxed: it says that this warp has read a buffer, which needs no
/// writes to be seen; a release here would drain the warp's own prefetch.
__device__ __forceinline__ void barrier_arrive_remote(std::uint32_t cluster_barrier) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(cluster_barrier) : "memory");
}

// --- the cluster ------------------------------------------------------------------------------------------------------

__device__ __forceinline__ std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// The address of `address` in CTA `rank`.
__device__ __forceinline__ std::uint32_t cluster_address(std::uint32_t address, std::uint32_t rank) {
  std::uint32_t result;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(rank));
  return result;
}
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/// Writes 16 bytes to a CTA of the cluster and counts them at its barrier.
__device__ __forceinline__ void send_16(std::uint32_t cluster_to, std::uint32_t cluster_barrier, const float (&v)[4]) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                   cluster_to),
               "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(cluster_barrier)
               : "memory");
}

#endif

}  // namespace tensorfold::ops::cuda::decode
