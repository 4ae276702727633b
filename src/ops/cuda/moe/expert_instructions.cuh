// The instructions that the experts' kernels are made of, as functions: copies to shared memory, barriers there, matrix
// products. Inline PTX stands here and nowhere else in this folder; shapes and addresses are the kernels'.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tensorfold::ops::cuda::experts {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// --- copies of 16 bytes a thread --------------------------------------------------------------------------------------

/// For what is read once: weights leave the L2 cache first.
__device__ __forceinline__ std::uint64_t policy_read_once() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void copy16(std::uint32_t destination, const void* source, std::uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "l"(policy)
               : "memory");
}
__device__ __forceinline__ void copy16(std::uint32_t destination, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(destination), "l"(source) : "memory");
}
__device__ __forceinline__ void copy4(std::uint32_t destination, const void* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(destination), "l"(source) : "memory");
}
/// `bytes` of the 16 come from `source`, the rest is zero.
__device__ __forceinline__ void copy16_padded(std::uint32_t destination, const void* source, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Until at most `pending` of this thread's groups are under way.
template <int pending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// --- barriers in shared memory ----------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  asm volatile("{\n .reg .b64 state;\n mbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}
/// This thread arrives when all copies that it has asked for have landed.
__device__ __forceinline__ void barrier_arrive_after_copies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, std::uint32_t phase) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      " @done bra over;\n bra again;\n over: }" ::"r"(barrier),
      "r"(phase)
      : "memory");
#elif __CUDA_ARCH__ >= 800
  asm volatile(
      "{\n .reg .pred done;\n"
      "again: mbarrier.test_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      " @done bra over;\n bra again;\n over: }" ::"r"(barrier),
      "r"(phase)
      : "memory");
#endif
}
/// Warps that share the hardware barrier `name` (1 to 15).
__device__ __forceinline__ void named_sync(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// --- across the grid --------------------------------------------------------------------------------------------------

__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* address) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
/// Memory that another CTA of this launch wrote.
__device__ __forceinline__ uint4 load16_written(const void* address) {
  uint4 value;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address)
               : "memory");
  return value;
}

// --- mma.sync ---------------------------------------------------------------------------------------------------------

/// Four 8x8 matrices; the address of a row of eight is lane's own.
__device__ __forceinline__ void load_matrices(std::uint32_t address, std::uint32_t (&b)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(address)
               : "memory");
}
/// D[16 weight rows][8 tokens] += A · B over one k16 step. With lane = 4·g + t: d[i] is row g (i < 2) or g + 8, token
/// 2·t + (i & 1).
__device__ __forceinline__ void multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// --- wgmma ------------------------------------------------------------------------------------------------------------

template <int count>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}
/// Between ordinary writes to shared memory (by copies that this thread has seen land) and a wgmma that reads them.
__device__ __forceinline__ void fence_for_wgmma() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
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

/// The descriptor of a B tile [tokens][64 k] of bf16 in the 128-byte swizzle, for the k16 step that begins at `address`;
/// the tile's start is 1,024-byte aligned.
__device__ __forceinline__ std::uint64_t tile_descriptor(std::uint32_t address) {
  const std::uint32_t low = ((address & 0x3ffff) >> 4) | 0x10000u;
  std::uint64_t descriptor;
  asm("mov.b64 %0, {%1, %2};" : "=l"(descriptor) : "r"(low), "r"(0x40000040u));
  return descriptor;
}

#define TF_D8(i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define TF_N0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define TF_N1 TF_N0 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define TF_N2 TF_N1 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define TF_N3 TF_N2 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define TF_N4 TF_N3 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define TF_N5 TF_N4 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define TF_N6 TF_N5 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define TF_N7 TF_N6 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define TF_WGMMA(tokens, names, a0, a1, a2, a3, b, ...)                                                                 \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #tokens "k16.f32.bf16.bf16 {" names "}, {%" #a0 ", %" #a1 ", %" #a2 \
               ", %" #a3 "}, %" #b ", 1, 1, 1, 0;"                                                                      \
               : __VA_ARGS__                                                                                            \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile))

/// D[64 weight rows][tokens] += A · B over one k16 step. d[4·n + i]: row g (i < 2) or g + 8 of the warp's 16, token
/// 8·n + 2·t + (i & 1); `a` is the lane's fragment as of mma.m16n8k16.
template <int tokens>
__device__ __forceinline__ void wgmma(float (&d)[tokens / 2], const std::uint32_t (&a)[4], std::uint64_t tile) {
  static_assert(tokens % 16 == 0 && tokens <= 128);
  if constexpr (tokens == 16) {
    TF_WGMMA(16, TF_N0, 8, 9, 10, 11, 12, TF_D8(0));
  } else if constexpr (tokens == 32) {
    TF_WGMMA(32, TF_N1, 16, 17, 18, 19, 20, TF_D8(0), TF_D8(8));
  } else if constexpr (tokens == 48) {
    TF_WGMMA(48, TF_N2, 24, 25, 26, 27, 28, TF_D8(0), TF_D8(8), TF_D8(16));
  } else if constexpr (tokens == 64) {
    TF_WGMMA(64, TF_N3, 32, 33, 34, 35, 36, TF_D8(0), TF_D8(8), TF_D8(16), TF_D8(24));
  } else if constexpr (tokens == 80) {
    TF_WGMMA(80, TF_N4, 40, 41, 42, 43, 44, TF_D8(0), TF_D8(8), TF_D8(16), TF_D8(24), TF_D8(32));
  } else if constexpr (tokens == 96) {
    TF_WGMMA(96, TF_N5, 48, 49, 50, 51, 52, TF_D8(0), TF_D8(8), TF_D8(16), TF_D8(24), TF_D8(32), TF_D8(40));
  } else if constexpr (tokens == 112) {
    TF_WGMMA(112, TF_N6, 56, 57, 58, 59, 60, TF_D8(0), TF_D8(8), TF_D8(16), TF_D8(24), TF_D8(32), TF_D8(40), TF_D8(48));
  } else {
    TF_WGMMA(128, TF_N7, 64, 65, 66, 67, 68, TF_D8(0), TF_D8(8), TF_D8(16), TF_D8(24), TF_D8(32), TF_D8(40), TF_D8(48),
             TF_D8(56));
  }
}

#undef TF_D8
#undef TF_N0
#undef TF_N1
#undef TF_N2
#undef TF_N3
#undef TF_N4
#undef TF_N5
#undef TF_N6
#undef TF_N7
#undef TF_WGMMA
#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace tensorfold::ops::cuda::experts
