// See faults.h. What stands here runs in place of the allocator and of system calls: no allocation, no locks.
#include "faults/faults.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <new>

namespace tensorfold::testing {
namespace {

std::atomic<std::uint32_t> allocations_one_in{0}, files_one_in{0};
std::atomic<std::size_t> allocation_bytes_min{0};
std::atomic<std::uint64_t> state{1}, failed_allocations{0}, failed_files{0};
thread_local int exemptions = 0;

/// One in `one_in` draws; what is drawn depends on the seed and on the order in which threads come here.
bool draws(std::uint32_t one_in) {
  std::uint64_t value = state.fetch_add(0x9E3779B97F4A7C15u, std::memory_order_relaxed);
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return (value ^ (value >> 31)) % one_in == 0;
}

bool allocation_fails(std::size_t bytes) {
  const std::uint32_t one_in = allocations_one_in.load(std::memory_order_relaxed);
  if (one_in == 0 || exemptions > 0 || bytes < allocation_bytes_min.load(std::memory_order_relaxed)) return false;
  if (!draws(one_in)) return false;
  failed_allocations.fetch_add(1, std::memory_order_relaxed);
  return true;
}

}  // namespace

bool file_operation_fails() {
  const std::uint32_t one_in = files_one_in.load(std::memory_order_relaxed);
  if (one_in == 0 || exemptions > 0 || !draws(one_in)) return false;
  failed_files.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void arm_faults(const FaultRates& rates, std::uint32_t seed) {
  state = seed * 0x2545F4914F6CDD1Du + 1;
  allocation_bytes_min = rates.allocation_bytes_min;
  allocations_one_in = rates.allocations;
  files_one_in = rates.files;
}

void disarm_faults() {
  allocations_one_in = 0;
  files_one_in = 0;
}

FaultCounts fault_counts() {
  return {failed_allocations.load(), failed_files.load()};
}

FaultExemption::FaultExemption() {
  ++exemptions;
}
FaultExemption::~FaultExemption() {
  --exemptions;
}
FaultExposure::FaultExposure() : exemptions_(exemptions) {
  exemptions = 0;
}
FaultExposure::~FaultExposure() {
  exemptions = exemptions_;
}

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (allocation_fails(bytes)) throw std::bad_alloc();
  void* memory = alignment <= alignof(std::max_align_t)
                     ? std::malloc(bytes == 0 ? 1 : bytes)
                     : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

/// The C library's function behind ours.
template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

bool is_standard_stream(int file) {
  return file >= 0 && file <= 2;
}

}  // namespace tensorfold::testing

using tensorfold::testing::allocate;
using tensorfold::testing::file_operation_fails;
using tensorfold::testing::is_standard_stream;
using tensorfold::testing::next;

void* operator new(std::size_t bytes) {
  return allocate(bytes, 1);
}
void* operator new[](std::size_t bytes) {
  return allocate(bytes, 1);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

// A disk that fails: errors as it reports them, and writes and reads that stop in their middle.
extern "C" {

ssize_t write(int file, const void* bytes, size_t size) {
  static const auto real = next<ssize_t(int, const void*, size_t)>("write");
  if (is_standard_stream(file) || !file_operation_fails()) return real(file, bytes, size);
  if (size > 1) return real(file, bytes, size / 2);
  errno = ENOSPC;
  return -1;
}

ssize_t pwrite(int file, const void* bytes, size_t size, off_t offset) {
  static const auto real = next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  if (!file_operation_fails()) return real(file, bytes, size, offset);
  if (size > 1 && file_operation_fails()) return real(file, bytes, size / 2, offset);
  errno = ENOSPC;
  return -1;
}

ssize_t pread(int file, void* bytes, size_t size, off_t offset) {
  static const auto real = next<ssize_t(int, void*, size_t, off_t)>("pread");
  if (!file_operation_fails()) return real(file, bytes, size, offset);
  errno = EIO;
  return -1;
}

int fsync(int file) {
  static const auto real = next<int(int)>("fsync");
  if (!file_operation_fails()) return real(file);
  errno = EIO;
  return -1;
}

int fdatasync(int file) {
  static const auto real = next<int(int)>("fdatasync");
  if (!file_operation_fails()) return real(file);
  errno = EIO;
  return -1;
}

int ftruncate(int file, off_t size) noexcept {
  static const auto real = next<int(int, off_t)>("ftruncate");
  if (!file_operation_fails()) return real(file, size);
  errno = EIO;
  return -1;
}

int rename(const char* from, const char* to) noexcept {
  static const auto real = next<int(const char*, const char*)>("rename");
  if (!file_operation_fails()) return real(from, to);
  errno = EROFS;
  return -1;
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  static const auto real = next<int(int, const char*, int, const char*)>("renameat");
  if (!file_operation_fails()) return real(from_folder, from, to_folder, to);
  errno = EROFS;
  return -1;
}

int open(const char* path, int flags, ...) {
  static const auto real = next<int(const char*, int, ...)>("open");
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  if (!file_operation_fails()) return real(path, flags, mode);
  errno = EMFILE;
  return -1;
}

int openat(int folder, const char* path, int flags, ...) {
  static const auto real = next<int(int, const char*, int, ...)>("openat");
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  if (!file_operation_fails()) return real(folder, path, flags, mode);
  errno = EMFILE;
  return -1;
}

}  // extern "C"
