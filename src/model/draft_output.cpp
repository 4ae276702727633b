// See draft_output.h.
#include "model/draft_output.h"

#include <algorithm>

#include "base/error.h"

namespace tensorfold {
namespace {

const ops::Linear& head_of(const ModelWeights& weights) {
  if (weights.draft_head) return *weights.draft_head;
  return weights.head ? *weights.head : *weights.embedding;
}

}  // namespace

DraftOutput::DraftOutput(ops::Backend& backend, const ModelDescription& model, const ModelWeights& weights)
    : ranges_(weights.draft_head ? model.draft_vocabulary : std::vector<IdRange>{}),
      vocabulary_size_(model.vocabulary_size),
      size_(head_of(weights).rows()),
      head_(backend, head_of(weights), model.logit_soft_cap) {}

std::int32_t DraftOutput::id(std::int32_t index) const {
  for (const IdRange& range : ranges_) {
    if (index < range.end - range.begin) return range.begin + index;
    index -= range.end - range.begin;
  }
  TF_ASSERT(ranges_.empty());
  return index;
}

const float* DraftOutput::read_whole(std::int64_t rows) {
  const float* logits = read(rows);
  if (ranges_.empty()) return logits;
  whole_.resize(static_cast<std::size_t>(rows * vocabulary_size_));
  for (std::int64_t row = 0; row < rows; ++row) {
    float* out = whole_.data() + row * vocabulary_size_;
    std::fill_n(out, vocabulary_size_, kNeverDrafted);
    for (const IdRange& range : ranges_) {
      std::copy_n(logits, range.end - range.begin, out + range.begin);
      logits += range.end - range.begin;
    }
  }
  return whole_.data();
}

}  // namespace tensorfold
