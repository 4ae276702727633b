// The plain run that everything is compared with: one stream, one row a pass, every row committed at once, straight
// through LanguageModel::forward. It has no scheduler, no lanes and no late commit, so it can't share their mistakes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cache/stream_cache.h"
#include "model/language_model.h"

namespace tensorfold::fold {

class SerialRun {
 public:
  /// `tokens_max`: the longest sequence that will be run.
  SerialRun(std::unique_ptr<LanguageModel> model, std::int32_t tokens_max);

  const ModelFacts& facts() const { return model_->facts(); }
  /// Starts a new sequence.
  void begin();
  /// Feeds the next token; returns its row's logits, valid until the next call.
  const float* feed(std::int32_t token);

 private:
  std::unique_ptr<LanguageModel> model_;
  std::int32_t tokens_max_;
  std::unique_ptr<PagePool> pool_;
  StreamCache cache_;
  std::int32_t position_ = 0;
  RoundPlan plan_;
  ForwardResult result_;
};

}  // namespace tensorfold::fold
