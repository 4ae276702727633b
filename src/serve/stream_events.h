// The bounded queue between the engine thread and whoever writes a reply. The engine never waits: when a client doesn't
// read and the bound is met, every further token is dropped, the reader is told, and cancels the stream; an end that
// comes all the same is delivered as an error, so that a reply with tokens missing never looks complete.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/engine.h"

namespace tensorfold {

class StreamEvents {
 public:
  /// `notify` runs on the engine thread at the first event since the last take() and at the first one dropped, under
  /// the queue's lock; it must only post. When it throws the event is queued (or dropped) all the same, and the next one
  /// tries again.
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
  bool noticed_ = false;               // of what is queued, and of an overflow, the reader has been told
  bool overflowed_ = false;            // for good
};

}  // namespace tensorfold
