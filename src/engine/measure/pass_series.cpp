// See pass_series.h.
#include "engine/measure/pass_series.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/error.h"
#include "base/limits.h"

namespace tensorfold::measure {
namespace {

using Clock = std::chrono::steady_clock;

void check_shape(const PassShape& shape, const ModelFacts& facts, std::int64_t positions) {
  const std::int64_t rows = static_cast<std::int64_t>(shape.lanes) * shape.rows;
  TF_ASSERT(shape.lanes >= 1 && shape.rows >= 1 && shape.context >= 0 && shape.accepted >= 0);
  if (rows > facts.pass_rows_max) {
    fail(ErrorCode::kInvalidArgument, "{} lanes of {} rows: a pass of this backend has at most {} rows", shape.lanes,
         shape.rows, facts.pass_rows_max);
  }
  if (!shape.commits && shape.rows > facts.window_rows_max) {
    fail(ErrorCode::kInvalidArgument, "a window has at most {} rows, not {}", facts.window_rows_max, shape.rows);
  }
  if (positions > facts.context_max) {
    fail(ErrorCode::kInvalidArgument, "{} tokens of context and what is measured behind them: the model supports {}",
         shape.context, facts.context_max);
  }
}

}  // namespace

std::int32_t sample_token(std::int64_t index, std::int32_t vocabulary_size) {
  const auto mixed = static_cast<std::uint64_t>(index + 1) * 0x9E3779B97F4A7C15u;
  return static_cast<std::int32_t>((mixed >> 33) % static_cast<std::uint64_t>(vocabulary_size));
}

PassSeries::PassSeries(LanguageModel& model, const PassShape& shape, std::int32_t passes_max)
    : model_(model), shape_(shape), passes_max_(passes_max), passes_left_(passes_max), position_(shape.context) {
  const ModelFacts& facts = model.facts();
  shape_.accepted = shape.commits ? 0 : std::min(shape.accepted, shape.rows);
  const std::int64_t positions =
      static_cast<std::int64_t>(shape_.context) + static_cast<std::int64_t>(shape_.accepted) * passes_max + shape_.rows;
  check_shape(shape_, facts, positions);
  const auto lane_pages =
      static_cast<std::int32_t>((positions + limits::kKvPageTokens - 1) / limits::kKvPageTokens);
  for (std::int32_t lane = 0; lane < shape_.lanes; ++lane) {
    std::vector<PageTable> tables;
    for (const CacheGroup& group : facts.groups) {
      PageTable table;
      if (group.kind != CacheKind::kRecurrent) {
        table.resize(static_cast<std::size_t>(lane_pages));
        std::iota(table.begin(), table.end(), 1 + lane * lane_pages);
      }
      tables.push_back(std::move(table));
    }
    pages_.push_back(std::move(tables));
  }
  const std::vector<std::int32_t> page_counts(facts.groups.size(), 1 + shape_.lanes * lane_pages);
  const std::int32_t window_rows = std::max(shape_.commits ? 1 : shape_.rows, limits::kWindowRowsMax);
  model.allocate_caches(page_counts, shape_.lanes + 1, std::min(window_rows, facts.window_rows_max));
}

void PassSeries::restart() {
  passes_left_ = passes_max_;
  position_ = shape_.context;
  window_is_kept_ = false;
}

double PassSeries::run() {
  TF_ASSERT(passes_left_ > 0);
  --passes_left_;
  const std::int32_t replayed = window_is_kept_ ? shape_.accepted : 0;
  position_ += replayed;
  const std::int32_t logits_rows = shape_.logits_rows > 0 ? shape_.logits_rows : shape_.commits ? 1 : shape_.rows;
  plan_ = {};
  for (std::int32_t index = 0; index < shape_.lanes; ++index) {
    PlanLane lane;
    lane.slot = index + 1;
    lane.first_row = index * shape_.rows;
    lane.row_count = shape_.rows;
    lane.position = position_;
    lane.commits = shape_.commits;
    lane.replay_rows.resize(static_cast<std::size_t>(replayed));
    std::iota(lane.replay_rows.begin(), lane.replay_rows.end(), 0);
    lane.pages = pages_[static_cast<std::size_t>(index)];
    plan_.lanes.push_back(std::move(lane));
    for (std::int32_t row = 0; row < shape_.rows; ++row) {
      PlanRow each;
      each.sequence_index = position_ + row;
      each.token = sample_token(static_cast<std::int64_t>(index) * 1'000'003 + each.sequence_index,
                                model_.facts().vocabulary_size);
      each.lane = index;
      each.parent_row = row == 0 ? -1 : index * shape_.rows + row - 1;
      each.rope_position.fill(each.sequence_index);
      if (row + logits_rows >= shape_.rows) {
        each.flags = kRowWantsLogits | (shape_.logits_on_host ? 0u : kRowWantsDraw);
      }
      plan_.rows.push_back(each);
    }
  }
  const auto start = Clock::now();
  model_.forward(plan_, result_);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  window_is_kept_ = !shape_.commits;
  return seconds;
}

Samples PassSeries::run_for(std::int32_t repeats, double seconds) {
  Samples samples;
  double total = 0.0;
  while (!is_over() && (static_cast<std::int32_t>(samples.values().size()) < repeats || total < seconds)) {
    samples.add(run());
    total += samples.values().back();
  }
  return samples;
}

}  // namespace tensorfold::measure
