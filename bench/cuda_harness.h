// What the CUDA development programs share: arrays in device memory, a context for operations without a backend, times
// of captured launches, the end of a program. Here so that they all measure alike; cases, references and plans are each
// program's own.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "ops/cuda/cuda_context.h"
#include "ops/cuda/cuda_error.h"
#include "ops/cuda/pass_block.h"

namespace tensorfold::ops::cuda::bench {

constexpr double kMemoryBytesPerMicrosecond = 4.54e6;  // a plain read on an H200 (kernel-study.md)
constexpr double kFlopsPerMicrosecond = 700e6;         // what a cuBLAS product holds there on random data

/// Device memory. What takes no stream is done when it returns, also for streams that wait for no other.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(std::integral auto count) : count_(static_cast<std::int64_t>(count)) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, std::max(bytes(), sizeof(T))), "allocating");
    data_.reset(static_cast<T*>(memory));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { upload(values); }

  T* data() const { return data_.get(); }
  std::int64_t count() const { return count_; }
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * sizeof(T); }

  /// `values`, which may be fewer than the array holds.
  void upload(const std::vector<T>& values) {
    TF_ASSERT(static_cast<std::int64_t>(values.size()) <= count_);
    check(cudaMemcpy(data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "copying in");
    check(cudaStreamSynchronize(nullptr), "copying in");  // pageable memory: the copy may return before it has arrived
  }
  /// What stands there now: launches are the caller's to wait for.
  std::vector<T> download() const {
    std::vector<T> values(static_cast<std::size_t>(count_));
    if (count_ > 0) check(cudaMemcpy(values.data(), data(), bytes(), cudaMemcpyDeviceToHost), "copying out");
    return values;
  }
  void fill(int byte) {
    fill(byte, nullptr);
    check(cudaStreamSynchronize(nullptr), "filling");
  }
  void fill(int byte, cudaStream_t stream) {
    if (count_ > 0) check(cudaMemsetAsync(data(), byte, bytes(), stream), "filling");
  }
  void copy_from(const DeviceArray& from, cudaStream_t stream) {
    check(cudaMemcpyAsync(data(), from.data(), from.bytes(), cudaMemcpyDeviceToDevice, stream), "copying");
  }

 private:
  struct Free {
    void operator()(T* memory) const { cudaFree(memory); }
  };
  std::unique_ptr<T, Free> data_;
  std::int64_t count_ = 0;
};

/// Operations outside a backend's passes, launched straight onto one stream. Lists and lanes are uploaded when an
/// operation asks for them, once what was launched before has ended: as between a backend's passes.
class BenchContext final : public CudaContext {
 public:
  BenchContext();
  const std::string& gpu_name() const { return gpu_name_; }
  void use_hopper_paths(bool wanted) { facts_.hopper = wanted && facts_.compute_capability == 90; }
  void limit_partials(std::int64_t bytes) { facts_.attention_partial_bytes_max = bytes; }
  void set_pass(const PassHeader* pass) { pass_ = pass; }
  void synchronise(const char* what = "running") { check(cudaStreamSynchronize(stream_), what); }

  /// Exactly the most that was asked for, so that a sanitizer sees who goes beyond. New memory is poisoned (the
  /// counters: zeros), so that nothing may rely on it.
  void* scratch(Scratch kind, std::size_t bytes) override;
  /// From now on an operation that asks for scratch memory ends the program.
  void refuse_scratch() { refuses_scratch_ = true; }
  /// All scratch memory again, but the counters.
  void poison_scratch();
  bool counters_are_zero() const;

  Lanes attention_lanes(const LaneSpan* spans, std::int32_t count, std::int32_t window) override;
  Lanes lanes(const LaneSpan* spans, std::int32_t count) override { return attention_lanes(spans, count, 0); }
  IdsRef ids(const std::int32_t* list, std::int64_t count) override;
  const PassHeader* pass() const override { return pass_; }

  /// Uploads lanes once: later calls with the same pointer and window find them, also while the stream is captured.
  void keep_lanes(const LaneSpan* spans, std::int32_t count, std::int32_t window);
  void forget_lanes() { kept_.clear(); }
  /// Rows of no lane, added to every pass of lanes that is uploaded from now on.
  void set_padding_rows(std::int64_t rows) { padding_rows_ = rows; }
  std::int64_t padding_rows() const { return padding_rows_; }

 private:
  using Block = DeviceArray<std::int32_t>;
  const PassHeader* upload(const PassBlock& block);

  std::string gpu_name_;
  DeviceArray<std::uint8_t> scratch_[kScratchKinds];
  std::deque<Block> blocks_;  // of the last operations
  struct Kept {
    Block block;
    Lanes lanes;
    std::int32_t count = 0;
  };
  std::map<std::pair<const LaneSpan*, std::int32_t>, Kept> kept_;  // by lanes and window
  const PassHeader* pass_ = nullptr;
  std::int64_t padding_rows_ = 0;
  bool refuses_scratch_ = false;
};

/// Launches, captured once from the context's stream. What they need (scratch memory, lanes) must be there before: run
/// them once.
class CapturedGraph {
 public:
  CapturedGraph(BenchContext& context, const std::function<void()>& launches);
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  ~CapturedGraph();

  void replay();
  /// Microseconds of a replay: the median of `runs`, after one that isn't counted.
  double microseconds(int runs);

 private:
  BenchContext& context_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;  // made by the first replay
};

/// The upper one of an even number's two; of nothing there is none.
double median(std::vector<double> values);

/// A program's exit status; what it throws is printed to `errors` and makes it 1.
int guarded(std::FILE* errors, const std::function<int()>& program);

}  // namespace tensorfold::ops::cuda::bench
