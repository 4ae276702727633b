// Streams that are opened together on a running engine and timed from outside, as a client would see them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine.h"

namespace tensorfold::measure {

struct StreamSettings {
  std::int32_t prompt_tokens = 0;
  std::int32_t repeated_tokens = 0;  // > 0: the prompt says a passage of so many tokens over and over
  std::int32_t reply_tokens_max = 0;
  double temperature = 0.0;
  bool drafts = false;
  std::uint64_t seed = 1;  // of the prompts
};

struct StreamRun {
  std::vector<std::int32_t> tokens;
  std::vector<double> seconds;  // when each came, from the moment all were opened
  StreamStatistics statistics;
};

/// The prompt of stream `index`: random ids, the same in every run.
std::vector<std::int32_t> sample_prompt(const StreamSettings& settings, std::int32_t index,
                                        std::int32_t vocabulary_size);

/// Opens the streams with the given indices at once. Returns when all have ended, or, with `tokens_each` > 0, when each
/// has had so many tokens since all of them had `lead_in` of theirs: those that are left are then cancelled. Throws
/// Error(kInternal) when one fails.
std::vector<StreamRun> run_streams(Engine& engine, const std::vector<std::int32_t>& indices,
                                   const StreamSettings& settings, std::int32_t tokens_each = 0,
                                   std::int32_t lead_in = 1);

/// FNV-1a over the ids of all streams, of each its first `tokens_max`.
std::uint64_t token_hash(const std::vector<StreamRun>& runs, std::size_t tokens_max);

}  // namespace tensorfold::measure
