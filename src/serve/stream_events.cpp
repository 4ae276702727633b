// See stream_events.h.
#include "serve/stream_events.h"

#include "base/limits.h"

namespace tensorfold {

void StreamEvents::push(StreamEvent&& event) {
  std::lock_guard lock(mutex_);
  if (auto* finish = std::get_if<FinishEvent>(&event)) {
    finish_ = std::move(*finish);
  } else if (events_.size() >= limits::kStreamEventsMax) {
    overflowed_ = true;
    return;
  } else {
    events_.push_back(std::move(event));
  }
  if (noticed_ || !notify_) return;
  notify_();
  noticed_ = true;
}

void StreamEvents::close() {
  std::lock_guard lock(mutex_);
  notify_ = nullptr;
}

void StreamEvents::take(std::vector<StreamEvent>& events) {
  events.clear();
  std::lock_guard lock(mutex_);
  if (finish_) events_.reserve(events_.size() + 1);  // the only thing that may fail: before anything has moved
  events.swap(events_);
  noticed_ = false;
  if (!finish_) return;
  events.push_back(std::move(*finish_));
  finish_.reset();
}

bool StreamEvents::overflowed() const {
  std::lock_guard lock(mutex_);
  return overflowed_;
}

}  // namespace tensorfold
