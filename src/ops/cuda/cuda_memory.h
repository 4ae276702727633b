// Device memory: buffers, scratch and pinned staging. One owner, so that freeing anything that a captured graph may point to
// drops the graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "ops/backend.h"

namespace tensorfold::ops::cuda {

enum class MemoryPlace {
  kDevice,
  kPinnedHost,  // the GPU reads and writes host memory: copies need no detour, tests look inside
};

/// The memory that one backend takes. Buffers keep it alive, so they may outlive the backend.
class DeviceMemory : public std::enable_shared_from_this<DeviceMemory> {
 public:
  /// Of GPU `device`. `bytes_max` 0: whatever it has left.
  DeviceMemory(int device, std::uint64_t bytes_max) : device_(device), bytes_max_(bytes_max) {}
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// Called before a buffer of the device goes; empty: nobody needs to know any more.
  void set_on_free(std::function<void()> on_free) { on_free_ = std::move(on_free); }

  /// Zeroed. Throws Error(kResourceExhausted) naming `purpose` and what is left.
  std::unique_ptr<Buffer> allocate(MemoryPlace place, std::size_t bytes, const char* purpose);
  /// Device memory without an owner; not zeroed.
  void* take(std::size_t bytes, const char* purpose);
  void give_back(void* memory, std::size_t bytes);

  /// What the driver can still give, whatever share of it is ours.
  std::uint64_t left_on_device() const;
  /// The same less a reserve for captured passes and the driver's own, which come as passes run.
  std::uint64_t available() const;
  /// How much attention's partial results may take (DeviceFacts): they grow with contexts, so serving takes all of it at start-up.
  std::uint64_t attention_partial_bytes_max() const;

 private:
  friend class CudaBuffer;
  std::uint64_t left() const;
  void clear(void* memory, std::size_t bytes);

  cudaStream_t clearing_ = nullptr;  // its own: the whole GPU may not be waited for while another backend captures a pass
  int device_;
  std::uint64_t bytes_max_;
  std::uint64_t used_ = 0;
  std::function<void()> on_free_;
};

/// Host memory that the copy engines read without a detour; grows on demand, contents don't survive that.
class PinnedBytes {
 public:
  ~PinnedBytes();
  std::byte* reserve(std::size_t bytes);

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace tensorfold::ops::cuda
