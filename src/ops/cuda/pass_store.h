// Where a pass's arrays lie, in pinned memory for the GPU to fetch and in device memory for kernels, and those of operations
// outside a pass. Apart from the backend because who may write what when is a matter of its own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/cuda_memory.h"
#include "ops/cuda/pass_block.h"
#include "ops/cuda/pass_data.h"

namespace tensorfold::ops::cuda {

class PassStore {
 public:
  explicit PassStore(DeviceMemory& memory) : memory_(memory) {}
  ~PassStore();
  PassStore(const PassStore&) = delete;
  PassStore& operator=(const PassStore&) = delete;

  /// Makes room for blocks of `bytes`.
  void reserve(std::size_t bytes, cudaStream_t stream);
  void reserve_loose();

  /// Puts `block` where fetch() finds it, as soon as the one before has been fetched. True: a place moved, and captured
  /// fetches, and all that knows header(), are stale.
  bool stage(const PassBlock& block, cudaStream_t stream);
  /// Queues the copy to the device, or captures it: then it may run again for every block that is staged.
  void fetch(cudaStream_t stream) const;
  /// A fetch of what is staged has been handed to the GPU.
  void note_launched() { launched_ = sequence_; }

  const PassHeader* header() const { return static_cast<const PassHeader*>(device_); }

  /// A block of its own for one operation outside a pass; it stays until the ring comes round.
  const PassHeader* upload_loose(const PassBlock& block, cudaStream_t stream);

 private:
  void wait_until_fetched(cudaStream_t stream) const;
  void grow(std::size_t bytes, cudaStream_t stream);

  DeviceMemory& memory_;
  PinnedBytes pinned_, fetched_bytes_;
  std::byte* staged_ = nullptr;                // PassStaging, then the block
  std::size_t staged_bytes_ = 0;
  std::uint32_t* fetched_ = nullptr;           // the GPU writes the sequence of the last block that it has read
  std::uint32_t sequence_ = 0, launched_ = 0;  // of the staged block; of the last that is on its way
  void* device_ = nullptr;
  std::size_t device_bytes_ = 0;
  void* loose_ = nullptr;
  std::size_t loose_used_ = 0;
};

}  // namespace tensorfold::ops::cuda
