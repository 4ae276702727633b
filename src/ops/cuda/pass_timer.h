// Times of passes that nobody waits for, by events on the GPU (Backend::take_pass_times). Apart from the passes because it only looks
// on: no operation depends on it, and a pass whose time is lost is a pass all the same.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/pass_time.h"

namespace tensorfold::ops::cuda {

class PassTimer {
 public:
  PassTimer() = default;
  ~PassTimer();
  PassTimer(const PassTimer&) = delete;
  PassTimer& operator=(const PassTimer&) = delete;

  /// Before the first launch of a pass of `rows` rows and after its last; nothing in between may be captured. Where the times of
  /// kPassesMax passes wait to be asked for, the oldest is forgotten. Where there is no memory for an event the pass isn't timed.
  void begin(std::int64_t rows, cudaStream_t stream);
  void end(cudaStream_t stream);
  /// The pass that begin() was called for won't end.
  void abandon() { has_begun_ = false; }
  /// Of the passes that are over, in order. Never waits.
  std::vector<PassTime> take();

 private:
  static constexpr std::size_t kPassesMax = 8;  // no more than two passes are ever queued (PassStore::stage)
  struct Timed {
    std::int64_t rows = 0;
    cudaEvent_t begin = nullptr, end = nullptr;
  };
  Timed& at(std::size_t index) { return ring_[(first_ + index) % kPassesMax]; }

  std::array<Timed, kPassesMax> ring_{};
  std::size_t first_ = 0, count_ = 0;  // of those that have ended on the queue
  bool has_begun_ = false;
};

}  // namespace tensorfold::ops::cuda
