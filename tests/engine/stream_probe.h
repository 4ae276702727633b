// A sink that keeps what a stream delivers, and waits for its end.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace tensorfold::testing {

class StreamProbe {
 public:
  StreamSink sink() {
    return [state = state_](StreamEvent&& event) {
      const std::lock_guard lock(state->mutex);
      if (const auto* finish = std::get_if<FinishEvent>(&event)) {
        ++state->finishes;
        state->finish = *finish;
      } else {
        state->events_after_finish += state->finishes;
      }
      if (auto* token = std::get_if<TokenEvent>(&event)) state->tokens.push_back(*token);
      if (auto* score = std::get_if<PromptScoreEvent>(&event)) state->scores.push_back(*score);
      if (auto* progress = std::get_if<PromptProgressEvent>(&event)) state->progress.push_back(*progress);
      state->changed.notify_all();
    };
  }

  FinishEvent wait() {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [this] { return state_->finishes > 0; });
    return state_->finish;
  }
  void wait_for_tokens(std::size_t count) {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [this, count] { return state_->tokens.size() >= count || state_->finishes > 0; });
  }
  std::vector<std::int32_t> reply() const {
    const std::lock_guard lock(state_->mutex);
    std::vector<std::int32_t> ids;
    for (const TokenEvent& event : state_->tokens) ids.push_back(event.token);
    return ids;
  }
  std::vector<TokenEvent> tokens() const {
    const std::lock_guard lock(state_->mutex);
    return state_->tokens;
  }
  std::vector<PromptScoreEvent> scores() const {
    const std::lock_guard lock(state_->mutex);
    return state_->scores;
  }
  std::vector<PromptProgressEvent> progress() const {
    const std::lock_guard lock(state_->mutex);
    return state_->progress;
  }
  int finishes() const {
    const std::lock_guard lock(state_->mutex);
    return state_->finishes;
  }
  int events_after_finish() const {
    const std::lock_guard lock(state_->mutex);
    return state_->events_after_finish;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<TokenEvent> tokens;
    std::vector<PromptScoreEvent> scores;
    std::vector<PromptProgressEvent> progress;
    FinishEvent finish;
    int finishes = 0;
    int events_after_finish = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

/// Holds the engine thread inside a pass until it is opened.
class Gate {
 public:
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    closed_ = false;
    close_at_ = -1;
    changed_.notify_all();
  }
  /// Lets `passes` more passes begin; the last of them is held, unless open() comes first.
  void close_after(int passes) {
    const std::lock_guard lock(mutex_);
    close_at_ = arrived_ + passes;
  }
  /// Lets the pass that is held go on and `passes` more begin; the last of them is held.
  void release(int passes) {
    const std::lock_guard lock(mutex_);
    closed_ = false;
    close_at_ = arrived_ + passes;
    changed_.notify_all();
  }
  /// In the pass.
  void pass() {
    std::unique_lock lock(mutex_);
    if (++arrived_ == close_at_) closed_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !closed_; });
  }
  void wait_for_arrivals(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, count] { return arrived_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  int arrived_ = 0;
  int close_at_ = -1;
};

inline StreamRequest request_of(std::vector<std::int32_t> prompt, std::int32_t reply_tokens_max) {
  StreamRequest request;
  request.id = "test";
  request.prompt.tokens = std::move(prompt);
  request.reply_tokens_max = reply_tokens_max;
  return request;
}

inline std::vector<std::int32_t> counting_prompt(std::int32_t length, std::int32_t first = 0) {
  std::vector<std::int32_t> prompt;
  for (std::int32_t i = 0; i < length; ++i) prompt.push_back((first + i * 7) % 53);
  return prompt;
}

}  // namespace tensorfold::testing
