// How long passes took, where some of them are queued and not waited for: the host's clock sees the end of those that it waits for
// alone, and such a one may have stood in line. Apart from the loop so that it can be tested without one.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

namespace tensorfold {

class PassClock {
 public:
  using Clock = std::chrono::steady_clock;

  /// A pass that was begun at `start` is queued, and nobody waits for it.
  void queue(Clock::time_point start) {
    if (queued_ == 0) free_at_ = std::max(free_at_, start);
    ++queued_;
  }
  /// The oldest queued pass is over and took so long.
  void end_queued(double seconds) {
    if (queued_ == 0) return;  // of before forget()
    --queued_;
    free_at_ += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  /// Seconds of a pass that was begun at `start` and waited for until `end`: without what it stood in line.
  double awaited(Clock::time_point start, Clock::time_point end) {
    queued_ = 0;  // whatever was before it is over
    return std::max(0.0, std::chrono::duration<double>(end - std::max(start, free_at_)).count());
  }
  /// A pass failed: what is queued may never tell its time.
  void forget() { queued_ = 0; }

 private:
  std::size_t queued_ = 0;
  Clock::time_point free_at_{};  // when the passes that have told their times had run
};

}  // namespace tensorfold
