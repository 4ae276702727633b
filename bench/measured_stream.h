// A stream for benchmarks: opened on an engine, with the moment at which each of its tokens came.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"

namespace tensorfold::bench {

using Clock = std::chrono::steady_clock;

inline double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

/// Ids of a text that nobody wrote; the same for the same `random`.
inline std::vector<std::int32_t> random_tokens(std::mt19937& random, int count, std::int32_t vocabulary_size) {
  std::uniform_int_distribution<std::int32_t> id(0, vocabulary_size - 1);
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(id(random));
  return tokens;
}

struct MeasuredReply {
  Clock::time_point opened;
  std::vector<std::int32_t> tokens;
  std::vector<Clock::time_point> times;  // one a token
  StreamStatistics statistics;

  double first_token_seconds() const { return times.empty() ? 0.0 : seconds_between(opened, times.front()); }
  double last_token_seconds() const { return times.empty() ? 0.0 : seconds_between(opened, times.back()); }
};

class MeasuredStream {
 public:
  MeasuredStream(Engine& engine, StreamRequest request) {
    state_->reply.opened = Clock::now();
    handle_ = engine.open(std::move(request), [state = state_](StreamEvent&& event) { state->take(std::move(event)); });
  }

  void cancel() { handle_->cancel(); }
  void wait_for_tokens(std::size_t count) {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->reply.tokens.size() >= count || state_->finished; });
  }
  /// The whole reply. Throws when the stream failed.
  MeasuredReply wait() {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->finished; });
    if (state_->reason == FinishReason::kError) fail(ErrorCode::kInternal, "a stream failed: {}", state_->message);
    return state_->reply;
  }
  /// What has come so far.
  MeasuredReply so_far() const {
    const std::lock_guard lock(state_->mutex);
    return state_->reply;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    MeasuredReply reply;
    bool finished = false;
    FinishReason reason = FinishReason::kLength;
    std::string message;

    void take(StreamEvent&& event) {
      const std::lock_guard lock(mutex);
      if (const auto* token = std::get_if<TokenEvent>(&event)) {
        reply.tokens.push_back(token->token);
        reply.times.push_back(Clock::now());
      }
      if (auto* finish = std::get_if<FinishEvent>(&event)) {
        finished = true;
        reason = finish->reason;
        message = finish->message;
        reply.statistics = std::move(finish->statistics);
      }
      changed.notify_all();
    }
  };

  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::unique_ptr<StreamHandle> handle_;
};

}  // namespace tensorfold::bench
