// Tokens per second over the last ten seconds, for health and metrics: ten one-second bins that are reused in turn.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace tensorfold {

class RateMeter {
 public:
  using Clock = std::chrono::steady_clock;

  void add(std::uint64_t count, Clock::time_point now) {
    Bin& bin = bins_[static_cast<std::size_t>(second(now)) % bins_.size()];
    if (bin.second != second(now)) bin = {second(now), 0};
    bin.count += count;
  }

  double per_second(Clock::time_point now) const {
    std::uint64_t count = 0;
    const std::int64_t oldest = second(now) - static_cast<std::int64_t>(bins_.size()) + 1;
    for (const Bin& bin : bins_) count += bin.second >= oldest && bin.second <= second(now) ? bin.count : 0;
    return static_cast<double>(count) / static_cast<double>(bins_.size());
  }

 private:
  struct Bin {
    std::int64_t second = -1;
    std::uint64_t count = 0;
  };
  static std::int64_t second(Clock::time_point now) {
    return std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count();
  }
  std::array<Bin, 10> bins_{};
};

}  // namespace tensorfold
