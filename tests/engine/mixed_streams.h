// Streams of every kind through one engine, for tests that look at what serving takes or leaves behind.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/stream_probe.h"

namespace tensorfold::testing {

/// Eighteen streams: short and as long as they may be, greedy and sampled, some with logprobs, one scored whole. Waits for all of them;
/// none may end with an error.
inline void serve_mixed_streams(Engine& engine) {
  std::vector<StreamProbe> probes(18);
  std::vector<std::unique_ptr<StreamHandle>> handles;
  for (std::size_t i = 0; i < probes.size(); ++i) {
    const auto first = static_cast<std::int32_t>(i);
    const std::int32_t reply = i % 3 == 0 ? 40 : 9;
    const std::int32_t prompt = i % 2 == 0 ? 5 + first : engine.facts().context - reply;
    StreamRequest request = request_of(counting_prompt(prompt, first), reply);
    request.sampling.temperature = i % 4 == 0 ? 0.0 : 0.8;
    request.score_prompt = i == 4;
    request.logprobs_top = i % 5 == 0 ? 3 : -1;
    handles.push_back(engine.open(std::move(request), probes[i].sink()));
  }
  for (StreamProbe& probe : probes) {
    const FinishEvent finish = probe.wait();
    EXPECT_NE(finish.reason, FinishReason::kError) << finish.message;
  }
}

}  // namespace tensorfold::testing
