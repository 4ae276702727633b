// The bounded queue between the engine thread and whoever writes a reply. The engine never waits: when a client doesn't
// read and the bound is met, tokens are dropped, the overflow is noted, and the reader cancels the stream.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/engine.h"

namespace tensorfold {

class StreamEvents {
 public:
  /// `notify` runs on the engine thread at the first event since the last take(), under the queue's lock; it must only
  /// post. When it throws the event is queued all the same, and the next one tries again.
  explicit StreamEvents(std::function<void()> notify) : notify_(std::move(notify)) {}

  void push(StreamEvent&& event);
  /// Moves everything queued to `events` (cleared first). Throws where memory is short, and has taken nothing then.
  void take(std::vector<StreamEvent>& events);
  bool overflowed() const;
  /// After this returns `notify` is never called again.
  void close();

 private:
  std::function<void()> notify_;
  mutable std::mutex mutex_;
  std::vector<StreamEvent> events_;
  std::optional<FinishEvent> finish_;  // behind all others; needs no memory when there may be none
  bool noticed_ = false;               // of what is queued the reader has been told
  bool overflowed_ = false;
};

}  // namespace tensorfold
