// Where callers leave word for the engine thread: new streams, cancels, the order to stop. The only state that both
// sides share under a lock, and the lock is never held across a pass or a callback. Handles keep it alive past the
// engine.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/stream.h"

namespace tensorfold {

class Mailbox {
 public:
  /// Throws Error(kResourceExhausted) when too many streams wait, or the engine is stopping.
  void post(std::shared_ptr<Stream> stream);
  /// A stream's cancel flag was raised: wake the engine.
  void ring();
  void stop();

  static constexpr auto kForever = std::chrono::milliseconds::max();
  /// Engine thread: takes what arrived. Blocks, when `may_wait`, until there is something to look at, or so long at most.
  std::vector<std::shared_ptr<Stream>> collect(bool may_wait, std::chrono::milliseconds at_most = kForever);
  bool is_stopping() const;
  /// Streams that left the queue: admitted, or ended while they waited.
  void left_queue(std::size_t count);
  /// Streams that gave their lanes back and wait again; they were accepted before, so no bound turns them away.
  void returned_to_queue(std::size_t count);
  std::size_t waiting() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Stream>> arrivals_;
  std::size_t waiting_ = 0;  // arrived, not yet admitted
  bool rung_ = false;
  bool stopping_ = false;
};

}  // namespace tensorfold
