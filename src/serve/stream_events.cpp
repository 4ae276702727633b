// See stream_events.h.
#include "serve/stream_events.h"

#include "base/limits.h"

namespace tensorfold {

void StreamEvents::push(StreamEvent&& event) {
  std::lock_guard lock(mutex_);
  if (events_.size() >= limits::kStreamEventsMax && !std::holds_alternative<FinishEvent>(event)) {
    overflowed_ = true;
    return;
  }
  const bool was_empty = events_.empty();
  events_.push_back(std::move(event));
  if (was_empty && notify_) notify_();
}

void StreamEvents::close() {
  std::lock_guard lock(mutex_);
  notify_ = nullptr;
}

void StreamEvents::take(std::vector<StreamEvent>& events) {
  events.clear();
  std::lock_guard lock(mutex_);
  events.swap(events_);
}

bool StreamEvents::overflowed() const {
  std::lock_guard lock(mutex_);
  return overflowed_;
}

}  // namespace tensorfold
