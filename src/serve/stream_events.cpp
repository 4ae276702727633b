// See stream_events.h.
#include "serve/stream_events.h"

#include "base/limits.h"

namespace tensorfold {
namespace {

constexpr const char* kOverflowText = "the reply was read too slowly: more of it was waiting than the server holds";

}  // namespace

void StreamEvents::push(StreamEvent&& event) {
  std::lock_guard lock(mutex_);
  if (auto* finish = std::get_if<FinishEvent>(&event)) {
    finish_ = std::move(*finish);
  } else if (overflowed_ || events_.size() >= limits::kStreamEventsMax) {
    if (!overflowed_) noticed_ = false;  // what the reader was told of doesn't include this
    overflowed_ = true;
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
  if (finish_) {  // what may fail comes before anything has moved
    events_.reserve(events_.size() + 1);
    if (overflowed_) finish_->message = kOverflowText;
    if (overflowed_) finish_->reason = FinishReason::kError;
  }
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
