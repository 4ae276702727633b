// See stream_group.h.
#include "engine/measure/stream_group.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <utility>

#include "base/error.h"

namespace tensorfold::measure {
namespace {

using Clock = std::chrono::steady_clock;

/// What the sinks, on the engine's thread, and the waiting caller share.
class Board {
 public:
  Board(std::size_t streams, std::int32_t tokens_each, std::int32_t lead_in)
      : runs_(streams), ended_(streams, false), tokens_each_(tokens_each), lead_in_(lead_in) {}

  void take(std::size_t stream, StreamEvent&& event) {
    const std::lock_guard lock(mutex_);
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      runs_[stream].tokens.push_back(token->token);
      runs_[stream].seconds.push_back(std::chrono::duration<double>(Clock::now() - start_).count());
      count(stream);
    } else if (auto* finish = std::get_if<FinishEvent>(&event)) {
      if (finish->reason == FinishReason::kError) failure_ = finish->message;
      runs_[stream].statistics = std::move(finish->statistics);
      ended_[stream] = true;
      ++ended_count_;
    }
    if (is_enough() || ended_count_ == runs_.size()) changed_.notify_all();
  }

  void wait_for_enough() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_enough() || ended_count_ == runs_.size(); });
  }
  std::vector<StreamRun> wait_for_all() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_count_ == runs_.size(); });
    if (!failure_.empty()) fail(ErrorCode::kInternal, "a stream failed: {}", failure_);
    return std::move(runs_);
  }

 private:
  // Streams are counted once at each of two marks: their last token of the lead-in, and the last that is wanted.
  void count(std::size_t stream) {
    const auto tokens = static_cast<std::int32_t>(runs_[stream].tokens.size());
    if (tokens == lead_in_ && ++led_in_ == runs_.size()) {
      for (const StreamRun& run : runs_) wanted_.push_back(static_cast<std::int32_t>(run.tokens.size()) + tokens_each_);
    } else if (!wanted_.empty() && tokens == wanted_[stream]) {
      ++satisfied_;
    }
  }
  bool is_enough() const { return tokens_each_ > 0 && satisfied_ == runs_.size(); }

  std::mutex mutex_;
  std::condition_variable changed_;
  Clock::time_point start_ = Clock::now();
  std::vector<StreamRun> runs_;
  std::vector<bool> ended_;
  std::vector<std::int32_t> wanted_;  // tokens of each stream, once all are led in
  std::size_t ended_count_ = 0, led_in_ = 0, satisfied_ = 0;
  std::string failure_;
  std::int32_t tokens_each_, lead_in_;
};

}  // namespace

std::vector<std::int32_t> sample_prompt(const StreamSettings& settings, std::int32_t index,
                                        std::int32_t vocabulary_size) {
  std::mt19937_64 random(settings.seed * 1'000'003 + static_cast<std::uint64_t>(index));
  std::vector<std::int32_t> prompt;
  for (std::int32_t i = 0; i < settings.prompt_tokens; ++i) {
    const bool again = settings.repeated_tokens > 0 && i >= settings.repeated_tokens;
    prompt.push_back(again ? prompt[static_cast<std::size_t>(i - settings.repeated_tokens)]
                           : static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocabulary_size)));
  }
  return prompt;
}

std::vector<StreamRun> run_streams(Engine& engine, const std::vector<std::int32_t>& indices,
                                   const StreamSettings& settings, std::int32_t tokens_each, std::int32_t lead_in) {
  const auto board = std::make_shared<Board>(indices.size(), tokens_each, lead_in);
  std::vector<std::unique_ptr<StreamHandle>> handles;
  for (std::size_t stream = 0; stream < indices.size(); ++stream) {
    StreamRequest request;
    request.id = fmt::format("bench-{}", indices[stream]);
    request.prompt.tokens = sample_prompt(settings, indices[stream], engine.facts().model.vocabulary_size);
    request.reply_tokens_max = settings.reply_tokens_max;
    request.drafts = settings.drafts;
    request.sampling.temperature = settings.temperature;
    request.sampling.seed = static_cast<std::uint64_t>(indices[stream]);
    request.ignore_stop_tokens = true;
    handles.push_back(engine.open(
        std::move(request), [board, stream](StreamEvent&& event) { board->take(stream, std::move(event)); }));
  }
  if (tokens_each > 0) {
    board->wait_for_enough();
    for (const auto& handle : handles) handle->cancel();
  }
  return board->wait_for_all();
}

std::uint64_t token_hash(const std::vector<StreamRun>& runs, std::size_t tokens_max) {
  std::uint64_t hash = 1469598103934665603ull;
  for (const StreamRun& run : runs) {
    for (std::size_t i = 0; i < std::min(run.tokens.size(), tokens_max); ++i) {
      hash = (hash ^ static_cast<std::uint64_t>(run.tokens[i])) * 1099511628211ull;
    }
  }
  return hash;
}

}  // namespace tensorfold::measure
