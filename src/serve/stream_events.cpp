// See stream_events.h.
#include "serve/stream_events.h"

#include "base/limits.h"

namespace tensorfold {

void StreamEvents::push(StreamEvent&& event) {
  std::lock_guard lock(mutex_);
  const bool was_empty = events_.empty() && !finish_;
  if (auto* finish = std::get_if<FinishEvent>(&event)) {
    finish_ = std::move(*finish);
  } else if (events_.size() >= limits::kStreamEventsMax) {
    overflowed_ = true;
    return;
  } else {
    events_.push_back(std::move(event));
  }
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
  if (!finish_) return;
  events.push_back(std::move(*finish_));
  finish_.reset();
}

bool StreamEvents::overflowed() const {
  std::lock_guard lock(mutex_);
  return overflowed_;
}

}  // namespace tensorfold
