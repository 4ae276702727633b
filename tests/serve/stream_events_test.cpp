// The queue between the engine and whoever writes a reply: when nobody reads, what is dropped is told of at once, and
// what follows is never mistaken for a complete reply.
#include "serve/stream_events.h"

#include <gtest/gtest.h>

#include "base/limits.h"

namespace tensorfold {
namespace {

constexpr auto kFull = static_cast<std::int32_t>(limits::kStreamEventsMax);

void push_tokens(StreamEvents& events, std::int32_t first, std::int32_t count) {
  for (std::int32_t i = first; i < first + count; ++i) {
    TokenEvent event;
    event.token = i;
    events.push(std::move(event));
  }
}

FinishEvent end_of(StreamEvents& events, FinishReason reason) {
  FinishEvent finish;
  finish.reason = reason;
  events.push(std::move(finish));
  std::vector<StreamEvent> batch;
  events.take(batch);
  return std::get<FinishEvent>(batch.back());
}

TEST(StreamEvents, AFullQueueThatEndsIsComplete) {
  StreamEvents events(nullptr);
  push_tokens(events, 0, kFull);
  EXPECT_FALSE(events.overflowed());
  EXPECT_EQ(end_of(events, FinishReason::kLength).reason, FinishReason::kLength);
}

TEST(StreamEvents, TheReaderIsToldOfTheFirstDroppedEvent) {
  int notices = 0;
  StreamEvents events([&notices] { ++notices; });
  push_tokens(events, 0, kFull);
  EXPECT_EQ(notices, 1);
  push_tokens(events, kFull, 100);
  EXPECT_EQ(notices, 2);
  EXPECT_TRUE(events.overflowed());
}

TEST(StreamEvents, NothingFollowsTheHoleAndTheEndIsAnError) {
  StreamEvents events(nullptr);
  push_tokens(events, 0, kFull + 1);
  std::vector<StreamEvent> batch;
  events.take(batch);
  ASSERT_EQ(batch.size(), limits::kStreamEventsMax);
  EXPECT_EQ(std::get<TokenEvent>(batch.back()).token, kFull - 1);
  push_tokens(events, kFull + 1, 10);  // there is room again, but a token is missing before these
  events.take(batch);
  EXPECT_TRUE(batch.empty());
  for (const FinishReason reason : {FinishReason::kLength, FinishReason::kStopToken, FinishReason::kCancelled}) {
    const FinishEvent finish = end_of(events, reason);
    EXPECT_EQ(finish.reason, FinishReason::kError);
    EXPECT_NE(finish.message.find("too slowly"), std::string::npos) << finish.message;
  }
}

}  // namespace
}  // namespace tensorfold
