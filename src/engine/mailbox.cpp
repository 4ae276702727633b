// The engine's mailbox (see mailbox.h).
#include "engine/mailbox.h"

#include <utility>

#include "base/error.h"
#include "base/limits.h"

namespace tensorfold {

void Mailbox::post(std::shared_ptr<Stream> stream) {
  const std::lock_guard lock(mutex_);
  if (stopping_) fail(ErrorCode::kResourceExhausted, "The server is stopping; send the request to another one.");
  if (waiting_ >= limits::kStreamQueueMax) {
    fail(ErrorCode::kResourceExhausted, "{} requests are waiting already; try again later.", waiting_);
  }
  arrivals_.push_back(std::move(stream));
  ++waiting_;
  wake_.notify_one();
}

void Mailbox::ring() {
  const std::lock_guard lock(mutex_);
  rung_ = true;
  wake_.notify_one();
}

void Mailbox::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  wake_.notify_one();
}

std::vector<std::shared_ptr<Stream>> Mailbox::collect(bool may_wait, std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  const auto has_word = [this] { return stopping_ || rung_ || !arrivals_.empty(); };
  if (may_wait && at_most == kForever) wake_.wait(lock, has_word);
  if (may_wait && at_most != kForever) wake_.wait_for(lock, at_most, has_word);
  rung_ = false;
  return std::exchange(arrivals_, {});
}

bool Mailbox::is_stopping() const {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

void Mailbox::left_queue(std::size_t count) {
  const std::lock_guard lock(mutex_);
  TF_ASSERT(count <= waiting_);
  waiting_ -= count;
}

void Mailbox::returned_to_queue(std::size_t count) {
  const std::lock_guard lock(mutex_);
  waiting_ += count;
}

std::size_t Mailbox::waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_;
}

}  // namespace tensorfold
