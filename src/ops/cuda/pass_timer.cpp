// See pass_timer.h.
#include "ops/cuda/pass_timer.h"

#include "ops/cuda/cuda_error.h"

namespace tensorfold::ops::cuda {

PassTimer::~PassTimer() {
  for (const Timed& timed : ring_) {
    if (timed.begin != nullptr) cudaEventDestroy(timed.begin);
    if (timed.end != nullptr) cudaEventDestroy(timed.end);
  }
}

void PassTimer::begin(std::int64_t rows, cudaStream_t stream) {
  if (count_ == kPassesMax) {
    first_ = (first_ + 1) % kPassesMax;
    --count_;
  }
  Timed& timed = at(count_);
  if (timed.begin == nullptr) check(cudaEventCreate(&timed.begin), "creating an event");
  if (timed.end == nullptr) check(cudaEventCreate(&timed.end), "creating an event");
  timed.rows = rows;
  check(cudaEventRecord(timed.begin, stream), "timing a pass");
  has_begun_ = true;
}

void PassTimer::end(cudaStream_t stream) {
  if (!has_begun_) return;
  has_begun_ = false;
  check(cudaEventRecord(at(count_).end, stream), "timing a pass");
  ++count_;
}

std::vector<PassTime> PassTimer::take() {
  std::vector<PassTime> times;
  for (; count_ > 0; --count_, first_ = (first_ + 1) % kPassesMax) {
    const Timed& timed = at(0);
    const cudaError_t status = cudaEventQuery(timed.end);
    if (status == cudaErrorNotReady) break;
    check(status, "running operations");
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, timed.begin, timed.end), "timing a pass");
    times.push_back({timed.rows, 1e-3 * static_cast<double>(milliseconds)});
  }
  return times;
}

}  // namespace tensorfold::ops::cuda
