// A stream's own bookkeeping, without an engine around it.
#include "engine/stream.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

namespace tensorfold {
namespace {

StreamRequest background_request(std::int32_t prompt_length) {
  StreamRequest request;
  request.prompt.tokens.assign(static_cast<std::size_t>(prompt_length), 1);
  request.reply_tokens_max = 4;
  request.background = true;
  return request;
}

/// What a stream says is cached after it resumed at `kept`, was preempted, and began again at `kept_later`.
std::int32_t cached_after_preemption(std::int32_t kept, std::int32_t fed_before, std::int32_t kept_later) {
  std::optional<StreamStatistics> statistics;
  Stream stream(background_request(100), [&](StreamEvent&& event) {
    if (const auto* finish = std::get_if<FinishEvent>(&event)) statistics = finish->statistics;
  });
  const auto now = Stream::Clock::now();
  stream.start(now);
  stream.resume(kept);
  if (fed_before > 0) stream.advance_prompt(fed_before, now);
  stream.preempt();
  stream.start(now);
  if (kept_later > 0) stream.resume(kept_later);
  stream.advance_prompt(5, now);
  stream.finish(FinishReason::kCancelled);
  return statistics.value().cached_tokens;
}

TEST(Stream, CountsAsCachedOnlyWhatNoLifeOfItComputed) {
  EXPECT_EQ(cached_after_preemption(60, 0, 0), 0);     // the prefix was gone when it came back
  EXPECT_EQ(cached_after_preemption(60, 0, 40), 40);   // a part of it was
  EXPECT_EQ(cached_after_preemption(60, 20, 80), 60);  // what it had computed itself is no gift
}

}  // namespace
}  // namespace tensorfold
