// See pass_timer.h.
#include "ops/cuda/pass_timer.h"

#include "ops/cuda/cuda_error.h"

namespace tensorfold::ops::cuda {
namespace {

bool has_event(cudaEvent_t& event) {
  return event != nullptr || cudaEventCreate(&event) == cudaSuccess;
}

}  // namespace

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
  timed.rows = rows;
  has_begun_ = has_event(timed.begin) && has_event(timed.end) && cudaEventRecord(timed.begin, stream) == cudaSuccess;
  if (!has_begun_) cudaGetLastError();  // an error that stays is the pass's own to report
}

void PassTimer::end(cudaStream_t stream) {
  if (!has_begun_) return;
  has_begun_ = false;
  if (cudaEventRecord(at(count_).end, stream) == cudaSuccess) {
    ++count_;
  } else {
    cudaGetLastError();
  }
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
