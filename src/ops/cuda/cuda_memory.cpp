// See cuda_memory.h.
#include "ops/cuda/cuda_memory.h"

#include "base/error.h"
#include "ops/cuda/cuda_error.h"

namespace tensorfold::ops::cuda {
namespace {

constexpr double kMib = 1024.0 * 1024.0;

class CudaBuffer final : public Buffer {
 public:
  CudaBuffer(MemoryPlace place, std::size_t bytes, const char* purpose, std::function<void()> on_free)
      : place_(place), bytes_(bytes), on_free_(std::move(on_free)) {
    if (bytes == 0) return;
    const cudaError_t status =
        place == MemoryPlace::kDevice ? cudaMalloc(&data_, bytes) : cudaMallocHost(&data_, bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // not sticky: the device goes on
      std::size_t left = 0, total = 0;
      cudaMemGetInfo(&left, &total);
      fail(ErrorCode::kResourceExhausted,
           "Out of GPU memory: {} needs {:.0f} MiB, and {:.0f} of {:.0f} MiB are free. Lower --context or --parallel, or "
           "use a smaller model.",
           purpose, static_cast<double>(bytes) / kMib, static_cast<double>(left) / kMib,
           static_cast<double>(total) / kMib);
    }
    check(status, purpose);
    check(cudaMemset(data_, 0, bytes), "clearing a buffer");
    check(cudaDeviceSynchronize(), "clearing a buffer");  // the memset's stream isn't the backend's
  }
  ~CudaBuffer() override {
    if (data_ == nullptr) return;
    if (on_free_) on_free_();
    if (place_ == MemoryPlace::kDevice) {
      cudaFree(data_);
    } else {
      cudaDeviceSynchronize();
      cudaFreeHost(data_);
    }
  }
  void* data() override { return data_; }
  std::size_t bytes() const override { return bytes_; }

 private:
  MemoryPlace place_;
  void* data_ = nullptr;
  std::size_t bytes_;
  std::function<void()> on_free_;
};

}  // namespace

std::unique_ptr<Buffer> allocate_buffer(MemoryPlace place, std::size_t bytes, const char* purpose,
                                        std::function<void()> on_free) {
  return std::make_unique<CudaBuffer>(place, bytes, purpose, std::move(on_free));
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
