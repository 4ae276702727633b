// Forward passes of one shape, one after the other, as rounds would ask for them: without the engine, so that what a
// pass costs can be told from what the engine adds.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/measure/samples.h"
#include "model/language_model.h"

namespace tensorfold::measure {

struct PassShape {
  std::int32_t lanes = 1;
  std::int32_t rows = 1;      // of each lane
  std::int32_t context = 0;   // tokens before them
  bool commits = false;       // rows of a prompt; otherwise a window that may be cut short
  std::int32_t accepted = 1;  // rows of the window before that landed and are replayed first; at most `rows`
  std::int32_t logits_rows = 0;  // of each lane, its last; 0: all of a window, one of a prompt
  bool logits_on_host = false;   // ... are to be read; otherwise they are drawn from where they lie, if they can be
};

class PassSeries {
 public:
  /// Allocates the model's caches for `passes_max` passes. Throws Error(kInvalidArgument) for a shape that the model
  /// can't take and Error(kResourceExhausted).
  PassSeries(LanguageModel& model, const PassShape& shape, std::int32_t passes_max);

  /// Back to the first pass; the number allocated may be run again.
  void restart();
  /// Runs the next pass; its seconds.
  double run();
  /// At least `repeats` passes, and more, up to the number allocated, while all of them took less than `seconds`.
  Samples run_for(std::int32_t repeats, double seconds);
  const ForwardResult& result() const { return result_; }
  bool is_over() const { return passes_left_ == 0; }

 private:
  LanguageModel& model_;
  PassShape shape_;
  std::int32_t passes_max_, passes_left_;
  std::int32_t position_;
  bool window_is_kept_ = false;
  std::vector<std::vector<PageTable>> pages_;  // [lane][group]
  RoundPlan plan_;
  ForwardResult result_;
};

/// A random-looking token, different from row to row.
std::int32_t sample_token(std::int64_t index, std::int32_t vocabulary_size);

}  // namespace tensorfold::measure
