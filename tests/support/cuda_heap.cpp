// See cuda_heap.h. Blocks are powers of two with a free list each; a block never becomes another size. That wastes up to
// half, which tests can afford, and keeps allocation short enough to be obviously right.
#include "support/cuda_heap.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>

namespace tensorfold::test {
namespace {

constexpr std::size_t kAlignmentUsual = 16;
constexpr std::size_t kAlignmentLarge = 256;  // of what kernels may read in wide pieces
constexpr std::size_t kLargeBytes = 1024;

/// Lies right before what the caller gets.
struct Header {
  std::byte* block;
  std::uint64_t size_class;
};
static_assert(sizeof(Header) == kAlignmentUsual);

struct FreeBlock {
  FreeBlock* next;
};

struct Arena {
  std::mutex mutex;
  std::byte* begin = nullptr;
  std::byte* next = nullptr;  // never handed out from here on
  std::byte* end = nullptr;
  std::array<FreeBlock*, 64> free{};  // by log2 of the block's size
  std::size_t used = 0;
};

// Constant-initialised, so that it is there before any other static object allocates.
constinit Arena arena;

std::byte* align_up(std::byte* pointer, std::size_t alignment) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  return pointer + ((address + alignment - 1) / alignment * alignment - address);
}

std::byte* take_block(std::size_t size_class) {
  const std::size_t bytes = std::size_t{1} << size_class;
  if (FreeBlock* block = arena.free[size_class]) {
    arena.free[size_class] = block->next;
    return reinterpret_cast<std::byte*>(block);
  }
  std::byte* block = align_up(arena.next, std::min(bytes, kAlignmentLarge));
  if (bytes > static_cast<std::size_t>(arena.end - block)) {
    std::fprintf(stderr, "The CUDA test heap is full: %zu bytes in use, a block of %zu asked for.\n", arena.used, bytes);
    std::abort();
  }
  arena.next = block + bytes;
  return block;
}

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (arena.begin == nullptr) {
    if (alignment <= kAlignmentUsual) return std::malloc(std::max<std::size_t>(bytes, 1));
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  }
  alignment = std::max(alignment, bytes >= kLargeBytes ? kAlignmentLarge : kAlignmentUsual);
  const std::size_t needed = bytes + std::max(alignment, sizeof(Header));
  const auto size_class = static_cast<std::size_t>(std::bit_width(needed - 1));
  const std::lock_guard lock(arena.mutex);
  std::byte* block = take_block(size_class);
  // Blocks are at least as aligned as this needs, up to 256; beyond, the rounding up may run out of the block.
  std::byte* pointer = align_up(block + sizeof(Header), alignment);
  if (pointer + bytes > block + (std::size_t{1} << size_class)) {
    std::fprintf(stderr, "The CUDA test heap doesn't align to %zu bytes.\n", alignment);
    std::abort();
  }
  *reinterpret_cast<Header*>(pointer - sizeof(Header)) = {block, size_class};
  arena.used += std::size_t{1} << size_class;
  return pointer;
}

void release(void* pointer) {
  auto* bytes = static_cast<std::byte*>(pointer);
  if (arena.begin == nullptr || bytes < arena.begin || bytes >= arena.end) {
    std::free(pointer);
    return;
  }
  const std::lock_guard lock(arena.mutex);
  const Header header = *reinterpret_cast<Header*>(bytes - sizeof(Header));
  auto* block = reinterpret_cast<FreeBlock*>(header.block);
  block->next = arena.free[header.size_class];
  arena.free[header.size_class] = block;
  arena.used -= std::size_t{1} << header.size_class;
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  void* pointer = allocate(bytes, alignment);
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}

}  // namespace

bool open_cuda_heap(std::size_t bytes) {
  void* memory = nullptr;
  if (cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  const std::lock_guard lock(arena.mutex);
  arena.next = static_cast<std::byte*>(memory);
  arena.end = arena.next + bytes;
  arena.begin = arena.next;
  return true;
}

}  // namespace tensorfold::test

// The replaced functions themselves. All others forward to these in libstdc++.
void* operator new(std::size_t bytes) {
  return tensorfold::test::allocate_or_throw(bytes, 1);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return tensorfold::test::allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* pointer) noexcept {
  tensorfold::test::release(pointer);
}
void operator delete(void* pointer, std::size_t) noexcept {
  tensorfold::test::release(pointer);
}
void operator delete(void* pointer, std::align_val_t) noexcept {
  tensorfold::test::release(pointer);
}
void operator delete(void* pointer, std::size_t, std::align_val_t) noexcept {
  tensorfold::test::release(pointer);
}
