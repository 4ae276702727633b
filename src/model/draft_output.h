// The output head as drafters use it: over the ids that drafts are chosen from. A vocabulary of 250,000 ids has a head
// that weighs as much as several layers, and more than half of its rows are tokens that hardly ever come; leaving them
// out changes what is guessed, never what is drawn.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/description.h"
#include "model/logits_head.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace tensorfold {

/// What a row of draft logits holds for an id that is never drafted: finite, and no probability at any temperature.
inline constexpr float kNeverDrafted = -1e30f;

class DraftOutput {
 public:
  /// References outlive this.
  DraftOutput(ops::Backend& backend, const ModelDescription& model, const ModelWeights& weights);

  std::int64_t size() const { return size_; }
  /// The id of entry `index` of a row; ascending.
  std::int32_t id(std::int32_t index) const;
  /// Makes room for `rows` rows of logits; before the pass that runs them.
  void reserve(std::int64_t rows) { head_.reserve(rows); }
  void reserve_on_host(std::int64_t rows) { head_.reserve_on_host(rows); }
  /// Queues the logits [rows, size()] of final-normed rows.
  void run(const ops::Activation* normed, std::int64_t rows) { head_.run(normed, rows); }
  /// What run() left, in host memory, valid until the next call.
  const float* read(std::int64_t rows) { return head_.read(rows); }
  /// The same as rows of the whole vocabulary.
  const float* read_whole(std::int64_t rows);

 private:
  std::vector<IdRange> ranges_;  // ascending; empty: the whole vocabulary
  std::int64_t vocabulary_size_;
  std::int64_t size_;
  LogitsHead head_;
  std::vector<float> whole_;
};

}  // namespace tensorfold
