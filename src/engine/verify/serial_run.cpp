// The plain run (see serial_run.h).
#include "engine/verify/serial_run.h"

#include <utility>

#include "base/error.h"

namespace tensorfold::fold {

SerialRun::SerialRun(std::unique_ptr<LanguageModel> model, std::int32_t tokens_max)
    : model_(std::move(model)), tokens_max_(tokens_max) {
  std::vector<std::int32_t> page_counts;
  for (const CacheGroup& group : facts().groups) page_counts.push_back(1 + stream_pages_max(group, tokens_max, 1));
  model_->allocate_caches(page_counts, 2, 1);
  pool_ = std::make_unique<PagePool>(*model_, page_counts, 2, true);
}

void SerialRun::begin() {
  cache_.release();
  position_ = 0;
  const bool admitted = cache_.admit(*pool_, facts().groups, tokens_max_, 1);
  TF_ASSERT(admitted);
}

const float* SerialRun::feed(std::int32_t token) {
  cache_.prepare(position_, 1);
  plan_.rows.assign(1, {});
  plan_.lanes.assign(1, {});
  PlanRow& row = plan_.rows[0];
  row.token = token;
  row.sequence_index = position_;
  row.rope_position = {position_, position_, position_};
  row.flags = kRowWantsLogits;
  PlanLane& lane = plan_.lanes[0];
  lane.slot = cache_.slot();
  lane.row_count = 1;
  lane.position = position_;
  lane.pages = cache_.tables();
  model_->forward(plan_, result_);
  if (result_.logits_rows.size() != 1) fail(ErrorCode::kInternal, "the pass returned no logits for its only row");
  ++position_;
  return result_.logits;
}

}  // namespace tensorfold::fold
