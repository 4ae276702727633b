// The figures that `tensorfold bench` prints, measured on a loaded model through the engine's public interface and, for
// windows of given widths, through the model's: no backend is known here. Each function starts an engine of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/measure/samples.h"
#include "engine/measure/stream_group.h"
#include "model/language_model.h"

namespace tensorfold::measure {

using Model = std::shared_ptr<LanguageModel>;
/// Called with what is being done.
using Progress = std::function<void(const std::string& what)>;

struct DecodeOptions {
  std::int32_t streams = 1;
  std::int32_t context = 2048;     // prompt of each
  std::int32_t reply_tokens = 64;  // of each, a repeat
  std::int32_t repeats = 3;
  std::int32_t compared_streams = 0;  // this many are run alone afterwards, and the tokens compared
  std::int32_t repeated_tokens = 0;   // see StreamSettings
  double temperature = 0.0;
  bool drafts = false;
  std::uint64_t seed = 1;
};

struct DecodeResult {
  Samples tokens_per_second;       // of all streams together, while all of them decode
  double first_token_seconds = 0;  // until the last stream had its first token
  std::uint64_t token_hash = 0;    // of the streams' first tokens: independent of timing
  std::int32_t hashed_tokens = 0;  // of each stream
  std::int32_t rounds = 0, drafted = 0, accepted = 0, rows_max = 0;  // of all streams
  std::int32_t compared_streams = 0;   // with themselves alone
  std::int32_t differing_streams = 0;  // ... that gave other tokens
};
DecodeResult measure_decode(const Model& model, const DecodeOptions& options, const Progress& progress = {});

struct PrefillResult {
  Samples tokens_per_second;  // of the prompt, until the reply's first token
  std::int32_t slices = 0;    // passes that the prompt was cut into
  std::uint64_t token_hash = 0;
};
PrefillResult measure_prefill(const Model& model, std::int32_t prompt_tokens, std::int32_t repeats, std::uint64_t seed);

struct WindowResult {
  std::int32_t rows = 0;
  Samples pass_seconds;
};
/// Passes of one stream's window at `context`, `accepted` rows of the window before replayed in each (as many as it has).
std::vector<WindowResult> measure_windows(LanguageModel& model, const std::vector<std::int32_t>& rows,
                                          std::int32_t context, std::int32_t accepted, std::int32_t repeats);

/// Bytes a second of a plain read over 512 MiB by `threads` threads: the limit of decoding in host memory.
double read_bandwidth(int threads);

}  // namespace tensorfold::measure
