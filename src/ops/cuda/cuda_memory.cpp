// See cuda_memory.h.
#include "ops/cuda/cuda_memory.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "ops/cuda/cuda_error.h"

namespace tensorfold::ops::cuda {
namespace {

constexpr double kMib = 1024.0 * 1024.0;
constexpr std::uint64_t kReserveBytesMax = 1024ull << 20;
constexpr std::uint64_t kReserveShare = 16;  // of the memory, at most this part is kept back
constexpr std::uint64_t kPartialBytesMax = 512ull << 20;
constexpr std::uint64_t kPartialShare = 128;

}  // namespace

class CudaBuffer final : public Buffer {
 public:
  CudaBuffer(std::shared_ptr<DeviceMemory> owner, MemoryPlace place, std::size_t bytes, const char* purpose)
      : owner_(std::move(owner)), place_(place), bytes_(bytes) {
    if (bytes == 0) return;
    if (place == MemoryPlace::kDevice) {
      data_ = owner_->take(bytes, purpose);
      owner_->clear(data_, bytes);
    } else if (cudaMallocHost(&data_, bytes) != cudaSuccess) {
      cudaGetLastError();  // not sticky: the device goes on
      fail(ErrorCode::kResourceExhausted, "Out of memory: {} needs {:.0f} MiB of pinned host memory.", purpose,
           static_cast<double>(bytes) / kMib);
    }
    if (place == MemoryPlace::kPinnedHost) std::memset(data_, 0, bytes);
  }
  ~CudaBuffer() override {
    if (data_ == nullptr) return;
    cudaSetDevice(owner_->device_);  // the thread that lets go of it may never have computed
    if (owner_->on_free_) owner_->on_free_();
    if (place_ == MemoryPlace::kDevice) {
      owner_->give_back(data_, bytes_);
    } else {
      cudaDeviceSynchronize();
      cudaFreeHost(data_);
    }
  }
  void* data() override { return data_; }
  std::size_t bytes() const override { return bytes_; }

 private:
  std::shared_ptr<DeviceMemory> owner_;
  MemoryPlace place_;
  void* data_ = nullptr;
  std::size_t bytes_;
};

DeviceMemory::~DeviceMemory() {
  if (clearing_ != nullptr) cudaStreamDestroy(clearing_);
}

void DeviceMemory::clear(void* memory, std::size_t bytes) {
  if (clearing_ == nullptr) {
    check(cudaStreamCreateWithFlags(&clearing_, cudaStreamNonBlocking), "creating a stream");
  }
  check(cudaMemsetAsync(memory, 0, bytes, clearing_), "clearing a buffer");
  check(cudaStreamSynchronize(clearing_), "clearing a buffer");
}

std::uint64_t DeviceMemory::left_on_device() const {
  std::size_t left = 0, total = 0;
  return cudaMemGetInfo(&left, &total) == cudaSuccess ? left : 0;
}

std::uint64_t DeviceMemory::left() const {
  const std::uint64_t left = left_on_device();
  if (bytes_max_ == 0) return left;
  return std::min<std::uint64_t>(left, bytes_max_ - std::min(bytes_max_, used_));
}

std::uint64_t DeviceMemory::attention_partial_bytes_max() const {
  std::size_t left = 0, total = 0;
  if (cudaMemGetInfo(&left, &total) != cudaSuccess) return 0;
  const std::uint64_t whole = bytes_max_ != 0 ? std::min<std::uint64_t>(bytes_max_, total) : total;
  return std::min(kPartialBytesMax, whole / kPartialShare);
}

std::uint64_t DeviceMemory::available() const {
  const std::uint64_t bytes = left();
  // What is left and what is taken: the whole that is ours, but for what other processes hold.
  const std::uint64_t reserve = std::min(kReserveBytesMax, (bytes + used_) / kReserveShare);
  return bytes - std::min(bytes, reserve);
}

void* DeviceMemory::take(std::size_t bytes, const char* purpose) {
  void* memory = nullptr;
  const bool is_allowed = bytes_max_ == 0 || (used_ <= bytes_max_ && bytes <= bytes_max_ - used_);
  const cudaError_t status = is_allowed ? cudaMalloc(&memory, bytes) : cudaErrorMemoryAllocation;
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not sticky: the device goes on
    fail(ErrorCode::kResourceExhausted,
         "Out of GPU memory: {} needs {:.0f} MiB, and {:.0f} MiB are free. Lower --context or --parallel, or use a smaller "
         "model.",
         purpose, static_cast<double>(bytes) / kMib, static_cast<double>(left()) / kMib);
  }
  check(status, purpose);
  used_ += bytes;
  return memory;
}

void DeviceMemory::give_back(void* memory, std::size_t bytes) {
  cudaFree(memory);  // waits for what uses it; an error that it reports is an earlier call's
  used_ -= bytes;
}

std::unique_ptr<Buffer> DeviceMemory::allocate(MemoryPlace place, std::size_t bytes, const char* purpose) {
  return std::make_unique<CudaBuffer>(shared_from_this(), place, bytes, purpose);
}

PinnedBytes::~PinnedBytes() {
  if (data_ != nullptr) cudaFreeHost(data_);
}

std::byte* PinnedBytes::reserve(std::size_t bytes) {
  if (bytes > bytes_) {
    if (data_ != nullptr) check(cudaFreeHost(data_), "freeing pinned memory");
    data_ = nullptr;
    bytes_ = 0;
    check(cudaMallocHost(&data_, bytes + bytes / 2), "allocating pinned memory");
    bytes_ = bytes + bytes / 2;
  }
  return static_cast<std::byte*>(data_);
}

}  // namespace tensorfold::ops::cuda
